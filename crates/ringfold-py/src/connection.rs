//! Values whose drop communicates with threads and with other ranks.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use pyo3::prelude::*;
use ringfold::Error;

use crate::attach::attached;
use crate::exceptions::exception;

/// A value that knows, at little cost, whether a fork has copied it into another process.
pub trait Origin {
    /// Returns whether this process was forked from the process that made the value.
    fn is_forked(&self) -> bool;
}

impl Origin for ringfold::Communicator {
    fn is_forked(&self) -> bool {
        self.is_forked()
    }
}

impl Origin for ringfold::Lane {
    fn is_forked(&self) -> bool {
        self.is_forked()
    }
}

/// A value that is dropped without the GIL, and never in a forked child: the child has none of the
/// threads that serve the value, and a goodbye from the child would be the parent's.
#[derive(Debug)]
pub struct Connection<T: Send> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T: Send> Connection<T> {
    pub fn new(value: T) -> Connection<T> {
        Connection {
            value: ManuallyDrop::new(value),
            process: std::process::id(),
        }
    }

    /// Returns whether this is still the process that made the value.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the value, unless this is a forked child.
    pub fn into_ours(self) -> Option<T> {
        let mut connection = ManuallyDrop::new(self);
        if !connection.is_ours() {
            return None;
        }
        // SAFETY: taken once; the connection, which would drop it, is not dropped.
        Some(unsafe { ManuallyDrop::take(&mut connection.value) })
    }
}

impl<T: Origin + Send> Connection<T> {
    /// Fails in a forked child. Costs one load, whereas to ask for the process' number is a system
    /// call.
    pub fn check(&self) -> PyResult<()> {
        if !self.is_forked() {
            return Ok(());
        }
        Err(forked_by(self.process))
    }
}

/// Returns the error of a child of `process`, which has made the communicator.
pub fn forked_by(process: u32) -> PyErr {
    exception(Error::Unsupported(format!(
        "the communicator belongs to process {process}, which forked this one; call \
         ringfold.init() here"
    )))
}

impl<T: Send> Deref for Connection<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Send> Drop for Connection<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        // SAFETY: dropped once, here, and not used afterwards.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        let mut value = Some(value);
        if attached(|py| py.detach(|| value = None)).is_none() {
            drop(value);
        }
    }
}
