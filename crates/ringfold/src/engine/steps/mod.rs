//! One call under way: a plan, its buffers, and how far each channel has come.
//!
//! # Order of issue
//!
//! All slices of a call run the same steps. Slice `s` takes the steps of round `r` at tick `r + s * skew`; the steps of a
//! tick are issued slice by slice. So the order on every stream is the same at both ends, whatever completes when, and
//! the receive of one slice, the reduction of another and the send of a third overlap. A step that cannot be issued yet
//! holds back the later ones of its channel: it waits only for what stands before it in this order on some rank, so
//! somebody can always go on.
//!
//! # Invariants
//!
//! * Slice `s` begins after slice `s - slices_in_flight` has retired, so their scratch memory and bookkeeping are shared.
//! * Slices retire in order, once all their steps are issued and complete.

mod diagnosis;
mod issue;
mod push;
mod serve;

use std::sync::Arc;
use std::time::Duration;

pub use super::direct::Straight;
pub use diagnosis::phase;
use issue::Issue;
pub use push::Workbench;

use super::Job;
use super::geometry::Geometry;
use super::late_ring::Keeper;
use super::late_ring::run::Run;
use super::lateness::Lateness;
use super::plan::Plan;
use super::tiny::inline::Inline;
use super::unverified::Unverified;
use crate::call::Call;
use crate::error::{Error, Result};
use crate::memory::{Block, Pool, Region, Registry};
use crate::reduce::{self, Factor, Kernel, Parallel};
use crate::schedule::Action;
use crate::transport::{SlotUse, Ticket, Time, Transport, Wake, Windows};

/// The memory of one call and how it is cut.
#[derive(Debug)]
pub struct Buffers {
    /// What is read.
    pub input: Region,
    /// What is filled.
    pub output: Region,
    /// The engine's memory, `slices_in_flight` slices of `input_cut.slice_bytes()`.
    pub scratch: Region,
    /// How `input` and `scratch` are cut.
    pub input_cut: Geometry,
    /// How `output` is cut.
    pub output_cut: Geometry,
    /// Keeps `scratch`, and a scaled copy of the input, alive.
    pub owned: Vec<Block>,
}

impl Buffers {
    /// The size of the call, for thresholds.
    pub fn bytes(&self) -> usize {
        self.input.bytes().max(self.output.bytes())
    }
}

/// A call under way.
#[derive(Debug)]
pub struct Operation {
    /// What runs.
    pub plan: Arc<Plan>,
    /// What this rank says it is in.
    pub call: Call,
    /// Where the data is.
    pub buffers: Buffers,
    /// The combining loop, where something is combined.
    pub kernel: Option<Kernel>,
    /// What every element of the result is scaled by at the end.
    pub finish: Option<Factor>,
    /// Whose slots are written to.
    pub slot_use: SlotUse,
    /// How many slices.
    pub slices: u32,
    /// The first window generation, when memory is published; set when the operation begins.
    pub first_generation: u64,
    /// Whether it has begun.
    pub is_begun: bool,
    /// Whether results that replace nothing are stored past the caches.
    pub streams: bool,
    /// What to do when not all ranks' buffers are registered, or can be read.
    pub instead: Option<Job>,
    /// Whether that is so.
    pub is_refused: bool,
    /// How long it may take once it has begun.
    pub timeout: Duration,
    /// When it must be done; unset until the driver first looks at the clock.
    pub deadline: Option<Time>,
    /// Progress of each channel.
    pub channels: Vec<ChannelProgress>,
    /// Progress on the straight way, where it is taken instead of the schedule's steps.
    pub straight: Option<Straight>,
    /// Progress of a late-merge ring, which is run instead of the schedule's steps.
    pub late_merge: Option<Box<Run>>,
}

/// How far one channel has come.
#[derive(Debug, Default)]
pub struct ChannelProgress {
    tick: u64,
    slice: u32,
    step: u32,
    /// Where in the present slice's round we are: `step` counts from the round's start.
    started: u32,
    pub(in crate::engine) retired: u32,
    /// The first peer that an `Await` has not seen arrive.
    awaited: u32,
    /// Bytes that are done of the present `Push`; not 0 while a `Serve` goes on.
    pushed: usize,
    /// One a slice in flight, at `slice % slices_in_flight`.
    flights: Vec<Flight>,
}

/// The asynchronous steps of one slice.
#[derive(Debug, Default)]
struct Flight {
    /// One bit a step: posted, not complete.
    pending: Vec<u64>,
    pending_count: u32,
    issued: bool,
}

