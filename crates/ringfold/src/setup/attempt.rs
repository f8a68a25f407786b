//! A communicator during its set-up, as the control plane knows it.
//!
//! The communicator is opened in the control plane before its ranks are linked, so that a set-up
//! that fails on one rank ends on all of them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::communicator::group::RankGroup;
use crate::communicator::watch::{SessionWatch, Watch};
use crate::control::limit::{Cancelled, Limit};
use crate::control::poll::remaining;
use crate::control::wire::Wire;
use crate::control::{Cancel, Forwarding};
use crate::error::{Error, Result};
use crate::topology::neighbours::{self, ProcessMark};
use crate::transport::Waker;

/// An attempt to create the communicator of a group. Dropping it without [`keep`](Attempt::keep)
/// closes the communicator.
pub(super) struct Attempt<'a> {
    pub group: RankGroup,
    pub deadline: Instant,
    /// Shows other jobs on this host that this process is part of a job.
    pub mark: Option<Arc<ProcessMark>>,
    watch: SessionWatch,
    /// Wakes the transport, once there is one.
    waker: Arc<OnceLock<Waker>>,
    /// Check for an error that makes the attempt pointless.
    is_pointless: Cancelled<'a>,
    is_kept: bool,
}

impl<'a> Attempt<'a> {
    /// Opens the communicator of `group`.
    pub fn open(group: RankGroup, is_pointless: Cancelled<'a>) -> Result<Attempt<'a>> {
        let deadline = Instant::now() + group.settings.connect_timeout;
        let waker: Arc<OnceLock<Waker>> = Arc::default();
        let transport = waker.clone();
        let wake = Arc::new(move || transport.get().map_or((), |wake| wake()));
        let session = group.session.clone();
        let health = session.open(group.id, &group.world_ranks, wake)?;
        Ok(Attempt {
            watch: SessionWatch { session, health },
            mark: neighbours::mark(),
            group,
            deadline,
            waker,
            is_pointless,
            is_kept: false,
        })
    }

    /// Makes `cancel` end the attempt on all ranks, until the result is dropped.
    pub fn end_on<'c>(&self, cancel: &'c Cancel) -> Forwarding<'c> {
        let health = self.watch.health.clone();
        cancel.on_cancel(move |reason| health.give_up(reason))
    }

    /// Runs `step`, which ends at the attempt's deadline, or with the error that ended the attempt.
    pub fn within_limit<T>(&self, step: impl FnOnce(Limit<'_>) -> T) -> T {
        let verdict = || self.watch.fault().or_else(self.is_pointless);
        step(Limit::new(self.deadline, &verdict))
    }

    /// Sends `record` to all ranks and returns theirs in rank order.
    pub fn agree<T: Wire>(&self, what: &str, record: &T) -> Result<Vec<T>> {
        self.within_limit(|limit| self.group.agree(what, record, limit))
    }

    /// Returns the watch over the communicator, for the communicator itself.
    pub fn watch(&self) -> SessionWatch {
        self.watch.clone()
    }

    /// Makes verdicts wake the transport from now on.
    pub fn set_waker(&self, waker: Waker) {
        // Set once: an attempt makes one transport.
        let _ = self.waker.set(waker);
    }

    /// Leaves the open communicator to its new owner.
    pub fn keep(mut self) {
        self.is_kept = true;
    }

    /// Ends the attempt that failed with `error` on all ranks, before their deadlines, and returns
    /// the one error of all. `error` may be only a consequence of another rank's death.
    pub fn fail(self, error: Error) -> Error {
        let has_server = self.group.world_ranks.contains(&0);
        let grace = match has_server || !self.group.session.has_lost_server() {
            true => self.watch.crash_grace().min(remaining(self.deadline)),
            // Without the server there is no verdict to wait for.
            false => Duration::ZERO,
        };
        let health = &self.watch.health;
        if error.is_fatal() {
            return health.report_fault(error, grace);
        }
        if matches!(error, Error::Bootstrap(_))
            && let Some(verdict) = health.await_fault(grace)
        {
            return verdict;
        }
        health.report(&error);
        error
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // The open communicator would outlive the session.
            self.group.session.close(self.group.id);
        }
    }
}
