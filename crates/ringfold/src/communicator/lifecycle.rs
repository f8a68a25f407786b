//! The end of a communicator: by an error, by closing, or by being dropped.

use std::time::Duration;

use super::Communicator;
use super::driver::OnWait;
use super::membership::forked;
use crate::error::{Error, Result};
use crate::memory::GuardStage;

/// Time that `abort` waits to learn whether another rank's verdict was first.
pub(super) const ABORT_GRACE: Duration = Duration::from_millis(50);

impl Communicator {
    /// Whether this process was forked from the one that joined, and cannot use the communicator.
    pub fn is_forked(&self) -> bool {
        self.fork_guard.stage() == GuardStage::Forked
    }

    /// Returns the fatal error that ended this communicator, if any. Known without a call, and
    /// while a call is stuck.
    pub fn fault(&self) -> Option<Error> {
        self.driver.watch().fault()
    }

    /// Ends this communicator on all ranks: calls that wait in it fail with `Error::Aborted`, with
    /// this rank and `reason`. If another error ended the communicator just before, that error
    /// holds on all ranks. Does nothing in a forked child.
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

    /// Ends this communicator on all ranks with `suspicion`, unless another error ended it just
    /// before, which shows within `grace`. Returns the verdict.
    pub(super) fn end(&self, suspicion: Error, grace: Duration) -> Error {
        let verdict = self.driver.watch().report_fault(suspicion, grace);
        self.driver.poison(verdict.clone());
        verdict
    }

    /// Closes the communicator: waits for this rank's outstanding work, including calls of other
    /// threads, says goodbye to the peers, and frees everything. Later calls fail with
    /// `Error::Closed`. Not collective; repeated calls do no harm.
    ///
    /// With its last communicator a process leaves the job, and may then end in any way. Rank 0's
    /// process waits at most half a second for the others, whose splits need it.
    ///
    /// The calls that `close` waits for have their deadlines; [`abort`](Communicator::abort) ends
    /// them at once. In a callback of [`run`](Communicator::run) `close` waits for nothing: the
    /// waiting call, and all others, end with `Error::Closed`.
    pub fn close(&self) -> Result<()> {
        self.close_with(&mut || Ok(()))
    }

    /// Like `close`, and calls `on_wait` every 20 to 40 ms while it waits. If `on_wait` fails, the
    /// communicator is aborted on all ranks, and is closed nevertheless.
    pub fn close_with(&self, on_wait: OnWait<'_>) -> Result<()> {
        match self.fork_guard.close() {
            GuardStage::Open => {}
            GuardStage::Closed => return Ok(()),
            GuardStage::Forked => return Err(forked()),
        }
        if self.driver.is_calling_back() {
            // The waiting call cannot continue before `close` returns.
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
            GuardStage::Open => Ok(()),
            GuardStage::Closed => Err(Error::Closed),
            GuardStage::Forked => Err(forked()),
        }
    }

    /// Closes a communicator that is dropped; aborts it if calls are under way.
    pub(super) fn abandon(&self) {
        match self.fork_guard.close() {
            GuardStage::Open => {}
            GuardStage::Closed => return,
            GuardStage::Forked => {
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
