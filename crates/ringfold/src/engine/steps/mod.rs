//! The executor of schedules: issues the steps of one call in a fixed order.
//!
//! # Order of issue
//!
//! All slices of a call run the same steps. Slice `s` takes the steps of round `r` at its tick,
//! `r + s * skew` or later ([`ticks`]); the steps of a tick are issued slice by slice. So the order
//! on every stream is the same at both ends, whatever completes when. The receive of one slice, the
//! reduction of another and the send of a third overlap. A step that cannot be issued yet delays
//! the later ones of its channel. Such a step waits only for steps before it in this order on some
//! rank, so some rank can always continue.
//!
//! # Invariants
//!
//! * Slice `s` of a channel begins after its slice `s - slices_in_flight` has retired, so the two
//!   share scratch memory and bookkeeping.
//! * Channels share neither: a channel may be any number of slices ahead of another.
//! * Slices retire in order, once all their steps are issued and complete.
//!
//! # Data of devices
//!
//! Where a device moves the data through slots of its rank, a slice begins when its part of the
//! data stands there, and the device takes the part's result once all its slices have retired.

mod blocks;
mod channel;
mod exposed;
mod issue;
mod kept;
mod progress;
mod registered;
mod staged;
mod ticks;
mod waits;

use std::sync::Arc;

use super::context::{Context, windows};
use super::executor::Executor;
use super::lateness::Lateness;
use super::operation::PreparedOperation;
use super::plan::ExecutionPlan;
use crate::error::Result;
use crate::memory::Registry;
use crate::schedule::{Access, Action, Assignment, Spec};
use crate::transport::{Ticket, Wake};
use crate::wait::WordWait;
use channel::{Channel, Issue};
pub use kept::{PlanKey, StepsKept};
use progress::ChannelProgress;
use ticks::Ticks;

/// A call that runs its schedule's steps.
#[derive(Debug)]
pub struct Steps {
    plan: Arc<ExecutionPlan>,
    channels: Vec<ChannelProgress>,
    parts: PartsProgress,
}

/// The parts of the data that a device moves.
#[derive(Clone, Copy, Debug, Default)]
struct PartsProgress {
    /// Number of parts that the device has brought.
    brought: u32,
    /// Number of parts whose results the device may take.
    released: u32,
}

impl Steps {
    /// Issues all steps that are ready; returns whether there were any.
    pub fn advance(
        &mut self,
        operation: &PreparedOperation,
        context: &mut Context,
        kept: &mut StepsKept,
    ) -> Result<bool> {
        let mut progressed = self.admit(operation)?;
        if progressed {
            context.lateness.forget_waits();
        }
        let ticks = self.ticks(operation);
        let slices_brought = match operation.own_parts() {
            Some(own) => own.slices_of(self.parts.brought).start,
            None => operation.slices,
        };
        for (number, at) in self.channels.iter_mut().enumerate() {
            let mut channel = Channel {
                number,
                slices_brought,
                ticks,
                plan: &self.plan,
                operation,
                at,
                context,
                kept,
            };
            progressed |= channel.advance()?;
        }
        self.release(operation)?;
        Ok(progressed)
    }

    /// Returns the ticks of the slices.
    fn ticks(&self, operation: &PreparedOperation) -> Ticks {
        let own = operation.own_parts();
        Ticks {
            rounds: self.plan.schedule.rounds.max(1),
            skew: self.plan.skew,
            drained: own.filter(|own| own.drains()).map(|own| own.cut.slices),
        }
    }

    /// Lets the slices begin that a device has brought; returns whether there were any.
    fn admit(&mut self, operation: &PreparedOperation) -> Result<bool> {
        let Some(own) = operation.own_parts() else {
            return Ok(false);
        };
        let before = self.parts.brought;
        while own.slices_of(self.parts.brought).start < operation.slices
            && own.slots.is_ready(self.parts.brought)?
        {
            let mut slices = own.slices_of(self.parts.brought);
            slices.try_for_each(|slice| operation.scale_brought(slice))?;
            self.parts.brought += 1;
        }
        Ok(self.parts.brought > before)
    }

