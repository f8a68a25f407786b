//! Settings of the PyTorch backend from the environment.

use std::time::Duration;

use pyo3::prelude::*;
use ringfold::env::Environment;

use crate::exceptions::exception;

/// Default number of calls in a process' flight record, the same as torch's.
const FLIGHT_RECORDS: usize = 2000;
/// Default time after which a call in progress is reported as stuck: longer than ranks usually
/// compute alone, for example to save a small checkpoint.
const STALL: Duration = Duration::from_secs(60);

/// The size of the flight record, whether it has frames, the file name prefix of dumps, the signal
/// that requests one, the seconds after which a call is reported as stuck, or 0, and whether the
/// failure of a group ends the process.
type Settings = (usize, bool, Option<String>, Option<String>, f64, bool);

/// Returns whether `ringfold.torch` registers gradient buckets automatically.
#[pyfunction]
pub fn registers_buckets() -> PyResult<bool> {
    let found = Environment::read().map_err(exception)?;
    Ok(found.torch_buckets.unwrap_or(true))
}

/// Returns the backend of torch that ringfold replaces, if any.
#[pyfunction]
pub fn replaced_backend() -> PyResult<Option<String>> {
    Ok(Environment::read().map_err(exception)?.torch_replace)
}

/// Returns the settings for the records and reports of `ringfold.torch`.
#[pyfunction]
pub fn diagnosis() -> PyResult<Settings> {
    let found = Environment::read().map_err(exception)?;
    let records = found.flight_records.or(found.torch_flight_records);
    Ok((
        records.unwrap_or(FLIGHT_RECORDS),
        found.flight_frames.unwrap_or(false),
        found.flight_dump,
        found.flight_signal,
        found.stall.unwrap_or(STALL).as_secs_f64(),
        found.torch_ends_process.unwrap_or(false),
    ))
}
