//! Which device a thread's calls are about.

use std::ffi::{CStr, c_int};

use super::platform::Platform;
use super::table::{Contexts, DeviceOfThread};
use crate::sys::library::Library;

/// The functions that say it.
#[derive(Debug)]
pub enum Selection {
    /// CUDA: the context on top of the thread's stack.
    Contexts(Contexts),
    /// HIP: the thread's device. A context is that device's number.
    Device(DeviceOfThread),
}

/// What was selected before; to be selected again.
#[derive(Debug)]
pub struct Outer(pub Option<c_int>);

impl Selection {
    /// Those of `platform`; the symbol that is missing, if one is.
    pub fn load(library: &Library, platform: Platform) -> Result<Selection, &'static CStr> {
        Ok(match platform {
            Platform::Cuda => Selection::Contexts(Contexts::load(library, platform)?),
            Platform::Hip => Selection::Device(DeviceOfThread::load(library, platform)?),
        })
    }
}
