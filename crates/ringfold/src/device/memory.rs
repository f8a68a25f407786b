//! Device memory of our own.

use std::io;
use std::sync::Arc;

use super::gpu::Device;
use super::region::DeviceRegion;
use crate::error::{Error, Result};

/// Device memory. It is freed when this is dropped, which may wait until the program's streams are
/// idle. While our own have work, it is kept until the process ends instead.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Arc<Device>,
    address: usize,
    bytes: usize,
}

impl DeviceMemory {
    /// `bytes` bytes of `device`, whose context is current.
    pub(super) fn new(device: &Arc<Device>, bytes: usize) -> Result<DeviceMemory> {
        Ok(DeviceMemory {
            address: device.driver().allocate(bytes)?,
            device: device.clone(),
            bytes,
        })
    }

    /// All of it.
    ///
    /// # Safety
    /// As for [`DeviceRegion::new`]; it is allocated as long as this lives.
    pub unsafe fn region(&self) -> DeviceRegion {
        // SAFETY: the caller's promise.
        unsafe { DeviceRegion::new(self.device.ordinal(), self.address, self.bytes) }
    }

    fn free(&self) -> Result<()> {
        let _pushed = self.device.push()?;
        if !self.device.is_idle() {
            return Err(Error::System {
                what: format!("device {} may still access it", self.device.ordinal()),
                kind: io::ErrorKind::ResourceBusy,
            });
        }
        self.device.driver().free(self.address)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Err(error) = self.free() {
            log::warn!(target: "ringfold::device", "device memory is not freed: {error}");
            self.device.keep();
        }
    }
}
