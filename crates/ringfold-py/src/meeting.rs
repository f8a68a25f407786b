//! Where rank 0 is met, seen from Python, and which processes share a host.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use ringfold::topology::HostId;

use crate::exceptions::{exception, invalid_argument};

/// Listeners at which rank 0 will be met; good for one `Communicator.connect`.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct Meeting {
    address: String,
    open: Mutex<Option<ringfold::Meeting>>,
}

impl Meeting {
    /// The listeners, to be used up.
    pub fn take(&self) -> PyResult<ringfold::Meeting> {
        let open = self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        open.ok_or_else(|| {
            invalid_argument("the meeting has been used already; open one for every communicator")
        })
    }
}

#[pymethods]
impl Meeting {
    /// Opens listeners on free ports of this host's addresses; first comes the one by which `toward` is reached.
    #[staticmethod]
    #[pyo3(signature = (toward=None))]
    fn open(py: Python<'_>, toward: Option<&str>) -> PyResult<Meeting> {
        let meeting = py
            .detach(|| ringfold::Meeting::open(toward))
            .map_err(exception)?;
        Ok(Meeting {
            address: meeting.address(),
            open: Mutex::new(Some(meeting)),
        })
    }

    /// Where the other ranks find it: candidates, separated by commas.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }
}

/// A text that is equal in two processes exactly if they would share memory.
#[pyfunction]
pub fn host_id() -> PyResult<String> {
    let id = HostId::here().map_err(exception)?;
    Ok(id
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}
