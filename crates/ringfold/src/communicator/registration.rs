//! Guards of user memory that is registered for a while by
//! [`Communicator::register`](crate::Communicator::register).

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use super::driver::{EngineDriver, OnWait};
use crate::element::Element;
use crate::error::Result;
use crate::memory::{Hold, Own};

/// A registration of existing memory. Dropping it ends the registration, on this rank alone: it
/// waits for this rank's calls under way on the communicator, then moves the pages back. The memory
/// is private to the user again, and late writes of a peer go elsewhere.
///
/// A registration may be dropped before or after its communicator.
#[derive(Debug)]
pub struct Registration {
    /// The network's registration of the memory. Taken on drop, before the pages are moved.
    hold: Option<Hold>,
    /// This rank's shared part; `None` if no rank shares memory with it. Taken on drop.
    own: Option<Arc<Own>>,
    sizes: Vec<usize>,
    driver: Weak<EngineDriver>,
    /// The process that made the registration: a forked child is another.
    process: u32,
}

impl Registration {
    pub(super) fn new(
        own: Option<Arc<Own>>,
        sizes: Vec<usize>,
        driver: &Arc<EngineDriver>,
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

    /// Returns the number of bytes that each rank registers.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Whether the peers can access the memory. Otherwise the memory is unchanged.
    pub fn is_shared(&self) -> bool {
        self.own.is_some()
    }
}

impl Registration {
    /// Ends the registration like dropping it, and calls `on_wait` every 20 to 40 ms while it waits
    /// for calls. If `on_wait` fails, the communicator is aborted on all ranks, and the
    /// registration has ended nevertheless.
    pub fn end_with(mut self, on_wait: OnWait<'_>) -> Result<()> {
        self.end(on_wait)
    }

    fn end(&mut self, on_wait: OnWait<'_>) -> Result<()> {
        let (own, hold) = (self.own.take(), self.hold.take());
        if own.is_none() && hold.is_none() {
            return Ok(());
        }
        if self.process != std::process::id() {
            // A forked child has neither the memory nor the threads that would end its calls.
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

/// A slice that is registered while this value lives. The value dereferences to the slice, and
/// borrows the slice.
///
/// Leaking the value leaks the registration. Every call asks the kernel (6.11 or newer) whether the
/// memory is still the registered one; with an older kernel the value must not be leaked.
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

    /// Returns the registration.
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
