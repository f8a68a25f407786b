//! The Python module `ringfold._native`: the basis of the package `ringfold`.
//!
//! Python objects enter through `Buffer`, and calls are made through `Communicator` and `Work`;
//! shapes, outputs and keyword arguments are the Python package's responsibility. No wait holds the
//! GIL, and every wait checks signals, so that Ctrl-C works. Nothing here is part of the public
//! Python API.
//!
//! Nothing is decided here: the binding has no logic that a Rust user would miss.

mod attach;
mod buffer;
mod callbacks;
mod calls;
mod command;
mod communicator;
mod connection;
mod diagnosis;
mod dlpack;
mod exceptions;
mod flight;
mod fold;
mod lane;
mod layout;
mod memory;
mod rendezvous;
mod request;
mod shortcut;
mod shortest;
mod signals;
mod sources;
mod usual;
mod work;

use pyo3::exceptions::PyImportError;
use pyo3::ffi::{PyInterpreterState_Get, PyInterpreterState_GetID};
use pyo3::prelude::*;

use buffer::Buffer;
use calls::Calls;
use communicator::Communicator;
use flight::{Counter, FlightRing};
use lane::{DeviceRequest, DeviceWork, Lane};
use memory::{Memory, Registration};
use rendezvous::{RendezvousListener, derived_key, host_id, launch};
use request::Request;
use shortcut::AllReduceShortcut;
use shortest::ShortestSum;
use work::Work;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    if !is_main_interpreter() {
        return Err(PyImportError::new_err(
            "ringfold works in the main interpreter only, because its threads and exit are those \
             of the process; import it there, or in a process of its own",
        ));
    }
    attach::prepare(module.py());
    ringfold_tuner_host::register();
    module.add_class::<Buffer>()?;
    module.add_class::<AllReduceShortcut>()?;
    module.add_class::<Calls>()?;
    module.add_class::<Communicator>()?;
    module.add_class::<Counter>()?;
    module.add_class::<DeviceRequest>()?;
    module.add_class::<DeviceWork>()?;
    module.add_class::<FlightRing>()?;
    module.add_class::<Lane>()?;
    module.add_class::<RendezvousListener>()?;
    module.add_class::<Memory>()?;
    module.add_class::<Registration>()?;
    module.add_class::<Request>()?;
    module.add_class::<ShortestSum>()?;
    module.add_class::<Work>()?;
    module.add_function(wrap_pyfunction!(derived_key, module)?)?;
    module.add_function(wrap_pyfunction!(host_id, module)?)?;
    module.add_function(wrap_pyfunction!(launch, module)?)?;
    module.add_function(wrap_pyfunction!(command::command, module)?)?;
    module.add_function(wrap_pyfunction!(fold::fold, module)?)?;
    module.add_function(wrap_pyfunction!(callbacks::finish_callbacks, module)?)?;
    module.add_function(wrap_pyfunction!(diagnosis::diagnosis, module)?)?;
    module.add_function(wrap_pyfunction!(diagnosis::registers_buckets, module)?)?;
    module.add_function(wrap_pyfunction!(diagnosis::replaced_backend, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}

/// Returns whether the process' own interpreter runs, not one that was made in the process later.
fn is_main_interpreter() -> bool {
    // SAFETY: this thread is attached to an interpreter, which is importing this module.
    unsafe { PyInterpreterState_GetID(PyInterpreterState_Get()) == 0 }
}
