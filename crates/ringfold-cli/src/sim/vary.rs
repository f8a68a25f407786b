//! What varies from one simulation to the next: `--sweep` along an axis, `--compare` side by side.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Result, anyhow, bail};
use ringfold::Method;
use ringfold::internals::units::{nearest, parse_time_ps};

use super::policy::POLICIES;
use super::scenario;
use super::settings::Layers;
use super::units::time_text;
use crate::numbers::bytes_label;
use crate::parse::{parse_algorithm, parse_bytes};
use crate::plot::Scale;
use crate::status::usage;

/// The most values of a sweep: more is a mistyped step.
const MAX_VALUES: usize = 1 << 16;

/// The key that counts up by one instead of doubling.
const SEED: &str = "seed";

/// A setting and the values that it takes one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Variation {
    pub key: String,
    pub values: Vec<Value>,
    /// How the values are laid out along an axis, if they are numbers.
    pub scale: Option<Scale>,
    /// What the axis is called.
    pub axis: String,
}

/// One value of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The setting that varies.
    pub key: String,
    /// As `--set` takes it.
    pub text: String,
    /// As a table shows it.
    pub label: String,
    /// Where it stands on an axis: bytes, microseconds, or the number itself.
    pub number: Option<f64>,
}

/// What kind of quantity a sweep goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity<'a> {
    Bytes,
    Time,
    Number { unit: &'a str },
}

impl FromStr for Variation {
    type Err = String;

    /// `KEY=A..B` doubles, `KEY=A..B*F` multiplies, `KEY=A..B+STEP` adds, `KEY=A,B,C` lists; with a
    /// `;`, that separates.
    fn from_str(text: &str) -> Result<Variation, String> {
        let Some((key, values)) = text.split_once('=') else {
            return Err("write KEY=A..B, KEY=A..B+STEP, KEY=A..B*FACTOR or KEY=A,B,C".into());
        };
        let key = key.trim().replace('_', "-");
        match values.split_once("..") {
            Some((from, to)) => range(key, from.trim(), to.trim()),
            None => list(key, values),
        }
    }
}

/// The values between commas, or between semicolons where a value has commas itself.
fn list(key: String, values: &str) -> Result<Variation, String> {
    let separator = if values.contains(';') { ';' } else { ',' };
    let words: Vec<&str> = values.split(separator).map(str::trim).collect();
    if words.iter().any(|word| word.is_empty()) {
        return Err(format!("`{key}={values}` has an empty value"));
    }
    let kind = kind(&key, &words);
    let values = words.iter().map(|word| Value {
        key: key.clone(),
        text: (*word).into(),
        label: (*word).into(),
        number: kind.and_then(|kind| kind.number(word)),
    });
    Ok(Variation {
        scale: kind.map(|kind| kind.scale(&key, words.len() < 3)),
        axis: kind.map_or_else(|| key.clone(), |kind| kind.axis(&key)),
        values: values.collect(),
        key,
    })
}

fn range(key: String, from: &str, to: &str) -> Result<Variation, String> {
    let (to, step) = match to.find(['*', '+']) {
        Some(at) => (to[..at].trim(), Some((&to[at..=at], to[at + 1..].trim()))),
        None => (to, None),
    };
    let adds = step.map_or(key == SEED, |(sign, _)| sign == "+");
    let added = step.filter(|_| adds).map(|(_, step)| step);
    let words: Vec<&str> = [Some(from), Some(to), added]
        .into_iter()
        .flatten()
        .collect();
    let wrong = || {
        format!(
            "`{}` are not sizes, times or numbers of one kind",
            words.join("`, `")
        )
    };
    let kind = kind(&key, &words).ok_or_else(wrong)?;
    let number = |word: &str| kind.raw(word).ok_or_else(wrong);
    let (low, high) = (number(from)?, number(to)?);
    if low > high {
        return Err(format!("`{from}` is above `{to}`"));
    }
    let next: Box<dyn Fn(usize) -> f64> = match step {
        _ if adds => {
            let width = added.map_or(Ok(1.0), number)?;
            if width <= 0.0 {
                return Err("the step must be above 0".into());
            }
            Box::new(move |count| low + width * count as f64)
        }
        step => {
            let factor = match step {
                Some((_, factor)) => factor.parse().ok().filter(|&f: &f64| f > 1.0),
                None => Some(2.0),
            };
            let factor = factor.ok_or("the factor must be a number above 1")?;
            if low <= 0.0 {
                return Err(format!(
                    "multiplied, `{from}` never gets to `{to}`; add a step, as in \
                     `{key}={from}..{to}+{to}`"
                ));
            }
            Box::new(move |count| low * factor.powi(count as i32))
        }
    };
    let mut values = Vec::new();
    for count in 0.. {
        // Steps such as 0.1 are not exact.
        let value = next(count);
        if value > high * (1.0 + 1e-12) {
            break;
        }
        if values.len() == MAX_VALUES {
            return Err(format!(
                "more than {MAX_VALUES} values; choose a larger step"
            ));
        }
        values.push(kind.value(&key, value));
    }
    Ok(Variation {
        scale: Some(kind.scale(&key, adds)),
        axis: kind.axis(&key),
        key,
        values,
    })
}

