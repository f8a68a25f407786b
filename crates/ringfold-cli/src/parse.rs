//! Parses names, sizes and times as users write them, alike for all commands.

use std::time::Duration;

use ringfold::internals::units;
pub use ringfold::internals::units::parse_bytes;
use ringfold::{Collective, DType, Method, Op};

use crate::launch::MAX_RANKS;

/// One value, or all values.
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

    /// Returns the selected values of `all`.
    pub fn among(self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        match self {
            Selection::All => all.into_iter().collect(),
            Selection::One(one) => vec![one],
        }
    }
}

/// Name of an operation, without its factor, which differs between ranks.
pub type OpName = &'static str;

/// Parses a time above 0, such as `500ms`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text).map_err(|error| error.to_string())?;
    (!time.is_zero())
        .then_some(time)
        .ok_or_else(|| "must be above 0".into())
}

/// Parses a time above 0: with a unit, or a number of seconds, as in nccl-tests.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(_) => parse_duration(&format!("{text}s")),
        Err(_) => parse_duration(text),
    }
}

/// Parses a collective's name: also with hyphens, unseparated, or as nccl-tests calls its program.
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

/// Parses an algorithm's name, also with hyphens.
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

/// Parses a number of ranks to start on this host.
pub fn parse_ranks(text: &str) -> Result<usize, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1..=MAX_RANKS).contains(number));
    number.ok_or_else(|| format!("not a number of ranks; write 1 to {MAX_RANKS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_unless_they_say_otherwise() {
        assert_eq!(parse_seconds("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_seconds("1000000"), Ok(Duration::from_secs(1_000_000)));
        assert_eq!(parse_seconds("2.5s"), Ok(Duration::from_millis(2500)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "x", "inf", "1h"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
        assert!(parse_duration("10").is_err());
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
    fn only_numbers_of_ranks_are_taken() {
        assert_eq!(parse_ranks("8"), Ok(8));
        for text in ["two", "0", "-1", "1025", ""] {
            assert!(
                parse_ranks(text).unwrap_err().contains("1 to 1024"),
                "{text}"
            );
        }
    }
}
