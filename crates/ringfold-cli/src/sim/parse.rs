//! Values as users write them, alike in flags, scenario files and sweeps.

use std::fmt;
use std::str::FromStr;

use ringfold::internals::units::{nearest, parse_rate_ps_per_byte, parse_time_ps};
use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, Visitor};
use toml::{Table, Value};

use crate::parse::parse_bytes;

/// What is written for a rate that costs no time.
const UNLIMITED: &str = "unlimited";

/// What is written for a rate that a file has.
const MEASURED: &str = "measured";

/// A size: `8K`, `64M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// A time: `5us`, `20ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    pub ps: u64,
}

/// A rate: `100Gbit/s`, `12.5GB/s`, or `unlimited`, which is 0 picoseconds a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub ps_per_byte: u64,
}

/// The bandwidth of devices' links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRate {
    /// This, each way.
    Of(Rate),
    /// As measured.
    Measured,
}

impl FromStr for DeviceRate {
    type Err = ringfold::Error;
    fn from_str(text: &str) -> ringfold::Result<DeviceRate> {
        match text {
            MEASURED => Ok(DeviceRate::Measured),
            _ => text.parse().map(DeviceRate::Of),
        }
    }
}

impl FromStr for Bytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Bytes, String> {
        parse_bytes(text).map(Bytes)
    }
}

impl FromStr for TimeSpan {
    type Err = ringfold::Error;
    fn from_str(text: &str) -> ringfold::Result<TimeSpan> {
        parse_time_ps(text).map(|ps| TimeSpan { ps })
    }
}

impl FromStr for Rate {
    type Err = ringfold::Error;
    fn from_str(text: &str) -> ringfold::Result<Rate> {
        let ps_per_byte = match text {
            UNLIMITED => 0,
            _ => parse_rate_ps_per_byte(text)?,
        };
        Ok(Rate { ps_per_byte })
    }
}

impl From<TimeSpan> for u64 {
    fn from(time: TimeSpan) -> u64 {
        time.ps
    }
}

impl From<Rate> for u64 {
    fn from(rate: Rate) -> u64 {
        rate.ps_per_byte
    }
}

/// Reads a value from a string or a number.
pub fn text<'de, D, T, E>(from: D, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: fmt::Display,
{
    let Text(text) = Text::deserialize(from)?;
    parse(&text).map_err(de::Error::custom)
}

/// [`text`] for the types of the library that read themselves.
pub fn own_text<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    text(from, str::parse).map(Some)
}

/// Reads these types from their text.
macro_rules! read_from_text {
    ($($name:ident),*) => { $(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                $crate::sim::parse::text(from, str::parse)
            }
        }
    )* };
}

/// A function that reads one of these words.
macro_rules! words {
    ($name:ident: $meaning:ty = $($word:literal => $value:expr),*) => {
        fn $name<'de, D: serde::Deserializer<'de>>(
            from: D,
        ) -> Result<Option<$meaning>, D::Error> {
            let words = [$(($word, $value)),*];
            $crate::sim::parse::text(from, |text| $crate::sim::parse::one_of(text, words)).map(Some)
        }
    };
}

/// The meaning of a word.
pub fn one_of<T: Copy, const N: usize>(text: &str, words: [(&str, T); N]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names = words.map(|(word, _)| word);
        let near = nearest(text, names.into_iter());
        format!(
            "`{text}` is none of {}; did you mean `{near}`?",
            names.join(", ")
        )
    })
}

pub(super) use {read_from_text, words};

read_from_text!(Bytes, TimeSpan, Rate, DeviceRate);

/// A string, or a number as it would be written.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a number")
            }
            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.into()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
        }
        from.deserialize_any(Any)
    }
}

/// [`own_text`] for each entry of a list, or for its only one.
pub fn own_list<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    let list = match Texts::deserialize(from)? {
        Texts::One(text) => vec![text],
        Texts::Many(list) => list,
    };
    let read = |text: &String| text.parse().map_err(de::Error::custom);
    list.iter().map(read).collect()
}

/// A value as TOML has it: a number, a truth value, or else a string.
pub fn value(text: &str) -> Value {
    if let Ok(number) = text.parse::<i64>() {
        return number.into();
    }
    if let Ok(is) = text.parse::<bool>() {
        return is.into();
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => number.into(),
        _ => text.into(),
    }
}

/// The nearest known word, if serde did not expect one: its message lists the words.
pub fn hint(message: &str) -> String {
    let mut words = quoted(message);
    let wrong = words.next().unwrap_or_default();
    let mut known = words.peekable();
    match message.starts_with("unknown ") && known.peek().is_some() {
        true => format!("\ndid you mean `{}`?", nearest(wrong, known)),
        false => String::new(),
    }
}

/// The words in backticks.
pub fn quoted(message: &str) -> impl Iterator<Item = &str> {
    message.split('`').skip(1).step_by(2)
}

/// Reads a text of keys and values, such as `rank=1,delay=60us`, as a table of a scenario file.
pub fn pairs<T: DeserializeOwned>(text: &str, example: &str) -> Result<T, String> {
    let mut table = Table::new();
    for pair in text.split(',') {
        let wrong =
            || format!("`{pair}` is not of the form key=value; write for example `{example}`");
        let (key, word) = pair.split_once('=').ok_or_else(wrong)?;
        if table
            .insert(key.trim().into(), value(word.trim()))
            .is_some()
        {
            return Err(format!("`{}` is said twice in `{text}`", key.trim()));
        }
    }
    table.try_into().map_err(|error: toml::de::Error| {
        let what = error.to_string().trim_end().replace('\n', " ");
        let hint = hint(error.message());
        // The text comes first: a message that begins with "unknown field" is about a setting.
        format!("`{text}`: {what}; write for example `{example}`{hint}")
    })
}
