//! Names, sizes and times as users write them, alike in all commands.

use std::time::Duration;

use ringfold::{Collective, DType, Method, Op};

use crate::launch::MAX_RANKS;

/// One value, or all there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection<T> {
    All,
    One(T),
}

impl<T: Copy> Selection<T> {
    fn read<E>(text: &str, one: impl FnOnce(&str) -> Result<T, E>) -> Result<Selection<T>, E> {
        match text {
            "all" => Ok(Selection::All),
            _ => one(text).map(Selection::One),
        }
    }

    /// The values that are meant, of `all`.
    pub fn among(self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        match self {
            Selection::All => all.into_iter().collect(),
            Selection::One(one) => vec![one],
        }
    }
}

/// An operation without a factor, which differs between ranks.
pub type OpName = &'static str;

/// A time: `10` and `2.5s` are seconds, `500ms` milliseconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, seconds) = if let Some(number) = text.strip_suffix("ms") {
        (number, 1e-3)
    } else {
        (text.strip_suffix('s').unwrap_or(text), 1.0)
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * seconds).ok())
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "not a time; write for example 10, 2.5s or 500ms".into())
}

/// A collective's own name, with hyphens, without separators, or as nccl-tests calls its program.
pub fn parse_collective(text: &str) -> Result<Collective, ringfold::Error> {
    let name = text.to_ascii_lowercase().replace('-', "_");
    let name = name.strip_suffix("_perf").unwrap_or(&name);
    let bare = |name: &str| name.replace('_', "");
    let alias = match bare(name).as_str() {
        "bcast" => "broadcast",
        "all2all" => "all_to_all",
        _ => name,
    };
    match Collective::ALL
        .iter()
        .find(|c| bare(c.name()) == bare(alias))
    {
        Some(&collective) => Ok(collective),
        None => Ok(text.parse()?),
    }
}

/// An algorithm's name, also with hyphens.
pub fn parse_algorithm(text: &str) -> Result<Method, ringfold::Error> {
    Ok(text.replace('-', "_").parse()?)
}

pub fn parse_op(text: &str) -> Result<Selection<OpName>, ringfold::Error> {
    Selection::read(text, |text| {
        Ok(text.replace('-', "_").parse::<Op>()?.name())
    })
}

pub fn parse_dtype(text: &str) -> Result<Selection<DType>, ringfold::Error> {
    Selection::read(text, parse_one_dtype)
}

fn parse_one_dtype(text: &str) -> Result<DType, ringfold::Error> {
    let name = match text {
        "char" => "int8",
        "int" => "int32",
        "half" | "f16" => "float16",
        "bf16" => "bfloat16",
        "float" | "f32" => "float32",
        "double" | "f64" => "float64",
        "fp8_e4m3" | "f8e4m3" => "float8_e4m3",
        "fp8_e5m2" | "f8e5m2" => "float8_e5m2",
        other => other,
    };
    Ok(name.parse()?)
}

pub fn parse_root(text: &str) -> Result<Selection<usize>, String> {
    Selection::read(text, str::parse).map_err(|_| "not a rank; write a number or `all`".into())
}

/// A number of ranks to start on this host.
pub fn parse_ranks(text: &str) -> Result<usize, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1..=MAX_RANKS).contains(number));
    number.ok_or_else(|| format!("not a number of ranks; write 1 to {MAX_RANKS}"))
}

/// A number of anything.
pub fn parse_count(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "not a whole number; write for example 4".into())
}

/// A number of bytes, with a binary suffix: `8`, `64K`, `1.5M`, `2G`, `1MiB`.
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

/// `1.5` times `1 << shift`, when that is a whole number that is not too large to be exact.
fn fraction_of_bytes(digits: &str, shift: u32) -> Option<u64> {
    let plain = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let bytes = digits.parse::<f64>().ok().filter(|_| plain)? * (1u64 << shift) as f64;
    (bytes.fract() == 0.0 && bytes < (1u64 << 53) as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_unless_they_say_otherwise() {
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("2.5s"), Ok(Duration::from_millis(2500)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "x", "inf", "1h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn collectives_have_the_names_people_type() {
        for (text, collective) in [
            ("all_reduce", Collective::AllReduce),
            ("all-reduce", Collective::AllReduce),
            ("allreduce", Collective::AllReduce),
            ("alltoall_perf", Collective::AllToAll),
            ("all2all", Collective::AllToAll),
            ("bcast", Collective::Broadcast),
            ("send-recv", Collective::SendRecv),
            ("reduce_scatter_perf", Collective::ReduceScatter),
        ] {
            assert_eq!(parse_collective(text).unwrap(), collective, "{text}");
        }
        assert!(parse_collective("hypercube").is_err());
    }

    #[test]
    fn sizes_are_read_with_binary_suffixes() {
        assert_eq!(parse_bytes("8"), Ok(8));
        assert_eq!(parse_bytes("64K"), Ok(65536));
        assert_eq!(parse_bytes("64k"), Ok(65536));
        assert_eq!(parse_bytes("1.5M"), Ok(1_572_864));
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes("0"), Ok(0));
    }

    #[test]
    fn a_wrong_unit_is_shown_as_it_was_written() {
        assert!(parse_bytes("1X").unwrap_err().contains("`X`"));
    }

    #[test]
    fn only_numbers_of_ranks_are_taken() {
        assert_eq!(parse_ranks("8"), Ok(8));
        for text in ["two", "0", "-1", "1025", ""] {
            assert!(
                parse_ranks(text).unwrap_err().contains("1 to 1024"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in [
            "",
            "K",
            "-1",
            "1T",
            "0.3K",
            "1e3",
            "inf",
            "nan",
            "18446744073709551615K",
            "1 K",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