    /// Lets the device take the results of the parts that are done.
    fn release(&mut self, operation: &PreparedOperation) -> Result<()> {
        let Some(own) = operation.own_parts() else {
            return Ok(());
        };
        let done = own.part_of(self.slices_done());
        while self.parts.released < done {
            own.slots.release(self.parts.released)?;
            self.parts.released += 1;
        }
        Ok(())
    }

    /// Whether the call waits for its device's next part: a channel would begin that.
    fn lacks_part(&self, operation: &PreparedOperation) -> bool {
        operation.own_parts().is_some_and(|own| {
            let next = own.slices_of(self.parts.brought).start;
            let has_room = |at: &ChannelProgress| at.has_room(next, self.plan.slices_in_flight);
            let is_next = |at: &ChannelProgress| at.slice == next && at.started == next;
            let mut channels = self.channels.iter();
            next < operation.slices && channels.any(|at| is_next(at) && has_room(at))
        })
    }
}

impl Executor for Steps {
    /// Returns the number of slices that all channels have done.
    fn slices_done(&self) -> u32 {
        self.channels.iter().map(|at| at.retired).min().unwrap_or(0)
    }

    fn waiting_for(&self, operation: &PreparedOperation, context: &Context) -> Vec<usize> {
        let mut ranks = self.awaited(operation, context);
        if ranks.is_empty() && self.lacks_part(operation) {
            ranks.push(context.rank);
        }
        ranks
    }

    fn has_begun(&self, operation: &PreparedOperation) -> bool {
        operation.own_parts().is_none() || self.parts.brought > 0
    }

    /// The first data may arrive as late as the program likes.
    fn is_timed(&self, operation: &PreparedOperation, _context: &Context) -> bool {
        self.has_begun(operation)
    }

    fn words(&self, operation: &PreparedOperation) -> Option<WordWait> {
        let waits = self.lacks_part(operation);
        waits.then_some(match self.parts.brought {
            0 => WordWait::Lull,
            _ => WordWait::Flight,
        })
    }

    fn complete(&mut self, ticket: Ticket, lateness: &mut Lateness) {
        let (channel, flight, step) = progress::parts(ticket);
        self.channels[channel].complete(flight, step);
        let action = self.plan.channels[channel].steps[step as usize].action;
        if let Action::Send { peer, .. } = action {
            lateness.send_completed(peer as usize);
        } else if let Some(peer) = action.sender() {
            lateness.peer_arrived(peer as usize);
        }
    }

    fn end(&self, operation: &PreparedOperation, registry: &Registry) {
        if self.plan.is_registered() {
            registry.sync_from_file(operation.buffers.output);
        }
    }

    fn fell_back(&self) -> bool {
        self.channels.iter().any(|at| at.is_refused)
    }

    /// Whether a push or a similar step is under way, which waits for no peer.
    fn has_local_work(&self) -> bool {
        self.channels.iter().any(|at| at.pushed > 0)
    }
}

impl StepsKept {
    /// Begins a call of `plan`.
    pub fn begin(&mut self, plan: Arc<ExecutionPlan>) -> Steps {
        let (channels, parts) = (self.progress(&plan), PartsProgress::default());
        Steps {
            plan,
            channels,
            parts,
        }
    }

    /// Keeps the bookkeeping of a call that is done.
    pub fn keep(&mut self, Steps { plan, channels, .. }: Steps) {
        self.keep_progress(&plan, channels);
    }
}

