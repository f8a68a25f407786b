//! Registered memory of the Python module: new memory with the buffer protocol, and the
//! registration of existing memory.

use std::ffi::c_int;
use std::sync::Mutex;

use pyo3::ffi::{self, Py_ssize_t};
use pyo3::prelude::*;
use ringfold::internals::sync::lock;
use ringfold::{Region, Registered, Registration as Core};

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::signals::Signals;

/// Memory of `Communicator.alloc`, as bytes. Any view of the memory keeps it alive.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct Memory {
    registered: Connection<Registered>,
}

impl Memory {
    pub fn new(registered: Registered) -> Memory {
        Memory {
            registered: Connection::new(registered),
        }
    }
}

#[pymethods]
impl Memory {
    /// Whether the peers can access the memory.
    #[getter]
    fn shared(&self) -> bool {
        self.registered.is_shared()
    }

    /// Exports the bytes.
    ///
    /// # Safety
    /// `view` is Python's, to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Memory>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let region: Region = slf.get().registered.region();
        let bytes = region.bytes() as Py_ssize_t;
        // SAFETY: `view` is Python's; the bytes live as long as `slf`, which the view holds, and do
        // not move.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), region.address().cast(), bytes, 0, flags)
        };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// A registration, and the object whose memory is registered; the object cannot be resized until
/// the registration ends.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct Registration {
    is_shared: bool,
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    // Declared first, so dropped first: the memory outlives its registration.
    core: Connection<Core>,
    _buffer: Py<Buffer>,
}

impl Registration {
    pub fn new(core: Core, buffer: Py<Buffer>) -> Registration {
        Registration {
            is_shared: core.is_shared(),
            open: Mutex::new(Some(Open {
                core: Connection::new(core),
                _buffer: buffer,
            })),
        }
    }
}

#[pymethods]
impl Registration {
    /// Whether the peers can access the memory.
    #[getter]
    fn shared(&self) -> bool {
        self.is_shared
    }

    /// Whether the registration has ended.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.open).is_none()
    }

    /// Waits for this rank's calls in progress, and ends the registration. May be repeated.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = lock(&self.open).take();
        // Ending waits without the GIL, and may run Python code, so the lock is not held.
        let Some(Open { core, _buffer }) = open else {
            return Ok(());
        };
        let Some(core) = core.into_ours() else {
            return Ok(());
        };
        let mut signals = Signals::default();
        let outcome = py.detach(|| core.end_with(&mut || signals.look()));
        // The calls' errors are reported to their callers.
        let _ = signals.finish(py, outcome)?;
        Ok(())
    }
}
