//! The `ringfold` command, for the script of that name that comes with the Python package.

use std::ffi::OsString;

use pyo3::prelude::*;
use ringfold_cli::Invocation;

/// Carries out the command line `arguments`; gives the exit status. `program` starts the command
/// again, for ranks: what comes before the arguments.
#[pyfunction]
pub fn command(py: Python<'_>, program: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    let invocation = Invocation { program, arguments };
    py.detach(|| ringfold_cli::main(invocation))
}
