//! The end of a call that is under way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::notifier::{OnDone, Promise};
use crate::error::Result;
use crate::sync::lock;

/// The end of a call, for threads that wait for it and callbacks that run after it.
#[derive(Default)]
pub struct Completion {
    is_done: AtomicBool,
    end: Mutex<End>,
    arrived: Condvar,
}

#[derive(Default)]
struct End {
    result: Option<Result<()>>,
    source: Option<usize>,
    /// Kept when there is a result.
    promises: Vec<Promise>,
}

impl Completion {
    /// The call is done well; `source` is that of a receive.
    pub fn succeed(&self, source: Option<usize>) {
        lock(&self.end).source = source;
        self.complete(Ok(()));
    }

    /// The source, once a receive is done well.
    pub fn source(&self) -> Option<usize> {
        // Pairs with the store in `complete`.
        let is_done = self.is_done.load(Ordering::Acquire);
        is_done.then(|| lock(&self.end).source).flatten()
    }

    /// The call is done. Callbacks run on other threads, so this may be called under any lock.
    pub fn complete(&self, result: Result<()>) {
        let mut end = lock(&self.end);
        end.result.get_or_insert(result);
        let promises = std::mem::take(&mut end.promises);
        Promise::keep(promises, || {
            // Pairs with the load in `result`.
            self.is_done.store(true, Ordering::Release);
            self.arrived.notify_all();
        });
    }

    /// How it ended, if it has.
    pub fn result(&self) -> Option<Result<()>> {
        // Pairs with the store in `complete`.
        if !self.is_done.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.end).result.clone()
    }

    /// Has `promise` kept when the call is done; gives back what it would call if it is done
    /// already.
    pub fn when_done(&self, promise: Promise) -> Option<OnDone> {
        let mut end = lock(&self.end);
        if end.result.is_some() {
            return Some(promise.into_callback());
        }
        end.promises.push(promise);
        None
    }

    /// Waits at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let end = lock(&self.end);
        if end.result.is_none() {
            // Spurious or not, the caller looks again.
            let _ = self.arrived.wait_timeout(end, timeout);
        }
    }
}
