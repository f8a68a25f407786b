//! Settings of the PyTorch backend: diagnosis (the flight record, and the warning about stuck
//! calls), and whether gradient buckets are registered.
//!
//! The core only reads these settings; `ringfold.torch` uses them.

use std::time::Duration;

use super::{Lookup, count, parse, process, switch};
use crate::error::Result;

/// Default number of calls in a process' flight record, the same as torch's.
pub const FLIGHT_RECORDS: usize = 2000;
/// Default time after which a call in progress is reported as stuck: longer than ranks usually
/// compute alone, for example to save a small checkpoint.
pub const STALL: Duration = Duration::from_secs(60);

/// The settings for recording and reporting calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Number of calls in the flight record.
    pub records: usize,
    /// Whether each recorded call has its source location.
    pub has_frames: bool,
    /// File name prefix of the flight record that is written automatically after a fatal error.
    pub dump: Option<String>,
    /// The signal on which the process writes the record.
    pub signal: Option<String>,
    /// Time after which a call is reported as stuck; `None` for never.
    pub stall: Option<Duration>,
    /// Whether the failure of a group ends the process.
    pub ends_process: bool,
}

impl Diagnosis {
    /// Reads this process' environment.
    pub fn read() -> Result<Diagnosis> {
        Diagnosis::from_lookup(&process)
    }

    /// Reads the variables through `lookup`.
    pub fn from_lookup(lookup: Lookup<'_>) -> Result<Diagnosis> {
        let records = match parse(lookup, "RINGFOLD_FR_BUFFER_SIZE", count)? {
            Some(records) => Some(records),
            None => parse(lookup, "TORCH_FR_BUFFER_SIZE", count)?,
        };
        let stall = parse(lookup, "RINGFOLD_STALL_SECONDS", seconds)?.unwrap_or(STALL);
        Ok(Diagnosis {
            records: records.unwrap_or(FLIGHT_RECORDS),
            has_frames: parse(lookup, "RINGFOLD_FR_FRAMES", switch)?.unwrap_or(false),
            dump: lookup("RINGFOLD_FR_DUMP"),
            signal: lookup("RINGFOLD_FR_SIGNAL"),
            stall: (!stall.is_zero()).then_some(stall),
            ends_process: parse(lookup, "RINGFOLD_TORCH_ASYNC_ERRORS", ends_process)?
                .unwrap_or(false),
        })
    }
}

/// Whether the PyTorch backend registers gradient buckets automatically, by this process'
/// environment.
pub fn registers_buckets() -> Result<bool> {
    Ok(parse(&process, "RINGFOLD_TORCH_BUCKETS", switch)?.unwrap_or(true))
}

fn ends_process(text: &str) -> Result<bool, String> {
    match text.trim() {
        "raise" => Ok(false),
        "exit" => Ok(true),
        _ => Err("must be raise or exit".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.trim().parse().ok();
    number
        .and_then(|number| Duration::try_from_secs_f64(number).ok())
        .ok_or_else(|| "must be seconds, 0 or more".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Diagnosis> {
        Diagnosis::from_lookup(&|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn an_empty_environment_records_and_warns_but_writes_nothing() {
        let found = read(&[]).unwrap();
        assert_eq!((found.records, found.stall), (FLIGHT_RECORDS, Some(STALL)));
        assert_eq!(
            (found.has_frames, found.dump, found.signal),
            (false, None, None)
        );
        assert!(!found.ends_process);
    }

    #[test]
    fn a_failure_ends_the_process_only_where_that_is_said() {
        let errors = |text| read(&[("RINGFOLD_TORCH_ASYNC_ERRORS", text)]);
        assert!(!errors("raise").unwrap().ends_process);
        assert!(errors("exit").unwrap().ends_process);
        let error = errors("3").unwrap_err().to_string();
        assert!(error.contains("RINGFOLD_TORCH_ASYNC_ERRORS"), "{error}");
    }

    #[test]
    fn torch_says_how_much_is_recorded_where_ringfold_does_not() {
        let torch = ("TORCH_FR_BUFFER_SIZE", "7");
        assert_eq!(read(&[torch]).unwrap().records, 7);
        let both = [torch, ("RINGFOLD_FR_BUFFER_SIZE", "0")];
        assert_eq!(read(&both).unwrap().records, 0);
    }

    #[test]
    fn no_seconds_are_no_warning_and_parts_of_seconds_are_some() {
        let stall = |text| read(&[("RINGFOLD_STALL_SECONDS", text)]);
        assert_eq!(stall("0").unwrap().stall, None);
        assert_eq!(
            stall("0.5").unwrap().stall,
            Some(Duration::from_millis(500))
        );
        for text in ["-1", "nan", "soon"] {
            let error = stall(text).unwrap_err().to_string();
            assert!(error.contains("RINGFOLD_STALL_SECONDS"), "{error}");
        }
    }
}
