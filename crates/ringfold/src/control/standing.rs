//! Progress of ranks, which shows why a call takes so long.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::wire::wire_struct;
use crate::call::CallPosition;
use crate::sync::lock;

/// Time limit for the answers of a communicator's members to an inquiry about their progress.
pub const INQUIRY: Duration = Duration::from_millis(200);

/// Progress of a rank in a communicator.
///
/// The numbers count collectives, and show which rank is ahead. For users they begin at 1, without
/// the calls by which the library prepares a communicator. A small call that has just begun may not
/// count yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Number of collectives that this rank has finished.
    pub finished: u64,
    /// Number of collectives that this rank has begun.
    pub begun: u64,
    /// Description of the call in which the rank has been waiting for a while, and of the ranks it
    /// waits for; empty if the rank is not waiting.
    pub call: String,
}

wire_struct!(Standing {
    finished,
    begun,
    call
});

/// A rank's record of its own progress: written by the thread that drives its calls, read by any
/// other.
#[derive(Debug, Default)]
pub struct RankProgress {
    finished: AtomicU64,
    begun: AtomicU64,
    waiting: Mutex<WaitDescription>,
}

/// The call in which the rank waits; empty if it is not waiting.
#[derive(Debug, Default)]
struct WaitDescription {
    position: Option<CallPosition>,
    text: String,
}

impl RankProgress {
    /// Records the numbers of finished and begun collectives.
    pub fn note(&self, finished: u64, begun: u64) {
        self.begun.store(begun, Ordering::Relaxed);
        // Pairs with the load in `standing`, so that no reader sees more done than begun.
        self.finished.store(finished, Ordering::Release);
    }

    /// Records the call in which the rank waits, and its description.
    pub fn describe(&self, position: CallPosition, text: String) {
        let position = Some(position);
        *lock(&self.waiting) = WaitDescription { position, text };
    }

    /// Records that the rank is not waiting.
    pub fn clear(&self) {
        *lock(&self.waiting) = WaitDescription::default();
    }

    /// Returns the call in which the rank waits.
    pub fn position(&self) -> Option<CallPosition> {
        lock(&self.waiting).position
    }

    /// Returns the progress as a [`Standing`].
    pub fn standing(&self) -> Standing {
        // Pairs with the store in `note`.
        let finished = self.finished.load(Ordering::Acquire);
        Standing {
            finished,
            begun: self.begun(),
            call: lock(&self.waiting).text.clone(),
        }
    }

    /// Returns the number of collectives begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }
}
