//! The core's errors as Python exceptions: one class of `ringfold.errors` for each variant, with
//! its numbers as attributes.

use pyo3::prelude::*;
use pyo3::types::PyType;
use ringfold::Error;

/// Returns the exception that mirrors `error`.
pub fn exception(error: impl Into<Error>) -> PyErr {
    Python::attach(|py| build(py, &error.into()).unwrap_or_else(|failure| failure))
}

/// Returns an exception about the caller's arguments.
pub fn invalid_argument(text: impl Into<String>) -> PyErr {
    exception(Error::InvalidArgument(text.into()))
}

/// Returns an exception about an unsupported feature.
pub fn unsupported(text: impl Into<String>) -> PyErr {
    exception(Error::Unsupported(text.into()))
}

/// Returns the name of an error's class in `ringfold.errors`: that of the core and `Error`, behind
/// `Ringfold` if Python has a builtin of that name.
fn class_name(error: &Error) -> String {
    match error.class() {
        class @ ("System" | "Timeout") => format!("Ringfold{class}Error"),
        class => format!("{class}Error"),
    }
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = py
        .import("ringfold.errors")?
        .getattr(class_name(error))?
        .cast_into::<PyType>()?;
    let value = class.call1((error.to_string(),))?;
    match error {
        Error::PeerFailed { rank, reason, .. } | Error::Aborted { rank, reason } => {
            value.setattr("rank", rank)?;
            value.setattr("reason", reason)?;
        }
        Error::Timeout {
            waiting_for,
            after_ms,
            ..
        } => {
            value.setattr("waiting_for", waiting_for)?;
            value.setattr("after_ms", after_ms)?;
        }
        Error::Mismatch { ranks, calls, .. } => {
            let ([one, other], [ones, others]) = (ranks, &**calls);
            value.setattr("ranks", (one, other))?;
            value.setattr("calls", (ones, others))?;
        }
        Error::Corrupt { peer, .. } => value.setattr("peer", peer)?,
        _ => {}
    }
    Ok(PyErr::from_value(value))
}
