//! What goes wrong and what is shared, in words: `rank=1,delay=60us`.

use std::str::FromStr;

use ringfold::internals::simulate::{Disturbance, LinkEnds, Switch};
use ringfold::internals::units::{nearest, parse_rate_ps_per_byte, parse_time_ps};

use super::parse::read_from_text;

/// A rank that begins later.
#[derive(Clone, Debug, PartialEq)]
pub struct Late(pub Disturbance);

/// A rank that is frozen for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall(pub Disturbance);

/// A link with less bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowLink(pub Disturbance);

/// A rank that dies.
#[derive(Clone, Debug, PartialEq)]
pub struct Dead(pub Disturbance);

/// A link inside the network.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchText(pub Switch);

impl FromStr for Late {
    type Err = String;
    fn from_str(text: &str) -> Result<Late, String> {
        let words = Words::read(text, &["rank", "delay"], "rank=1,delay=60us")?;
        Ok(Late(Disturbance::Late {
            rank: words.number("rank")?,
            delay_ps: words.time("delay")?,
        }))
    }
}

impl FromStr for Stall {
    type Err = String;
    fn from_str(text: &str) -> Result<Stall, String> {
        let words = Words::read(
            text,
            &["rank", "from", "until"],
            "rank=1,from=10us,until=2ms",
        )?;
        Ok(Stall(Disturbance::Stall {
            rank: words.number("rank")?,
            from_ps: words.time("from")?,
            until_ps: words.time("until")?,
        }))
    }
}

impl FromStr for SlowLink {
    type Err = String;
    fn from_str(text: &str) -> Result<SlowLink, String> {
        let keys = ["rank", "from", "to", "factor"];
        let words = Words::read(text, &keys, "rank=1,factor=4` or `from=1,to=2,factor=4")?;
        let ends = match words.value("rank") {
            Ok(_) => LinkEnds::Port(words.number("rank")?),
            Err(_) => LinkEnds::Pair(words.number("from")?, words.number("to")?),
        };
        let factor = words.value("factor")?;
        let factor = factor
            .parse()
            .map_err(|_| format!("`factor={factor}` is not a number"))?;
        Ok(SlowLink(Disturbance::SlowLink { ends, factor }))
    }
}

impl FromStr for Dead {
    type Err = String;
    fn from_str(text: &str) -> Result<Dead, String> {
        let words = Words::read(text, &["rank", "at"], "rank=1,at=100us")?;
        Ok(Dead(Disturbance::Dead {
            rank: words.number("rank")?,
            at_ps: words.time("at")?,
        }))
    }
}

impl FromStr for SwitchText {
    type Err = String;
    fn from_str(text: &str) -> Result<SwitchText, String> {
        let keys = ["name", "bandwidth", "ranks"];
        let words = Words::read(text, &keys, "name=spine,bandwidth=200Gbit/s,ranks=0-3")?;
        Ok(SwitchText(Switch {
            name: words.value("name")?.to_owned(),
            ps_per_byte: parse_rate_ps_per_byte(words.value("bandwidth")?)
                .map_err(|error| error.to_string())?,
            ranks: ranks(words.value("ranks")?)?,
        }))
    }
}

read_from_text!(Late, Stall, SlowLink, Dead, SwitchText);

/// The highest rank that is believed: a range is made a list.
const RANK_MAX: usize = 1 << 20;

/// `0-3+8`: ranks 0 to 3, and 8.
fn ranks(text: &str) -> Result<Vec<usize>, String> {
    let number = |word: &str| {
        let rank = word.parse::<usize>().ok().filter(|&rank| rank <= RANK_MAX);
        rank.ok_or_else(|| format!("`ranks={text}` are no ranks; write for example `0-3+8`"))
    };
    let mut ranks = Vec::new();
    for part in text.split('+') {
        match part.split_once('-') {
            Some((first, last)) => ranks.extend(number(first)?..=number(last)?),
            None => ranks.push(number(part)?),
        }
    }
    Ok(ranks)
}

/// A text of keys and values.
struct Words<'a> {
    text: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
    example: &'static str,
}

impl<'a> Words<'a> {
    /// Splits the text; other keys than `keys`, and keys said twice, are errors.
    fn read(
        text: &'a str,
        keys: &[&'static str],
        example: &'static str,
    ) -> Result<Words<'a>, String> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!(
                    "`{part}` is not of the form key=value; write for example `{example}`"
                ));
            };
            let (key, value) = (key.trim(), value.trim());
            if !keys.contains(&key) {
                let near = nearest(key, keys.iter().copied());
                return Err(format!(
                    "unknown word `{key}`, did you mean `{near}`? Write for example `{example}`"
                ));
            }
            if pairs.iter().any(|(said, _)| *said == key) {
                return Err(format!("`{key}` is said twice in `{text}`"));
            }
            pairs.push((key, value));
        }
        Ok(Words {
            text,
            pairs,
            example,
        })
    }

    fn value(&self, key: &str) -> Result<&'a str, String> {
        let found = self.pairs.iter().find(|(said, _)| *said == key);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let Words { text, example, .. } = self;
            format!("`{text}` does not say `{key}`; write for example `{example}`")
        })
    }

    fn number(&self, key: &str) -> Result<usize, String> {
        let value = self.value(key)?;
        value
            .parse()
            .map_err(|_| format!("`{key}={value}` is not a rank"))
    }

    fn time(&self, key: &str) -> Result<u64, String> {
        parse_time_ps(self.value(key)?).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_from_its_words() {
        assert_eq!(
            "rank=1, delay=60us".parse(),
            Ok(Late(Disturbance::Late {
                rank: 1,
                delay_ps: 60_000_000
            }))
        );
        assert_eq!(
            "rank=2,from=1us,until=2us".parse(),
            Ok(Stall(Disturbance::Stall {
                rank: 2,
                from_ps: 1_000_000,
                until_ps: 2_000_000
            }))
        );
        assert_eq!(
            "rank=0,at=7ps".parse(),
            Ok(Dead(Disturbance::Dead { rank: 0, at_ps: 7 }))
        );
        let pair = LinkEnds::Pair(1, 2);
        assert_eq!(
            "from=1,to=2,factor=2.5".parse(),
            Ok(SlowLink(Disturbance::SlowLink {
                ends: pair,
                factor: 2.5
            }))
        );
        let spine: SwitchText = "name=spine,bandwidth=200Gbit/s,ranks=0-2+8"
            .parse()
            .unwrap();
        assert_eq!(spine.0.ranks, [0, 1, 2, 8]);
        assert_eq!(spine.0.ps_per_byte, 40);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let errors = [
            (
                "rnak=1,delay=1us".parse::<Late>().unwrap_err(),
                "did you mean `rank`",
            ),
            (
                "rank=1".parse::<Late>().unwrap_err(),
                "does not say `delay`",
            ),
            ("1".parse::<Late>().unwrap_err(), "key=value"),
            (
                "rank=1,rank=2,delay=0".parse::<Late>().unwrap_err(),
                "twice",
            ),
            ("rank=x,at=1us".parse::<Dead>().unwrap_err(), "`rank=x`"),
            (
                "rank=1,factor=x".parse::<SlowLink>().unwrap_err(),
                "`factor=x`",
            ),
            (
                "name=s,bandwidth=1GB/s,ranks=a"
                    .parse::<SwitchText>()
                    .unwrap_err(),
                "no ranks",
            ),
        ];
        for (error, due) in errors {
            assert!(error.contains(due), "{error}");
        }
    }
}