/// The kind that all words are of.
fn kind<'a>(key: &str, words: &[&'a str]) -> Option<Quantity<'a>> {
    let plain = words.iter().all(|word| word.parse::<f64>().is_ok());
    let all = |is: &dyn Fn(&str) -> bool| words.iter().all(|word| is(word));
    if (!plain || key.ends_with("bytes")) && all(&|word| parse_bytes(word).is_ok()) {
        return Some(Quantity::Bytes);
    }
    if !plain && all(&|word| parse_time_ps(word).is_ok()) {
        return Some(Quantity::Time);
    }
    let units: Vec<&str> = words.iter().map(|word| split(word).1).collect();
    let unit = units
        .iter()
        .copied()
        .find(|unit| !unit.is_empty())
        .unwrap_or("");
    let is_one = units.iter().all(|own| *own == unit || own.is_empty());
    let numbers = words
        .iter()
        .all(|word| split(word).0.parse::<f64>().is_ok());
    (is_one && numbers).then_some(Quantity::Number { unit })
}

/// A number and its unit.
fn split(word: &str) -> (&str, &str) {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.');
    word.split_at(end.unwrap_or(word.len()))
}

impl Quantity<'_> {
    /// The quantity in bytes, picoseconds, or its unit.
    fn raw(self, word: &str) -> Option<f64> {
        match self {
            Quantity::Bytes => parse_bytes(word).ok().map(|bytes| bytes as f64),
            Quantity::Time => parse_time_ps(word).ok().map(|ps| ps as f64),
            Quantity::Number { .. } => split(word).0.parse().ok(),
        }
    }

    /// The quantity on an axis.
    fn number(self, word: &str) -> Option<f64> {
        let raw = self.raw(word)?;
        Some(if self == Quantity::Time {
            raw / 1e6
        } else {
            raw
        })
    }

    fn value(self, key: &str, raw: f64) -> Value {
        let (text, label, number) = match self {
            Quantity::Bytes => {
                let bytes = raw.round();
                (format!("{bytes}"), bytes_label(bytes), bytes)
            }
            Quantity::Time => {
                let ps = raw.round() as u64;
                (format!("{ps}ps"), time_text(ps), raw / 1e6)
            }
            Quantity::Number { unit } => {
                // Ranks and seeds are whole.
                let whole = matches!(
                    key,
                    "ranks" | "seed" | "root" | "ranks-per-host" | "cores-per-host"
                );
                let rounded = if whole {
                    raw.round()
                } else {
                    (raw * 1e9).round() / 1e9
                };
                let text = format!("{rounded}{unit}");
                (text.clone(), text, rounded)
            }
        };
        Value {
            key: key.to_owned(),
            text,
            label,
            number: Some(number),
        }
    }

    fn scale(self, key: &str, is_even: bool) -> Scale {
        match self {
            Quantity::Bytes => Scale::Bytes,
            _ if is_even => Scale::Linear,
            Quantity::Number { .. } if key == "ranks" => Scale::Doubling,
            Quantity::Time | Quantity::Number { .. } => Scale::Logarithmic,
        }
    }

    fn axis(self, key: &str) -> String {
        match self {
            Quantity::Bytes if key == "bytes" => "size".into(),
            Quantity::Time => format!("{key} (µs)"),
            Quantity::Number { unit } if !unit.is_empty() => format!("{key} ({unit})"),
            Quantity::Bytes | Quantity::Number { .. } => key.into(),
        }
    }
}

/// One of several things to compare.
#[derive(Clone, Debug)]
pub struct Variant {
    pub label: String,
    pub layers: Layers,
}

/// The values of `--compare`: algorithms, values of a setting (`KEY=A,B`), or other scenario files
/// beside this one.
pub fn variants(layers: &Layers, named: &str, asked: Option<&str>) -> Result<Vec<Variant>> {
    let own = |label: &str| Variant {
        label: label.into(),
        layers: layers.clone(),
    };
    let Some(asked) = asked else {
        return Ok(vec![own("")]);
    };
    let words: Vec<&str> = asked.split(',').map(str::trim).collect();
    if !asked.contains('=') && words.iter().all(|word| word.ends_with(".toml")) {
        let mut variants = vec![own(named)];
        for word in words {
            let mut other = Variant {
                label: word.into(),
                layers: Layers::default(),
            };
            other.layers.read(Path::new(word))?;
            variants.push(other);
        }
        return Ok(variants);
    }
    let keyed = match asked.contains('=') {
        true => asked.to_owned(),
        false => format!("{}={asked}", key_of(&words).map_err(usage)?),
    };
    let sweep: Variation = keyed
        .parse()
        .map_err(|error: String| usage(anyhow!("`--compare {asked}`: {error}")))?;
    let variants = sweep.values.iter().map(|value| {
        let mut variant = own(&value.label);
        scenario::vary(&mut variant.layers, &sweep.key, &value.text).map_err(usage)?;
        Ok(variant)
    });
    variants.collect()
}

