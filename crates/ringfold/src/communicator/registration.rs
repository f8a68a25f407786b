//! Memory of the user's that is registered for a while: the guards that
//! [`Communicator::register`](crate::Communicator::register) gives.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use super::driver::{Driver, OnWait};
use crate::element::Element;
use crate::error::Result;
use crate::memory::{Hold, Own};

/// A registration of memory that was there before. Dropping it ends the registration, on this rank
/// alone: it waits for this rank's calls under way on the communicator, then moves the pages back.
/// The memory is the user's own again, and what a late peer might write goes elsewhere.
///
/// It may be dropped before or after its communicator.
#[derive(Debug)]
pub struct Registration {
    /// What the network has of the memory. Taken on drop, before the pages are moved.
    hold: Option<Hold>,
    /// `None` where there is no rank to share with. Taken on drop.
    own: Option<Arc<Own>>,
    sizes: Vec<usize>,
    driver: Weak<Driver>,
    /// The process that made it: a forked child is another.
    process: u32,
}

impl Registration {
    pub(super) fn new(
        own: Option<Arc<Own>>,
        sizes: Vec<usize>,
        driver: &Arc<Driver>,
        hold: Option<Hold>,
    ) -> Self {
        Registration {
            hold,
            own,
            sizes,
            driver: Arc::downgrade(driver),
            process: std::process::id(),
        }
    }

    /// What each rank registers, in bytes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Whether the peers can reach the memory. Otherwise nothing was done to it.
    pub fn is_shared(&self) -> bool {
        self.own.is_some()
    }
}

impl Registration {
    /// Ends the registration as dropping it does, and calls `on_wait` every 20 to 40 ms while it
    /// waits for calls. When `on_wait` fails, the communicator is aborted on all ranks, and the
    /// registration has ended all the same.
    pub fn end_with(mut self, on_wait: OnWait<'_>) -> Result<()> {
        self.end(on_wait)
    }

    fn end(&mut self, on_wait: OnWait<'_>) -> Result<()> {
        let (own, hold) = (self.own.take(), self.hold.take());
        if own.is_none() && hold.is_none() {
            return Ok(());
        }
        if self.process != std::process::id() {
            // A forked child has neither the memory nor those who would end its calls.
            std::mem::forget(self.driver.upgrade());
            return Ok(());
        }
        let driver = self.driver.upgrade();
        // After an error no call uses the memory.
        let finished = driver.map_or(Ok(()), |driver| driver.finish(on_wait));
        drop(hold);
        drop(own);
        finished
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The threads that wait for the calls get their errors.
        let _ = self.end(&mut || Ok(()));
    }
}

/// A slice that is registered as long as this value lives. It derefs to the slice, which is
/// borrowed until then.
///
/// Leaking it leaks the registration. The kernel (6.11 or newer) is asked in every call whether the
/// memory is still what was registered; with an older one it must not be leaked.
#[derive(Debug)]
pub struct RegisteredMut<'a, T: Element> {
    slice: &'a mut [T],
    registration: Registration,
}

impl<'a, T: Element> RegisteredMut<'a, T> {
    pub(super) fn new(slice: &'a mut [T], registration: Registration) -> Self {
        RegisteredMut {
            slice,
            registration,
        }
    }

    /// The registration by itself.
    pub fn registration(&self) -> &Registration {
        &self.registration
    }
}

impl<T: Element> Deref for RegisteredMut<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.slice
    }
}

impl<T: Element> DerefMut for RegisteredMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.slice
    }
}
