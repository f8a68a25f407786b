//! The end of a communicator: by an error, in good order, or by being dropped.

use std::time::Duration;

use super::Communicator;
use super::driver::{OnWait, TIMEOUT_GRACE};
use super::membership::forked;
use crate::error::{Error, Result};
use crate::memory::Stage;

/// How long `abort` waits to learn whether another rank's verdict was first.
pub(super) const ABORT_GRACE: Duration = Duration::from_millis(50);

impl Communicator {
    /// Whether this process was forked from the one that joined: it cannot use the communicator.
    pub fn is_forked(&self) -> bool {
        self.fork_guard.stage() == Stage::Forked
    }

    /// The fatal error that has ended this communicator, if one has: known here without a call, and
    /// while one is stuck.
    pub fn fault(&self) -> Option<Error> {
        self.driver.watch().fault()
    }

    /// Ends this communicator on all ranks: calls that wait in it fail with `Error::Aborted`, with
    /// this rank and `reason`, unless something else ended it just before, which then stands on all
    /// ranks. Does nothing in a forked child.
    pub fn abort(&self, reason: &str) {
        if self.is_forked() {
            return;
        }
        let error = Error::Aborted {
            rank: self.place.rank,
            reason: reason.into(),
        };
        self.end(error, ABORT_GRACE);
    }

    /// Ends this communicator on all ranks, by `suspicion` unless something else ended it just
    /// before: that shows within `grace`. Gives the verdict.
    pub(super) fn end(&self, suspicion: Error, grace: Duration) -> Error {
        let verdict = self.driver.watch().report_fault(suspicion, grace);
        self.driver.poison(verdict.clone());
        verdict
    }

    /// Ends this communicator on all ranks because `waiting_for` have not done their part for so
    /// long. Gives the verdict.
    pub(crate) fn end_late(&self, waiting_for: Vec<usize>, after: Duration) -> Error {
        let late = Error::Timeout {
            waiting_for,
            after_ms: after.as_millis() as u64,
            site: None,
        };
        self.end(late, TIMEOUT_GRACE)
    }

    /// Leaves in good order: waits for this rank's outstanding work, also for the calls in which
    /// other threads are, tells the others, frees everything. Later calls fail with
    /// `Error::Closed`. Not collective, and harmless when repeated.
    ///
    /// With its last communicator a process leaves the job, and may then end as it likes. Rank 0's
    /// process waits half a second at most for the others, whose splits need it.
    ///
    /// The calls that it waits for have their deadlines; [`abort`](Communicator::abort) ends them
    /// at once. In a callback of [`run`](Communicator::run) it waits for
    /// nothing: the call that is being waited for, and all others, end with `Error::Closed`.
    pub fn close(&self) -> Result<()> {
        self.close_with(&mut || Ok(()))
    }

    /// Like `close`, and calls `on_wait` every 20 to 40 ms while it waits. When `on_wait` fails,
    /// the communicator is aborted on all ranks, and left all the same.
    pub fn close_with(&self, on_wait: OnWait<'_>) -> Result<()> {
        match self.fork_guard.close() {
            Stage::Open => {}
            Stage::Closed => return Ok(()),
            Stage::Forked => return Err(forked()),
        }
        if self.driver.is_calling_back() {
            // What waits cannot go on before this returns.
            self.driver.poison(Error::Closed);
            self.leave();
            self.membership.leave();
            return Ok(());
        }
        let finished = self.driver.finish(on_wait);
        self.leave();
        self.membership.leave();
        finished
    }

    fn leave(&self) {
        self.membership.depart();
        self.driver.watch().leave();
        self.driver.dissolve();
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        // Closing while another thread calls is a race of the caller's; either answer is right.
        match self.fork_guard.stage() {
            Stage::Open => Ok(()),
            Stage::Closed => Err(Error::Closed),
            Stage::Forked => Err(forked()),
        }
    }

    /// What dropping does.
    pub(super) fn abandon(&self) {
        match self.fork_guard.close() {
            Stage::Open => {}
            Stage::Closed => return,
            Stage::Forked => {
                // Sockets, threads and the goodbye are the parent's.
                std::mem::forget((self.driver.clone(), self.membership.group().cloned()));
                return;
            }
        }
        if !self.driver.is_idle() {
            self.abort("its communicator was dropped while calls were under way");
        }
        self.leave();
        self.membership.leave();
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abandon();
    }
}
