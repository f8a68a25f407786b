//! What the environment says to the PyTorch backend.

use pyo3::prelude::*;
use ringfold::env::Diagnosis;

use crate::exceptions::exception;

/// The size of the flight record, whether it has frames, the file name prefix of dumps, the signal
/// that requests one, the seconds after which a call is reported as stuck, or 0, and whether the
/// failure of a group ends the process.
type Settings = (usize, bool, Option<String>, Option<String>, f64, bool);

/// Whether `ringfold.torch` registers gradient buckets by itself.
#[pyfunction]
pub fn registers_buckets() -> PyResult<bool> {
    ringfold::env::registers_buckets().map_err(exception)
}

/// What `ringfold.torch` is to record and report.
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
