//! A communicator's membership in its job, kept for its splits and its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::group::RankGroup;
use crate::error::Error;
use crate::sync::lock;
use crate::topology::neighbours::ProcessMark;

/// A function that announces in shared memory that this rank leaves without an error.
pub(crate) type Depart = Box<dyn Fn() + Send + Sync>;

/// A rank's membership in its job; empty for ranks that are threads.
#[derive(Default)]
pub(crate) struct Membership {
    group: Option<RankGroup>,
    depart: Option<Depart>,
    splits: AtomicU64,
    /// The mark by which other jobs of this host see that this process is in a job.
    mark: Mutex<Option<Arc<ProcessMark>>>,
}

impl Membership {
    pub fn new(
        group: RankGroup,
        depart: Option<Depart>,
        mark: Option<Arc<ProcessMark>>,
    ) -> Membership {
        Membership {
            group: Some(group),
            depart,
            splits: AtomicU64::new(0),
            mark: Mutex::new(mark),
        }
    }

    /// Returns the ranks within their job; `None` for ranks that are threads.
    pub fn group(&self) -> Option<&RankGroup> {
        self.group.as_ref()
    }

    /// Announces in shared memory that this rank leaves without an error.
    pub fn depart(&self) {
        if let Some(depart) = &self.depart {
            depart();
        }
    }

    /// Leaves the job if this was its last communicator here, and no longer shows this process to
    /// other jobs.
    pub fn leave(&self) {
        drop(lock(&self.mark).take());
        if let Some(group) = &self.group {
            group.session.leave_if_unused();
        }
    }

    /// Returns the number of the next split. Every rank makes the same splits in the same order.
    pub fn next_split(&self) -> u64 {
        // A mere counter: it publishes nothing.
        self.splits.fetch_add(1, Ordering::Relaxed)
    }
}

/// Returns the error of a call in a forked child.
pub(super) fn forked() -> Error {
    let text = "the communicator belongs to the process that forked this one; join a new job in \
            this process";
    Error::Unsupported(text.into())
}
