//! The Python module `ringfold._native`.
use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
