//! The status of the calls under way: the ranks that they wait for, until when, and their progress.

use super::Engine;
use super::context::Context;
use super::executor::Executor;
use super::running::Running;
use crate::call::{Call, Qualifier};
use crate::error::{Result, Site};
use crate::transport::{Header, StreamId, Time, Transport, earlier_mismatch, mismatch};
use crate::wait::WordWait;

impl Engine {
    /// Returns the running collective.
    pub(super) fn front(&self) -> Option<&Running> {
        let id = *self.queue.front()?;
        self.calls[id].as_ref()
    }

    /// Returns the running collective, and the shared state.
    pub(super) fn front_mut(&mut self) -> Option<(&mut Running, &mut Context)> {
        let id = *self.queue.front()?;
        Some(self.running(id))
    }

    /// Returns the progress of the running collective.
    pub(super) fn progress_of_front(&self) -> Option<&dyn Executor> {
        self.front().map(Running::progress)
    }

    /// Whether the running call has timers, so that every attempt needs the current time.
    pub fn needs_clock(&self) -> bool {
        self.progress_of_front().is_some_and(Executor::needs_clock)
    }

    /// Returns the time at which the running call stops waiting for something and continues.
    pub fn next_timer(&self) -> Option<Time> {
        self.progress_of_front().and_then(Executor::next_timer)
    }

    /// Returns the number of the last collective that this rank is in: that of the last submitted
    /// one, unless a call of devices waits for its data.
    pub fn collectives_begun(&self) -> u64 {
        match self.front() {
            Some(front) if !front.has_begun() => self.collectives_finished(),
            _ => self.sequence(),
        }
    }

    /// Returns how the running call waits if it waits for words of devices.
    pub fn words(&self) -> Option<WordWait> {
        self.front().and_then(Running::words)
    }

    /// Returns the time at which `progress` could next find work although no peer acts.
    pub fn next_event(&self) -> Option<Time> {
        let timer = self.next_timer();
        self.context
            .transport
            .next_event()
            .into_iter()
            .chain(timer)
            .min()
    }

    /// Whether the running call has local work left, which `progress` continues whatever happens to
    /// the peers.
    pub fn has_local_work(&self) -> bool {
        self.progress_of_front()
            .is_some_and(Executor::has_local_work)
    }

    /// Records that the wait under way has lasted long enough to be timed.
    pub fn time_wait(&mut self, now: Time) {
        if let Some((front, context)) = self.front_mut() {
            front
                .executor
                .get_mut()
                .time_wait(now, &mut context.lateness);
        }
    }

    /// Sets the deadlines of running jobs that have none yet; returns `Timeout` if one has passed.
    pub fn check_deadlines(&mut self, now: Time) -> Result<()> {
        self.mailbox.check_deadlines(now)?;
        match self.front_mut() {
            Some((front, context)) => front.check_deadline(now, context),
            None => Ok(()),
        }
    }

    /// Returns the ranks that the running jobs wait for.
    pub fn waiting_for(&mut self) -> Vec<usize> {
        let mut ranks = self.front_waits_for();
        ranks.extend(self.mailbox.waiting_for());
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Returns a rank that `is_gone` and that a running job needs. A receive from any source needs
    /// others only if the program `waits`, because otherwise this rank may still send to itself.
    pub fn missed(
        &mut self,
        waits: bool,
        mut is_gone: impl FnMut(&dyn Transport, usize) -> bool,
    ) -> Option<usize> {
        let awaited = self.front_waits_for();
        let transport = self.context.transport.as_ref();
        let mut is_gone = |rank| is_gone(transport, rank);
        let missed = awaited.into_iter().find(|rank| is_gone(*rank));
        missed.or_else(|| self.mailbox.missed(waits, &mut is_gone))
    }

    /// Whether some peer's messages have ended.
    pub fn has_any_peer_ended(&self) -> bool {
        self.mailbox.has_any_peer_ended()
    }

    fn front_waits_for(&mut self) -> Vec<usize> {
        match self.front_mut() {
            Some((front, context)) => front.waiting_for(context),
            None => Vec::new(),
        }
    }

    /// Describes the progress of the running job, if this rank is in one.
    pub fn running_site(&mut self) -> Option<Site> {
        match self.front_mut() {
            Some((front, context)) if front.has_begun() => Some(front.site(context)),
            _ => self.mailbox.running_site(),
        }
    }

    /// Checks whether an unexpected message has arrived, of the collective in which this rank waits
    /// or of an earlier one: the sender is or was in another call. Intended for a rank that has
    /// waited for a while.
    pub fn compare_unexpected(&mut self) -> Result<()> {
        let Some(Running { operation, .. }) = self.front() else {
            return Ok(());
        };
        let (mine, mut found) = (operation.call, Vec::new());
        self.context.transport.unexpected(&mut found)?;
        for (StreamId { peer, .. }, Header { call: theirs, .. }) in found {
            let ranks = [self.context.rank, peer];
            if mine.contradicts(&theirs) {
                return Err(mismatch(ranks, [&mine, &theirs]));
            }
            // A late-merge call may leave messages behind, and has no root.
            let is_rooted = matches!(theirs.qualifier, Qualifier::Root(_));
            if is_rooted && theirs.sequence < mine.sequence {
                return Err(earlier_mismatch(ranks, [&mine, &theirs]));
            }
        }
        Ok(())
    }

    /// Checks whether a peer has published in the call in which this rank waits for messages: each
    /// would wait for the other in vain. The same holds if this rank waits in a collective with a
    /// root and the peer finished another one before its present call. Intended for a rank that has
    /// waited for a while.
    pub fn compare_media(&mut self) -> Result<()> {
        let (Some(Running { operation, .. }), Some(windows)) =
            (self.front(), &self.context.windows)
        else {
            return Ok(());
        };
        if operation.publishes {
            return Ok(());
        }
        for peer in (0..self.context.world_size).filter(|peer| *peer != self.context.rank) {
            // A peer that has finished this call may have published in a later one.
            let theirs = windows.entered(peer, self.generation);
            let mine = &operation.call;
            let in_this = |theirs: &Call| theirs.sequence == mine.sequence;
            let is_last = self.queue.len() == 1 && matches!(mine.qualifier, Qualifier::Root(_));
            let after_another = |theirs: &Call| {
                is_last
                    && theirs.sequence == mine.sequence + 1
                    && matches!(theirs.qualifier, Qualifier::None | Qualifier::After(_))
                    && theirs.qualifier != Qualifier::after(self.rooted.digest())
            };
            let ranks = [self.context.rank, peer];
            match theirs {
                Some(theirs) if in_this(&theirs) => return Err(mismatch(ranks, [mine, &theirs])),
                Some(theirs) if after_another(&theirs) => {
                    return Err(earlier_mismatch(ranks, [mine, &theirs]));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
