//! The `ringfold` command, for the script of that name in the Python package.

use std::ffi::OsString;

use pyo3::prelude::*;
use ringfold_cli::Invocation;

/// Runs the command line `arguments`; returns the exit status. `program` is the part of the command
/// line before the arguments, and starts the command again for ranks.
#[pyfunction]
pub fn command(py: Python<'_>, program: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    let invocation = Invocation { program, arguments };
    py.detach(|| ringfold_cli::main(invocation))
}
