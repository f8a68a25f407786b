//! A device with its primary context.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::attributes::Attributes;
use super::cuda::{Driver, Outer};
use crate::error::{Error, Result};
use crate::memory::{ForkGuard, GuardStage};
use crate::sync::lock;

/// Where `sys` is.
const ROOT: &str = "/";

/// A device of this process. Its primary context is retained as long as this lives.
#[derive(Debug)]
pub struct Device {
    driver: &'static Driver,
    attributes: Attributes,
    context: usize,
    /// The handles of all streams that were made here and not destroyed.
    streams: Mutex<Vec<usize>>,
    /// Those of events that nothing uses now.
    events: Mutex<Vec<usize>>,
    /// A forked child has neither the context nor the driver's threads.
    fork_guard: ForkGuard,
}

impl Device {
    /// The device `ordinal` of `driver`.
    pub fn open(driver: &'static Driver, ordinal: usize) -> Result<Arc<Device>> {
        let count = driver.devices()?;
        if ordinal >= count {
            return Err(Error::InvalidArgument(format!(
                "there is no device {ordinal}: this process sees {count}"
            )));
        }
        let attributes = Attributes::read(driver, ordinal, Path::new(ROOT))?;
        if !attributes.pins_memory {
            return Err(Error::Unsupported(format!(
                "device {ordinal} cannot access pinned host memory"
            )));
        }
        Ok(Arc::new(Device {
            driver,
            context: driver.retain(ordinal as c_int)?,
            attributes,
            streams: Mutex::default(),
            events: Mutex::default(),
            fork_guard: ForkGuard::new(),
        }))
    }

    /// What it is, and where.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Its number among those that this process sees.
    pub fn ordinal(&self) -> usize {
        self.attributes.ordinal
    }

    /// Makes its context this thread's current one until the value is dropped.
    pub(super) fn push(&self) -> Result<Pushed<'_>> {
        if self.fork_guard.stage() == GuardStage::Forked {
            let text = "a device in a forked child: its driver does not work there; use a process \
                        that is started instead";
            return Err(Error::Unsupported(text.into()));
        }
        Ok(Pushed {
            outer: self.driver.enter(self.context)?,
            device: self,
            thread: PhantomData,
        })
    }

    /// The driver.
    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Notes a stream that was made.
    pub(super) fn add_stream(&self, handle: usize) {
        lock(&self.streams).push(handle);
    }

    /// Forgets a stream that was destroyed.
    pub(super) fn remove_stream(&self, handle: usize) {
        lock(&self.streams).retain(|each| *each != handle);
    }

    /// An event that nothing uses. The context is current.
    pub(super) fn take_event(&self) -> Result<usize> {
        let kept = lock(&self.events).pop();
        kept.map_or_else(|| self.driver.create_event(), Ok)
    }

    /// Keeps an event to be used again. What waits for its last record still does.
    pub(super) fn give_event(&self, handle: usize) {
        lock(&self.events).push(handle);
    }

    /// Keeps the context until the process ends, because something is kept that belongs to it.
    pub(super) fn keep(self: &Arc<Device>) {
        std::mem::forget(self.clone());
    }

    /// Whether no stream that was made here has work. The context is current.
    pub(super) fn is_idle(&self) -> bool {
        let streams = lock(&self.streams);
        let mut streams = streams.iter();
        // After an error of the context nothing runs any more.
        streams.all(|stream| self.driver.is_idle(*stream).unwrap_or(true))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.fork_guard.stage() == GuardStage::Forked {
            return;
        }
        let events = self.events.get_mut();
        let events = std::mem::take(events.unwrap_or_else(|poisoned| poisoned.into_inner()));
        let destroyed = self.push().and_then(|_pushed| {
            let mut events = events.into_iter();
            events.try_for_each(|event| self.driver.destroy_event(event))
        });
        let released = self.driver.release(self.ordinal() as c_int);
        if let Err(error) = destroyed.and(released) {
            log::debug!(target: "ringfold::device", "{error}");
        }
    }
}

/// The device's context as this thread's current one. What was current before is again when this is
/// dropped.
#[derive(Debug)]
pub(super) struct Pushed<'a> {
    device: &'a Device,
    outer: Outer,
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Pushed<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.device.driver.leave(&self.outer) {
            log::debug!(target: "ringfold::device", "{error}");
        }
    }
}