/// What an operation needs of its engine.
pub struct Context<'a> {
    /// Where messages go.
    pub transport: &'a mut dyn Transport,
    /// The published memory, where all ranks share a host.
    pub windows: Option<&'a mut Windows>,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This operation's number, for tickets.
    pub id: usize,
    /// A list to build operands in, kept so that it is not allocated each time.
    pub operands: &'a mut Vec<Region>,
    /// What copies and combines.
    pub parallel: &'a mut Parallel,
    /// Payloads in the heads of slots.
    pub inline: &'a Inline,
    /// The buffers that peers have mapped, and theirs.
    pub registry: &'a Registry,
    /// More such room.
    pub bench: &'a mut Workbench,
    /// Who is told when a peer is heard.
    pub lateness: &'a mut Lateness,
    /// Calls that are to be compared before their slots are used again.
    pub unverified: &'a mut Unverified,
    /// Memory for what cannot be known beforehand.
    pub pool: &'a Pool,
    /// What late-merge calls need, where the communicator has them.
    pub late_merge: Option<&'a mut Keeper>,
    /// What time it is.
    pub now: Time,
    /// Whether all that has come by then has been taken note of.
    pub is_polled: bool,
}

/// A ticket's parts: operation 16 bits, channel 8, slice in flight 8, step 32.
pub fn ticket(operation: usize, channel: usize, flight: u32, step: u32) -> Ticket {
    (operation as u64) << 48 | (channel as u64) << 40 | (flight as u64) << 32 | step as u64
}

/// The operation that a ticket belongs to.
pub fn ticket_operation(ticket: Ticket) -> usize {
    (ticket >> 48) as usize
}

impl ChannelProgress {
    /// A channel of `steps` steps at its beginning.
    pub fn new(steps: usize, slices_in_flight: u32) -> ChannelProgress {
        let flight = || Flight {
            pending: vec![0; steps.div_ceil(64)],
            ..Flight::default()
        };
        ChannelProgress {
            flights: (0..slices_in_flight).map(|_| flight()).collect(),
            ..ChannelProgress::default()
        }
    }

    /// Back to the beginning, keeping the memory.
    pub fn reset(&mut self) {
        let flights = std::mem::take(&mut self.flights);
        *self = ChannelProgress {
            flights,
            ..ChannelProgress::default()
        };
    }
}

impl Flight {
    fn is_pending(&self, step: u32) -> bool {
        self.pending[step as usize / 64] >> (step % 64) & 1 == 1
    }

    fn flip(&mut self, step: u32) {
        self.pending[step as usize / 64] ^= 1 << (step % 64);
    }
}

impl Operation {
    /// Issues what can be issued; whether anything was.
    pub fn advance(&mut self, context: &mut Context<'_>) -> Result<bool> {
        if self.straight.is_some() {
            return self.advance_straight(context);
        }
        if let Some(mut run) = self.late_merge.take() {
            let progressed = run.advance(self, context);
            self.channels[0].retired = run.retired();
            self.late_merge = Some(run);
            return progressed;
        }
        let mut progressed = false;
        for channel in 0..self.channels.len() {
            progressed |= self.advance_channel(channel, context)?;
        }
        Ok(progressed)
    }

    /// Whether everything is done.
    pub fn is_done(&self) -> bool {
        self.channels
            .iter()
            .all(|progress| progress.retired == self.slices)
    }

    /// The last generation of a call through published memory.
    pub fn last_generation(&self) -> u64 {
        self.first_generation + self.slices as u64 - 1
    }

    /// Notes that the step of `ticket` is complete, and says what it is.
    pub fn complete(&mut self, ticket: Ticket) -> &Action {
        let (channel, flight, step) = ((ticket >> 40) as u8, (ticket >> 32) as u8, ticket as u32);
        let action = &self.plan.channels[channel as usize].steps[step as usize].action;
        let flight = &mut self.channels[channel as usize].flights[flight as usize];
        assert!(flight.is_pending(step), "a step completed twice");
        flight.flip(step);
        flight.pending_count -= 1;
        action
    }

    fn advance_channel(&mut self, channel: usize, context: &mut Context<'_>) -> Result<bool> {
        let plan = self.plan.clone();
        let steps = &plan.channels[channel].steps;
        let starts = &plan.channels[channel].round_starts;
        let (rounds, skew) = (plan.schedule.rounds.max(1) as u64, plan.skew as u64);
        let last_tick = rounds - 1 + (self.slices as u64 - 1) * skew;
        let mut progressed = self.retire(channel, context)?;
        loop {
            let at = &self.channels[channel];
            if at.tick > last_tick {
                break;
            }
            let (tick, slice) = (at.tick, at.slice);
            if slice as u64 * skew > tick || slice >= self.slices {
                self.next_tick(channel, rounds, skew);
                continue;
            }
            let round = (tick - slice as u64 * skew) as usize;
            if slice == self.channels[channel].started
                && !self.begin_slice(channel, slice, context)?
            {
                break;
            }
            let index = starts.get(round).copied().unwrap_or(0) + self.channels[channel].step;
            if index >= starts.get(round + 1).copied().unwrap_or(0) {
                let at = &mut self.channels[channel];
                at.flights[(slice % plan.slices_in_flight) as usize].issued |=
                    round as u64 + 1 == rounds;
                (at.slice, at.step) = (slice + 1, 0);
                progressed |= self.retire(channel, context)?;
                continue;
            }
            let step = &steps[index as usize];
            let flight = slice % plan.slices_in_flight;
            if plan.channels[channel]
                .after(step)
                .iter()
                .any(|&earlier| self.channels[channel].flights[flight as usize].is_pending(earlier))
            {
                break;
            }
            match self.issue(channel, slice, index, context)? {
                Issue::Blocked => break,
                Issue::Begun => {
                    progressed = true;
                    break;
                }
                Issue::Refused => {
                    self.is_refused = true;
                    return Ok(true);
                }
                Issue::Done => {}
                Issue::Pending => {
                    let flight = &mut self.channels[channel].flights[flight as usize];
                    flight.flip(index);
                    flight.pending_count += 1;
                }
            }
            self.channels[channel].step += 1;
            progressed = true;
        }
        Ok(progressed)
    }

