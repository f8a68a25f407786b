//! What a communicator asks about its peers' health, whoever knows: the job's control plane, or the threads of a process.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::error::Error;
use crate::transport::Waker;

/// The health of a communicator's ranks.
pub trait Watch: Send + Sync {
    /// Whether a verdict has fallen: one load, asked on every fruitless attempt.
    fn is_faulty(&self) -> bool;

    /// The verdict.
    fn fault(&self) -> Option<Error>;

    /// Tells all ranks of a suspicion, waits up to `grace` for the verdict, and gives it; at the latest then the
    /// suspicion is the verdict on this rank.
    fn settle(&self, suspicion: Error, grace: Duration) -> Error;

    /// Whether some rank has left in good order.
    fn anyone_left(&self) -> bool;

    /// Whether this rank has.
    fn has_left(&self, rank: usize) -> bool;

    /// This rank has come to the call with this number.
    fn progress(&self, sequence: u64);

    /// Tells the others that this rank leaves in good order.
    fn leave(&self);
}

/// The watch of ranks that are threads of one process.
#[derive(Default)]
pub struct ThreadWatch {
    is_faulty: AtomicBool,
    fault: OnceLock<Error>,
    left_count: AtomicU32,
    left: Mutex<Vec<usize>>,
    wakers: Mutex<Vec<Waker>>,
}

impl ThreadWatch {
    /// Has `waker` called when a verdict falls or a rank leaves.
    pub fn register(&self, waker: Waker) {
        self.wakers
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push(waker);
    }

    fn wake_all(&self) {
        for waker in self
            .wakers
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .iter()
        {
            waker();
        }
    }
}

/// One thread's view of its [`ThreadWatch`].
pub struct ThreadRank {
    /// Shared by all ranks.
    pub watch: Arc<ThreadWatch>,
    /// This rank.
    pub rank: usize,
}

impl Watch for ThreadRank {
    fn is_faulty(&self) -> bool {
        // Pairs with the Release store in `settle`.
        self.watch.is_faulty.load(Ordering::Acquire)
    }

    fn fault(&self) -> Option<Error> {
        self.watch.fault.get().cloned()
    }

    fn settle(&self, suspicion: Error, _grace: Duration) -> Error {
        let verdict = self.watch.fault.get_or_init(|| suspicion).clone();
        // Pairs with the Acquire load in `is_faulty`.
        self.watch.is_faulty.store(true, Ordering::Release);
        self.watch.wake_all();
        verdict
    }

    fn anyone_left(&self) -> bool {
        // Pairs with the Release increment in `leave`.
        self.watch.left_count.load(Ordering::Acquire) > 0
    }

    fn has_left(&self, rank: usize) -> bool {
        self.watch
            .left
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .contains(&rank)
    }

    fn progress(&self, _sequence: u64) {}

    fn leave(&self) {
        self.watch
            .left
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push(self.rank);
        // Pairs with the Acquire load in `anyone_left`.
        self.watch.left_count.fetch_add(1, Ordering::Release);
        self.watch.wake_all();
    }
}
