//! Events: the latest record, as a mark that the stream reaches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::driver::{lock, now_ns};

/// One record of an event: reached when the stream's work before it is done.
#[derive(Debug, Default)]
pub struct Mark {
    /// When it was reached; 0 before.
    reached_ns: AtomicU64,
}

impl Mark {
    /// Marks that the work before is done.
    pub fn reach(&self) {
        // Release: pairs with the load in `reached`, so that what the stream did is seen.
        self.reached_ns.store(now_ns(), Ordering::Release);
    }

    /// When it was reached.
    pub fn reached(&self) -> Option<u64> {
        // Acquire: pairs with the store in `reach`.
        let reached_ns = self.reached_ns.load(Ordering::Acquire);
        (reached_ns > 0).then_some(reached_ns)
    }
}

/// An event. A wait is for the record that is the latest when the wait is enqueued.
#[derive(Debug)]
pub struct Event {
    /// The device of its context.
    pub device: usize,
    latest: Mutex<Option<Arc<Mark>>>,
}

impl Event {
    /// An event of `device` that was never recorded.
    pub fn new(device: usize) -> Event {
        Event {
            device,
            latest: Mutex::new(None),
        }
    }

    /// A new record, which replaces the latest.
    pub fn record(&self) -> Arc<Mark> {
        let mark = Arc::<Mark>::default();
        *lock(&self.latest) = Some(mark.clone());
        mark
    }

    /// The latest record.
    pub fn latest(&self) -> Option<Arc<Mark>> {
        lock(&self.latest).clone()
    }

    /// Whether all that was recorded is done.
    pub fn is_done(&self) -> bool {
        self.latest().is_none_or(|mark| mark.reached().is_some())
    }
}