    /// Goes to the first slice that has a round at the next tick.
    fn next_tick(&mut self, channel: usize, rounds: u64, skew: u64) {
        let at = &mut self.channels[channel];
        at.tick += 1;
        at.slice = (at.tick + 1).saturating_sub(rounds).div_ceil(skew) as u32;
        at.step = 0;
        if at.tick > rounds - 1 + (self.slices as u64 - 1) * skew {
            at.slice = self.slices;
        }
    }

    /// Makes room for `slice`; false when there is none yet.
    fn begin_slice(
        &mut self,
        channel: usize,
        slice: u32,
        context: &mut Context<'_>,
    ) -> Result<bool> {
        let limit = self.plan.slices_in_flight;
        if slice >= limit && self.channels[channel].retired <= slice - limit {
            return Ok(false);
        }
        let generation = self.first_generation + slice as u64;
        if self.publishes() {
            let windows = windows(&mut context.windows)?;
            if !windows.is_free(generation) {
                return Ok(false);
            }
            context.unverified.verify_before(windows, generation)?;
        }
        if self.publishes() && !self.plan.is_heard {
            windows(&mut context.windows)?.enter(generation, &self.call);
        }
        let at = &mut self.channels[channel];
        at.started += 1;
        at.flights[(slice % limit) as usize].issued = false;
        Ok(true)
    }

    /// Retires finished slices, in order.
    fn retire(&mut self, channel: usize, context: &mut Context<'_>) -> Result<bool> {
        let mut progressed = false;
        loop {
            let at = &self.channels[channel];
            let flight = &at.flights[(at.retired % self.plan.slices_in_flight) as usize];
            if at.retired == at.started || !flight.issued || flight.pending_count > 0 {
                return Ok(progressed);
            }
            let slice = at.retired;
            self.finish_slice(channel, slice)?;
            if self.publishes() {
                let generation = self.first_generation + slice as u64;
                let windows = windows(&mut context.windows)?;
                // A rank that collects has heard all others, so it is at most two flights ahead of the
                // last of them. The last slice wakes: the next call may not hear all.
                let is_near = self.plan.is_combined
                    && slice + 1 < self.slices
                    && windows.slots() >= 2 * self.plan.slices_in_flight as usize;
                if self.plan.is_served {
                    windows.all_entered(generation);
                }
                let wake = match is_near || self.plan.is_served {
                    true => Wake::None,
                    false => Wake::Peers,
                };
                windows.finish(generation, wake);
            }
            self.channels[channel].retired += 1;
            progressed = true;
        }
    }

    /// Scales what this channel made of `slice`.
    pub(in crate::engine) fn finish_slice(&mut self, channel: usize, slice: u32) -> Result<()> {
        let Some(factor) = self.finish.filter(|_| !self.plan.exposes) else {
            return Ok(());
        };
        // Channel `j` has the `j`-th part of all chunks, see `Schedule::striped`.
        let chunks = self.plan.schedule.output.chunks() / self.channels.len() as u32;
        let first = channel as u32 * chunks;
        let range = self.buffers.output_cut.range(first, chunks, slice);
        let region = self.buffers.output.part(range);
        reduce::scale(self.call.dtype, region, region, factor)?;
        Ok(())
    }

    /// Whether there is work left that waits for nobody.
    pub fn is_at_work(&self) -> bool {
        self.channels.iter().any(|channel| channel.pushed > 0)
    }

    /// Whether the call goes through published memory.
    pub fn publishes(&self) -> bool {
        self.plan.schedule.spec.medium == crate::schedule::Medium::Shared
    }
}

#[inline]
pub(super) fn windows<'a>(windows: &'a mut Option<&mut Windows>) -> Result<&'a mut Windows> {
    windows
        .as_deref_mut()
        .ok_or_else(|| Error::Unsupported("published memory between ranks of several hosts".into()))
}
