//! What the engine can say of the calls under way: what they wait for, until when, and where they
//! stand.

use super::executor::Running;
use super::{Engine, JobId};
use crate::error::{Result, Site};
use crate::transport::{Time, Transport};

impl Engine {
    /// The collective that runs.
    pub(super) fn front(&self) -> Option<&Running> {
        let id = *self.queue.front()?;
        self.calls[id].as_ref()
    }

    /// Whether this job is the tiny call that runs, which [`Engine::advance_tiny`] advances.
    #[inline]
    pub fn is_tiny(&self, id: JobId) -> bool {
        self.queue.front() == Some(&id.0) && self.front().is_some_and(Running::is_tiny)
    }

    /// Whether a call under way goes by the clock, so that every attempt should know what time it
    /// is.
    pub fn needs_clock(&self) -> bool {
        self.front().is_some_and(Running::needs_clock)
    }

    /// When the call under way has waited too long for something, so that it is to go on.
    pub fn next_timer(&self) -> Option<Time> {
        self.front().and_then(Running::next_timer)
    }

    /// When `progress` could next find something to do although no peer acts.
    pub fn next_event(&self) -> Option<Time> {
        let timer = self.next_timer();
        self.transport.next_event().into_iter().chain(timer).min()
    }

    /// Whether the running call has local work left, with which `progress` goes on whatever befalls
    /// the peers.
    pub fn has_local_work(&self) -> bool {
        self.front().is_some_and(Running::has_local_work)
    }

    /// The wait under way has lasted long enough for the clock.
    pub fn time_wait(&mut self, now: Time) {
        let front = self.queue.front().and_then(|id| self.calls[*id].as_mut());
        if let Some(front) = front {
            front.time_wait(now, &mut self.lateness);
        }
    }

    /// Sets the deadlines of running jobs that have none yet, and gives the error of one whose
    /// deadline has passed.
    pub fn check_deadlines(&mut self, now: Time) -> Result<()> {
        self.mailbox.check_deadlines(now)?;
        match self.queue.front() {
            Some(&id) => self.with_context(id, |front, context| front.check_deadline(now, context)),
            None => Ok(()),
        }
    }

    /// The ranks that the running jobs wait for.
    pub fn waiting_for(&mut self) -> Vec<usize> {
        let mut ranks = self.front_waits_for();
        ranks.extend(self.mailbox.waiting_for());
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// A rank that is gone, as `is_gone` says, and without which a running job cannot end.
    pub fn missed(
        &mut self,
        mut is_gone: impl FnMut(&dyn Transport, usize) -> bool,
    ) -> Option<usize> {
        let awaited = self.front_waits_for();
        let transport = self.transport.as_ref();
        let mut is_gone = |rank| is_gone(transport, rank);
        let missed = awaited.into_iter().find(|rank| is_gone(*rank));
        missed.or_else(|| self.mailbox.missed(&mut is_gone))
    }

    fn front_waits_for(&mut self) -> Vec<usize> {
        match self.queue.front() {
            Some(&id) => self.with_context(id, |front, context| front.waiting_for(context)),
            None => Vec::new(),
        }
    }

    /// Where the running job stands, if one runs.
    pub fn running_site(&mut self) -> Option<Site> {
        match self.queue.front() {
            Some(&id) => Some(self.with_context(id, |front, context| front.site(context))),
            None => self.mailbox.running_site(),
        }
    }
}