impl Channel<'_> {
    /// Issues all steps that are ready; returns whether there were any.
    fn advance(&mut self) -> Result<bool> {
        let (plan, ticks) = (&self.plan.channels[self.number], self.ticks);
        let mut progressed = self.retire()?;
        while self.at.tick <= self.last_tick() {
            let (tick, slice) = (self.at.tick, self.at.slice);
            if slice >= self.operation.slices || ticks.begin(slice) > tick {
                self.next_tick();
                continue;
            }
            let round = (tick - ticks.begin(slice)) as usize;
            if slice == self.at.started && !self.begin_slice(slice)? {
                break;
            }
            let start = |round: usize| plan.round_starts.get(round).copied().unwrap_or(0);
            let index = start(round) + self.at.step;
            let flight = (slice % self.plan.slices_in_flight) as usize;
            if index >= start(round + 1) {
                self.at.flights[flight].issued |= round as u32 + 1 == ticks.rounds;
                (self.at.slice, self.at.step) = (slice + 1, 0);
                progressed |= self.retire()?;
                continue;
            }
            let mut earlier = plan.after(&plan.steps[index as usize]).iter();
            if earlier.any(|&step| self.at.flights[flight].is_pending(step)) {
                break;
            }
            match self.issue(index)? {
                Issue::Blocked => break,
                Issue::Begun => return Ok(true),
                Issue::Refused => {
                    self.at.is_refused = true;
                    return Ok(true);
                }
                Issue::Done => {}
                Issue::Pending => self.at.flights[flight].post(index),
            }
            self.at.step += 1;
            progressed = true;
        }
        Ok(progressed)
    }

    /// Returns the last tick at which a slice has a round.
    fn last_tick(&self) -> u64 {
        self.ticks.last(self.operation.slices - 1)
    }

    /// Advances to the first slice that has a round at the next tick.
    fn next_tick(&mut self) {
        let last_tick = self.last_tick();
        let at = &mut *self.at;
        at.tick += 1;
        (at.slice, at.step) = (self.ticks.first(at.tick), 0);
        if at.tick > last_tick {
            at.slice = self.operation.slices;
        }
    }

    /// Begins `slice`; returns false if there is no room yet.
    fn begin_slice(&mut self, slice: u32) -> Result<bool> {
        let limit = self.plan.slices_in_flight;
        if slice >= self.slices_brought || !self.at.has_room(slice, limit) {
            return Ok(false);
        }
        if self.operation.publishes {
            let generation = self.operation.generation(slice);
            let windows = windows(&mut self.context.windows)?;
            if !windows.is_free(generation) {
                return Ok(false);
            }
            self.context.unverified.verify_before(windows, generation)?;
            if !self.plan.is_heard {
                windows.enter(generation, &self.operation.call);
            }
        }
        self.at.started += 1;
        self.at.flights[(slice % limit) as usize].issued = false;
        Ok(true)
    }

    /// Retires finished slices, in order.
    fn retire(&mut self) -> Result<bool> {
        let mut progressed = false;
        loop {
            let at = &self.at;
            let flight = &at.flights[(at.retired % self.plan.slices_in_flight) as usize];
            if at.retired == at.started || !flight.issued || flight.pending_count > 0 {
                return Ok(progressed);
            }
            let slice = at.retired;
            // A push has already scaled its results.
            if !self.plan.is_registered() {
                // Channel `j` has the `j`-th part of all chunks, see `Schedule::striped`.
                let chunks = self.plan.schedule.output.chunks() / self.plan.channels.len() as u32;
                let first = self.number as u32 * chunks;
                self.operation.scale_result(first, chunks, slice)?;
            }
            if self.operation.publishes {
                self.finish_generation(slice)?;
            }
            self.at.retired += 1;
            progressed = true;
        }
    }

    /// Lets the peers reuse the slots of `slice`.
    fn finish_generation(&mut self, slice: u32) -> Result<()> {
        let generation = self.operation.generation(slice);
        let windows = windows(&mut self.context.windows)?;
        let Spec {
            access, assignment, ..
        } = self.plan.schedule.spec;
        let wake = match (assignment, access) {
            (Assignment::Owner, _) => Wake::Peers,
            (Assignment::Dynamic, Access::Registered) => {
                windows.all_entered(generation);
                Wake::None
            }
            // A rank that collects has heard all others, so it is at most two flights ahead of the
            // last of them. The last slice wakes peers: the next call may not hear from all ranks.
            (Assignment::Dynamic, _)
                if slice + 1 < self.operation.slices
                    && windows.slots() >= 2 * self.plan.slices_in_flight as usize =>
            {
                Wake::None
            }
            (Assignment::Dynamic, _) => Wake::Peers,
        };
        windows.finish(generation, wake);
        Ok(())
    }
}
