//! Streams and events of our own.

use std::sync::Arc;

use super::gpu::Device;
use crate::error::Result;

/// A stream, apart from those of the program and from the default stream.
///
/// Drop it when it is idle: it is kept until the process ends otherwise.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    handle: usize,
}

impl Stream {
    /// A stream of `device`, whose context is current.
    pub(super) fn new(device: &Arc<Device>) -> Result<Stream> {
        let driver = device.driver();
        let handle = driver.create_stream(driver.highest_priority()?)?;
        device.add_stream(handle);
        Ok(Stream {
            device: device.clone(),
            handle,
        })
    }

    /// The driver's handle, for bindings that make the program's library use this stream.
    pub fn handle(&self) -> usize {
        self.handle
    }

    fn destroy(&self) -> Result<()> {
        let _pushed = self.device.push()?;
        let driver = self.device.driver();
        // After an error of the context nothing runs any more.
        if !driver.is_idle(self.handle).unwrap_or(true) {
            log::warn!(
                target: "ringfold::device",
                "a stream of device {} is kept, because it has work",
                self.device.ordinal()
            );
            self.device.keep();
            return Ok(());
        }
        driver.destroy_stream(self.handle)?;
        self.device.remove_stream(self.handle);
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log::debug!(target: "ringfold::device", "{error}");
        }
    }
}

/// An event: a mark in one stream that others wait for. Its device keeps it to be used again.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    handle: usize,
}

impl Event {
    /// An event of `device`, whose context is current.
    pub(super) fn new(device: &Arc<Device>) -> Result<Event> {
        Ok(Event {
            handle: device.take_event()?,
            device: device.clone(),
        })
    }

    /// The driver's handle.
    pub(super) fn handle(&self) -> usize {
        self.handle
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.device.give_event(self.handle);
    }
}
