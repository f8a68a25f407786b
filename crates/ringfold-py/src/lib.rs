//! The Python module `ringfold._native`: the basis of the package `ringfold`.
//!
//! Objects come in through `Buffer`, calls go out through `Communicator` and `Work`; shapes,
//! outputs and keyword arguments are the Python package's responsibility. No wait holds the GIL,
//! and every wait checks signals, so that Ctrl-C works. Nothing here is part of the public Python
//! API.

mod buffer;
mod callbacks;
mod command;
mod communicator;
mod connection;
mod diagnosis;
mod dlpack;
mod exceptions;
mod lane;
mod layout;
mod meeting;
mod memory;
mod request;
mod signals;
mod sources;
mod work;

use pyo3::prelude::*;

use buffer::Buffer;
use communicator::Communicator;
use lane::{DeviceRequest, DeviceWork, Lane};
use meeting::{Meeting, derived_key, host_id, launch};
use memory::{Memory, Registration};
use request::Request;
use work::Work;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    ringfold_tuner_host::register();
    module.add_class::<Buffer>()?;
    module.add_class::<Communicator>()?;
    module.add_class::<DeviceRequest>()?;
    module.add_class::<DeviceWork>()?;
    module.add_class::<Lane>()?;
    module.add_class::<Meeting>()?;
    module.add_class::<Memory>()?;
    module.add_class::<Registration>()?;
    module.add_class::<Request>()?;
    module.add_class::<Work>()?;
    module.add_function(wrap_pyfunction!(derived_key, module)?)?;
    module.add_function(wrap_pyfunction!(host_id, module)?)?;
    module.add_function(wrap_pyfunction!(launch, module)?)?;
    module.add_function(wrap_pyfunction!(command::command, module)?)?;
    callbacks::prepare_exit(module)?;
    module.add_function(wrap_pyfunction!(diagnosis::diagnosis, module)?)?;
    module.add_function(wrap_pyfunction!(diagnosis::registers_buckets, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
