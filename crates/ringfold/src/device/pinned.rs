//! Pinned host memory: what GPUs may access.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::gpu::Device;
use crate::error::{Error, Result};
use crate::region::Region;

/// A part of pinned memory: the host's view and the device's address of the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct PinnedRegion {
    region: Region,
    device_address: usize,
}

impl PinnedRegion {
    /// The bytes as the host accesses them.
    pub fn region(self) -> Region {
        self.region
    }

    /// The device's address of the first byte.
    pub fn device_address(self) -> usize {
        self.device_address
    }

    /// The length in bytes.
    pub fn bytes(self) -> usize {
        self.region.bytes()
    }

    /// Bytes `range` of this region; panics when they are not inside it.
    pub fn part(self, range: Range<usize>) -> PinnedRegion {
        PinnedRegion {
            device_address: self.device_address + range.start,
            region: self.region.part(range),
        }
    }
}

/// Host memory that is pinned as long as this lives.
///
/// Drop it when the streams of its device are idle. Otherwise it stays pinned until the process
/// ends, and its owner is kept, because a GPU may still access it.
#[derive(Debug)]
pub struct Pin {
    device: Arc<Device>,
    whole: PinnedRegion,
    /// What the memory belongs to; nothing once it is unpinned.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl Pin {
    /// Pins `memory`. The context is current.
    pub(super) fn new(
        device: &Arc<Device>,
        memory: Region,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Pin> {
        device.driver().register(memory)?;
        // From here on a failure unpins it.
        let mut pin = Pin {
            device: device.clone(),
            whole: PinnedRegion {
                region: memory,
                device_address: 0,
            },
            owner: Some(owner),
        };
        pin.whole.device_address = device.driver().device_pointer(memory)?;
        Ok(pin)
    }

    /// All of it.
    pub fn whole(&self) -> PinnedRegion {
        self.whole
    }

    /// Unpins it. An error if it stays pinned.
    pub fn release(mut self) -> Result<()> {
        self.unpin()
    }

    fn unpin(&mut self) -> Result<()> {
        let Some(owner) = self.owner.take() else {
            return Ok(());
        };
        let unpinned = self.try_unpin();
        if unpinned.is_err() {
            // A GPU may still access the memory, so it must not go.
            std::mem::forget(owner);
            self.device.keep();
        }
        unpinned
    }

    fn try_unpin(&self) -> Result<()> {
        let _pushed = self.device.push()?;
        if !self.device.is_idle() {
            return Err(Error::System {
                what: format!(
                    "{} bytes stay pinned: device {} may still access them",
                    self.whole.bytes(),
                    self.device.ordinal()
                ),
                kind: io::ErrorKind::ResourceBusy,
            });
        }
        self.device.driver().unregister(self.whole.region)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Err(error) = self.unpin() {
            log::warn!(target: "ringfold::device", "{error}");
        }
    }
}
