//! Sizes, times and rates as people write them: `64K`, `5us`, `1.5ms`, `100Gbit/s`, `12.5GB/s`.

use std::time::Duration;

use crate::error::{Error, Result};
pub use crate::spelling::{near, nearest};

/// Units of time and their picoseconds.
const TIMES: [(&str, f64); 6] = [
    ("ps", 1.0),
    ("ns", 1e3),
    ("us", 1e6),
    ("µs", 1e6),
    ("ms", 1e9),
    ("s", 1e12),
];

/// Units of bandwidth and their bytes per second. Prefixes are powers of ten, as usual for
/// networks.
const RATES: [(&str, f64); 10] = [
    ("bit/s", 0.125),
    ("kbit/s", 0.125e3),
    ("Mbit/s", 0.125e6),
    ("Gbit/s", 0.125e9),
    ("Tbit/s", 0.125e12),
    ("B/s", 1.0),
    ("kB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
];

/// The longest valid time, about 42 hours.
const TIME_PS_MAX: f64 = 1.5e19 / 100.0;

/// Parses a time such as `20us` to picoseconds; a bare `0` needs no unit.
pub fn parse_time_ps(text: &str) -> Result<u64> {
    if text == "0" {
        return Ok(0);
    }
    let ps = quantity(text, "time", &TIMES)?.round();
    if ps > TIME_PS_MAX {
        return Err(invalid(format!("the time `{text}` is too long")));
    }
    Ok(ps as u64)
}

/// Parses a time such as `500ms`, of any length.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let seconds = quantity(text, "time", &TIMES)? / 1e12;
    let too_long = |_| invalid(format!("the time `{text}` is too long"));
    Duration::try_from_secs_f64(seconds).map_err(too_long)
}

/// Parses a rate such as `100Gbit/s` to picoseconds per byte, rounded to a whole number.
pub fn parse_rate_ps_per_byte(text: &str) -> Result<u64> {
    let bytes_per_s = quantity(text, "bandwidth", &RATES)?;
    let ps_per_byte = (1e12 / bytes_per_s).round();
    if !(1.0..=1e9).contains(&ps_per_byte) {
        return Err(invalid(format!(
            "the bandwidth `{text}` is not between 1 kB/s and 1 TB/s"
        )));
    }
    Ok(ps_per_byte as u64)
}

/// Parses a number that is not negative and a unit, and multiplies them.
fn quantity(text: &str, what: &str, units: &[(&'static str, f64)]) -> Result<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit = unit.trim();
    let Ok(number) = number.parse::<f64>() else {
        return Err(invalid(format!(
            "the {what} `{text}` does not begin with a number; write for example `5{}`",
            units[2].0
        )));
    };
    if unit.is_empty() {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        return Err(invalid(format!(
            "the {what} `{text}` has no unit; write for example `{text}{}` (units: {})",
            units[2].0,
            names.join(", ")
        )));
    }
    let factor = units.iter().find(|(name, _)| *name == unit);
    factor.map(|(_, factor)| number * factor).ok_or_else(|| {
        let near = nearest(unit, units.iter().map(|(name, _)| *name));
        invalid(format!(
            "unknown unit `{unit}` in the {what} `{text}`; did you mean `{near}`?"
        ))
    })
}

/// Parses a number of bytes with a binary suffix: `8`, `64K`, `1.5M`, `2GiB`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &text[digits.len()..];
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(format!("unknown unit `{suffix}`; one of K, M, G (binary)")),
    };
    let bytes = match digits.parse::<u64>() {
        Ok(number) => number.checked_mul(1 << shift),
        Err(_) => fraction_of_bytes(digits, shift),
    };
    bytes.ok_or_else(|| "not a size; write for example 8, 64K, 1M or 2G".into())
}

/// Returns `digits` times `1 << shift`, if the product is a whole number that is small enough to
/// be exact.
fn fraction_of_bytes(digits: &str, shift: u32) -> Option<u64> {
    let is_plain = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let bytes = digits.parse::<f64>().ok().filter(|_| is_plain)? * (1u64 << shift) as f64;
    (bytes.fract() == 0.0 && bytes < (1u64 << 53) as f64).then_some(bytes as u64)
}

/// Parses a number of bytes, 1 or more, in the grammar of [`parse_bytes`].
pub fn bytes(text: &str) -> Result<usize, String> {
    let number = usize::try_from(parse_bytes(text)?).ok();
    let number = number.filter(|number| *number > 0);
    number.ok_or_else(|| "must be 1 byte or more".into())
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_are_read_as_they_are_written() {
        let times = [
            ("0", 0),
            ("5us", 5_000_000),
            ("5µs", 5_000_000),
            ("1.5 ms", 1_500_000_000),
            ("250ns", 250_000),
            ("7ps", 7),
            ("2s", 2_000_000_000_000),
        ];
        for (text, ps) in times {
            assert_eq!(parse_time_ps(text).unwrap(), ps, "{text}");
        }
        for (text, ps) in [("100Gbit/s", 80), ("12.5GB/s", 80), ("1Tbit/s", 8)] {
            assert_eq!(parse_rate_ps_per_byte(text).unwrap(), ps, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_with_what_is_nearest() {
        let cases = [
            (parse_time_ps("5mus"), "`us`"),
            (parse_time_ps("us"), "begin with a number"),
            (parse_time_ps("5"), "has no unit; write for example `5us`"),
            (parse_time_ps("-5us"), "begin with a number"),
            (parse_time_ps("99999999999s"), "too long"),
            (parse_rate_ps_per_byte("100Gbits/s"), "`Gbit/s`"),
            (parse_rate_ps_per_byte("0B/s"), "not between"),
        ];
        for (result, due) in cases {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(due), "{text}");
        }
    }

    #[test]
    fn sizes_have_binary_suffixes() {
        let sizes = [
            ("0", 0),
            ("8", 8),
            ("64K", 65536),
            ("64k", 65536),
            ("1.5M", 1_572_864),
            ("2GiB", 2 << 30),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        assert!(parse_bytes("1X").unwrap_err().contains("`X`"));
        let wrong = [
            "",
            "K",
            "-1",
            "1T",
            "0.3K",
            "1e3",
            "inf",
            "nan",
            "18446744073709551615K",
        ];
        for text in wrong.into_iter().chain(["1 K"]) {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert!(bytes("0").is_err());
    }
}
