//! The completion of a call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::notifier::{OnDone, PendingCallback};
use crate::error::Result;
use crate::sync::lock;

/// The completion of a call, for threads that wait for it and callbacks that run after it.
#[derive(Default)]
pub struct Completion {
    is_done: AtomicBool,
    end: Mutex<CallEnd>,
    arrived: Condvar,
}

#[derive(Default)]
struct CallEnd {
    result: Option<Result<()>>,
    source: Option<usize>,
    /// Callbacks to queue when the call ends.
    callbacks: Vec<PendingCallback>,
}

impl Completion {
    /// Returns the completion of a call that has ended; `source` is the source of a receive.
    pub fn ended(result: Result<()>, source: Option<usize>) -> Completion {
        let end = CallEnd {
            result: Some(result),
            source,
            callbacks: Vec::new(),
        };
        Completion {
            is_done: AtomicBool::new(true),
            end: Mutex::new(end),
            arrived: Condvar::new(),
        }
    }

    /// Completes a call that succeeded; `source` is the source of a receive.
    pub fn succeed(&self, source: Option<usize>) {
        lock(&self.end).source = source;
        self.complete(Ok(()));
    }

    /// Returns the source of a receive that has succeeded.
    pub fn source(&self) -> Option<usize> {
        // Pairs with the store in `complete`.
        let is_done = self.is_done.load(Ordering::Acquire);
        is_done.then(|| lock(&self.end).source).flatten()
    }

    /// Completes the call. Callbacks run on other threads, so the caller may hold any lock.
    pub fn complete(&self, result: Result<()>) {
        let mut end = lock(&self.end);
        end.result.get_or_insert(result);
        let callbacks = std::mem::take(&mut end.callbacks);
        PendingCallback::queue(callbacks, || {
            // Pairs with the loads in `result` and `source`.
            self.is_done.store(true, Ordering::Release);
            self.arrived.notify_all();
        });
    }

    /// Returns the call's result, if the call has ended.
    pub fn result(&self) -> Option<Result<()>> {
        // Pairs with the store in `complete`.
        if !self.is_done.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.end).result.clone()
    }

    /// Stores `callback` until the call ends; returns its function if the call has already
    /// ended.
    pub fn when_done(&self, callback: PendingCallback) -> Option<OnDone> {
        let mut end = lock(&self.end);
        if end.result.is_some() {
            return Some(callback.into_callback());
        }
        end.callbacks.push(callback);
        None
    }

    /// Waits for the call, at most `timeout`; may return early.
    pub fn wait(&self, timeout: Duration) {
        let end = lock(&self.end);
        if end.result.is_none() {
            // The caller checks again, so a spurious wake-up does no harm.
            let _ = self.arrived.wait_timeout(end, timeout);
        }
    }
}