/// Which setting takes all of these words.
fn key_of(words: &[&str]) -> Result<&'static str> {
    let is_policy = |word: &&&str| POLICIES.iter().any(|(name, _)| name == *word);
    let is_algorithm = |word: &&&str| **word == "auto" || parse_algorithm(word).is_ok();
    let is_neither = |word: &&&str| !is_policy(word) && !is_algorithm(word);
    if let Some(wrong) = words.iter().find(is_neither) {
        let algorithms = Method::ALL.iter().map(|algorithm| algorithm.name());
        let policies = POLICIES.map(|(name, _)| name);
        bail!(
            "`--compare` takes algorithms, policies, KEY=A,B or scenario files; `{wrong}` is none, \
             did you mean `{}`?",
            nearest(wrong, algorithms.chain(policies))
        );
    }
    match words.iter().find(is_algorithm) {
        None => Ok("policy"),
        Some(algorithm) => match words.iter().find(is_policy) {
            None => Ok("algorithm"),
            Some(policy) => bail!(
                "`--compare` takes algorithms or policies, and `{algorithm}` and `{policy}` are \
                 one of each; write two scenario files"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(sweep: &str) -> Vec<String> {
        let sweep: Variation = sweep.parse().unwrap();
        sweep.values.into_iter().map(|value| value.text).collect()
    }

    #[test]
    fn ranges_double_multiply_and_add() {
        assert_eq!(texts("bytes=1K..8K"), ["1024", "2048", "4096", "8192"]);
        assert_eq!(texts("ranks=4..64*4"), ["4", "16", "64"]);
        assert_eq!(
            texts("delay=0us..2us+1us"),
            ["0ps", "1000000ps", "2000000ps"]
        );
        assert_eq!(texts("seed=3..5"), ["3", "4", "5"]);
        assert_eq!(
            texts("alpha=500ns..2us"),
            ["500000ps", "1000000ps", "2000000ps"]
        );
        assert_eq!(
            texts("bandwidth=10Gbit/s..40Gbit/s"),
            ["10Gbit/s", "20Gbit/s", "40Gbit/s"]
        );
        assert_eq!(texts("alpha-threshold=1.1..1.3+0.1"), ["1.1", "1.2", "1.3"]);
    }

    #[test]
    fn lists_are_taken_as_they_are() {
        assert_eq!(texts("ports=full, half"), ["full", "half"]);
        assert_eq!(
            texts("slow=rank=1,delay=1us;rank=2,delay=1us"),
            ["rank=1,delay=1us", "rank=2,delay=1us"]
        );
        let sweep: Variation = "bytes=1K,1M".parse().unwrap();
        assert_eq!(sweep.values[1].number, Some(1_048_576.0));
        assert_eq!(sweep.scale, Some(Scale::Bytes));
        assert_eq!("ports=full,half".parse::<Variation>().unwrap().scale, None);
    }

    #[test]
    fn what_goes_nowhere_is_refused() {
        for (text, word) in [
            ("bytes", "KEY="),
            ("bytes=2K..1K", "above"),
            ("bytes=0..1K", "add a step"),
            ("delay=0us..1us+0us", "above 0"),
            ("ranks=1..8*1", "above 1"),
            ("delay=1us..2K", "of one kind"),
            ("seed=0..100000000", "larger step"),
            ("ports=full,,half", "empty"),
        ] {
            let error = text.parse::<Variation>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn axes_fit_what_varies() {
        let axis = |text: &str| {
            let sweep: Variation = text.parse().unwrap();
            (sweep.scale.unwrap(), sweep.axis)
        };
        assert_eq!(axis("bytes=1K..1M"), (Scale::Bytes, "size".into()));
        assert_eq!(axis("ranks=2..64"), (Scale::Doubling, "ranks".into()));
        assert_eq!(
            axis("delay=0us..9us+1us"),
            (Scale::Linear, "delay (µs)".into())
        );
        assert_eq!(axis("bandwidth=1GB/s..8GB/s").1, "bandwidth (GB/s)");
    }

    #[test]
    fn algorithms_settings_and_nothing_else_are_compared() {
        let labels = |asked| -> Vec<String> {
            let variants = variants(&Layers::default(), "flags", Some(asked)).unwrap();
            variants.into_iter().map(|variant| variant.label).collect()
        };
        assert_eq!(labels("ring,auto"), ["ring", "auto"]);
        assert_eq!(labels("alpha=1us,2us"), ["1us", "2us"]);
        let error = variants(&Layers::default(), "flags", Some("ring,dircet")).unwrap_err();
        assert!(error.to_string().contains("`direct`"), "{error}");
    }
}
