//! Settings of the PyTorch backend from the environment.

use pyo3::prelude::*;
use ringfold::env::Diagnosis;

use crate::exceptions::exception;

/// The size of the flight record, whether it has frames, the file name prefix of dumps, the signal
/// that requests one, the seconds after which a call is reported as stuck, or 0, and whether the
/// failure of a group ends the process.
type Settings = (usize, bool, Option<String>, Option<String>, f64, bool);

/// Returns whether `ringfold.torch` registers gradient buckets automatically.
#[pyfunction]
pub fn registers_buckets() -> PyResult<bool> {
    ringfold::env::registers_buckets().map_err(exception)
}

/// Returns the settings for the records and reports of `ringfold.torch`.
#[pyfunction]
pub fn diagnosis() -> PyResult<Settings> {
    let found = Diagnosis::read().map_err(exception)?;
    let stall_s = found.stall.map_or(0.0, |stall| stall.as_secs_f64());
    Ok((
        found.records,
        found.has_frames,
        found.dump,
        found.signal,
        stall_s,
        found.ends_process,
    ))
}
