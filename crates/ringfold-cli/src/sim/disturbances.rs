//! What goes wrong and what is shared, in words: `rank=1,delay=60us`.

use std::str::FromStr;

use ringfold::internals::simulate::{Disturbance, LinkEnds, Switch};
use serde::{Deserialize, Deserializer};

use super::parse::{Rate, TimeSpan, pairs, read_from_text, text};

/// A rank that begins later.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Late {
    pub rank: usize,
    pub delay: TimeSpan,
}

/// A rank that is frozen for a while.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    rank: usize,
    from: TimeSpan,
    until: TimeSpan,
}

/// A link with less bandwidth: the port of a rank, or the link from one rank to another.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowLink {
    rank: Option<usize>,
    from: Option<usize>,
    to: Option<usize>,
    factor: f64,
}

/// A rank that dies.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dead {
    rank: usize,
    at: TimeSpan,
}

/// A link inside the network.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchLink {
    #[serde(deserialize_with = "name")]
    name: String,
    bandwidth: Rate,
    ranks: RankList,
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    text(from, |text| Ok::<_, String>(text.to_owned()))
}

/// Reads these types from pairs like those of the examples.
macro_rules! read_from_pairs {
    ($($name:ident: $example:literal),*) => { $(
        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<$name, String> {
                pairs(text, $example)
            }
        }
    )* };
}

read_from_pairs! {
    Late: "rank=1,delay=60us",
    Stall: "rank=1,from=10us,until=2ms",
    SlowLink: "rank=1,factor=4` or `from=1,to=2,factor=4",
    Dead: "rank=1,at=100us",
    SwitchLink: "name=spine,bandwidth=200Gbit/s,ranks=0-3"
}

impl From<&Late> for Disturbance {
    fn from(&Late { rank, delay }: &Late) -> Disturbance {
        let delay_ps = delay.ps;
        Disturbance::Late { rank, delay_ps }
    }
}

impl From<&Stall> for Disturbance {
    fn from(&Stall { rank, from, until }: &Stall) -> Disturbance {
        let (from_ps, until_ps) = (from.ps, until.ps);
        Disturbance::Stall {
            rank,
            from_ps,
            until_ps,
        }
    }
}

impl TryFrom<&SlowLink> for Disturbance {
    type Error = anyhow::Error;
    fn try_from(link: &SlowLink) -> anyhow::Result<Disturbance> {
        let ends = match (link.rank, link.from, link.to) {
            (Some(rank), None, None) => LinkEnds::Port(rank),
            (None, Some(from), Some(to)) => LinkEnds::Pair(from, to),
            _ => anyhow::bail!("a slow link has a `rank`, or `from` and `to`"),
        };
        let factor = link.factor;
        Ok(Disturbance::SlowLink { ends, factor })
    }
}

impl From<&Dead> for Disturbance {
    fn from(&Dead { rank, at }: &Dead) -> Disturbance {
        Disturbance::Dead { rank, at_ps: at.ps }
    }
}

impl From<&SwitchLink> for Switch {
    fn from(link: &SwitchLink) -> Switch {
        Switch {
            name: link.name.clone(),
            ps_per_byte: link.bandwidth.ps_per_byte,
            ranks: link.ranks.0.clone(),
        }
    }
}

/// The highest rank that is believed: a range is made a list.
const RANK_MAX: usize = 1 << 20;

/// Ranks, such as `0-3+8`: ranks 0 to 3, and 8.
#[derive(Clone, Debug, PartialEq)]
struct RankList(Vec<usize>);

read_from_text!(RankList);

impl FromStr for RankList {
    type Err = String;
    fn from_str(text: &str) -> Result<RankList, String> {
        let number = |word: &str| {
            let rank = word.parse::<usize>().ok().filter(|&rank| rank <= RANK_MAX);
            rank.ok_or_else(|| format!("`{text}` are no ranks; write for example `0-3+8`"))
        };
        let mut ranks = Vec::new();
        for part in text.split('+') {
            match part.split_once('-') {
                Some((first, last)) => ranks.extend(number(first)?..=number(last)?),
                None => ranks.push(number(part)?),
            }
        }
        Ok(RankList(ranks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T>(text: &str) -> Disturbance
    where
        T: FromStr<Err = String>,
        for<'a> Disturbance: TryFrom<&'a T, Error: std::fmt::Debug>,
    {
        Disturbance::try_from(&text.parse::<T>().unwrap()).unwrap()
    }

    #[test]
    fn every_kind_is_read_from_its_words() {
        assert_eq!(
            read::<Late>("rank=1, delay=60us"),
            Disturbance::Late {
                rank: 1,
                delay_ps: 60_000_000
            }
        );
        assert_eq!(
            read::<Stall>("rank=2,from=1us,until=2us"),
            Disturbance::Stall {
                rank: 2,
                from_ps: 1_000_000,
                until_ps: 2_000_000
            }
        );
        assert_eq!(
            read::<Dead>("rank=0,at=7ps"),
            Disturbance::Dead { rank: 0, at_ps: 7 }
        );
        for (text, ends) in [
            ("from=1,to=2,factor=2.5", LinkEnds::Pair(1, 2)),
            ("rank=3,factor=2.5", LinkEnds::Port(3)),
        ] {
            let factor = 2.5;
            assert_eq!(
                read::<SlowLink>(text),
                Disturbance::SlowLink { ends, factor }
            );
        }
        let spine: SwitchLink = "name=spine,bandwidth=200Gbit/s,ranks=0-2+8"
            .parse()
            .unwrap();
        let spine = Switch::from(&spine);
        assert_eq!(spine.ranks, [0, 1, 2, 8]);
        assert_eq!(spine.ps_per_byte, 40);
        let one: SwitchLink = "name=7,bandwidth=200Gbit/s,ranks=3".parse().unwrap();
        assert_eq!(Switch::from(&one).ranks, [3]);
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
                "missing field `delay`",
            ),
            ("1".parse::<Late>().unwrap_err(), "key=value"),
            (
                "rank=1,rank=2,delay=0".parse::<Late>().unwrap_err(),
                "twice",
            ),
            ("rank=x,at=1us".parse::<Dead>().unwrap_err(), "in `rank`"),
            (
                "rank=1,factor=x".parse::<SlowLink>().unwrap_err(),
                "in `factor`",
            ),
            (
                "name=s,bandwidth=1GB/s,ranks=a"
                    .parse::<SwitchLink>()
                    .unwrap_err(),
                "no ranks",
            ),
        ];
        for (error, due) in errors {
            assert!(error.contains(due), "{error}");
        }
    }
}
