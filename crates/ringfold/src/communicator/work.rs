//! A call that is under way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::driver::{Driver, OnWait};
use super::forked;
use crate::error::Result;
use crate::memory::{Life, Stage};

/// The end of a call, for those who wait for it.
#[derive(Debug, Default)]
pub struct Completion {
    is_done: AtomicBool,
    result: Mutex<Option<Result<()>>>,
    arrived: Condvar,
}

impl Completion {
    /// The call is done.
    pub fn complete(&self, result: Result<()>) {
        let mut place = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        place.get_or_insert(result);
        // Pairs with the load in `result`.
        self.is_done.store(true, Ordering::Release);
        self.arrived.notify_all();
    }

    /// How it ended, if it has.
    pub fn result(&self) -> Option<Result<()>> {
        // Pairs with the store in `complete`.
        if !self.is_done.load(Ordering::Acquire) {
            return None;
        }
        self.result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        if result.is_none() {
            // Spurious or not, the caller looks again.
            let _ = self.arrived.wait_timeout(result, timeout);
        }
    }
}

/// A call that is under way. Dropping it waits for the call, because the call uses the caller's buffers.
///
/// May be used from any thread. Made by [`Communicator::start`](super::Communicator::start).
pub struct Work {
    driver: Arc<Driver>,
    completion: Arc<Completion>,
    life: Arc<Life>,
}

impl Work {
    pub(super) fn new(driver: Arc<Driver>, completion: Arc<Completion>, life: Arc<Life>) -> Work {
        Work {
            driver,
            completion,
            life,
        }
    }

    /// Waits until the call is done on this rank; gives its error if it failed.
    pub fn wait(&self) -> Result<()> {
        self.wait_with(&mut || Ok(()))
    }

    /// Like `wait`, and calls `on_wait` every 20 to 40 ms; its error aborts the communicator and is returned.
    pub fn wait_with(&self, on_wait: OnWait<'_>) -> Result<()> {
        self.check_process()?;
        self.driver
            .wait(&self.completion, None, on_wait)
            .map(|_| ())
    }

    /// Waits at most `timeout`; whether the call is done. The call goes on when it is not.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.check_process()?;
        self.driver
            .wait(&self.completion, Some(timeout), &mut || Ok(()))
    }

    /// Whether the call is done, well or not; `wait` then returns at once.
    pub fn is_done(&self) -> bool {
        self.completion.result().is_some()
    }

    fn check_process(&self) -> Result<()> {
        match self.life.stage() {
            Stage::Forked => Err(forked()),
            _ => Ok(()),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.life.stage() == Stage::Forked {
            std::mem::forget(self.driver.clone());
            return;
        }
        // The call's error was for whoever waited; the buffers are free either way.
        let _ = self.driver.wait(&self.completion, None, &mut || Ok(()));
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("is_done", &self.is_done())
            .finish()
    }
}
