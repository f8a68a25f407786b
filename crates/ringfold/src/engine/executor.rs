//! What carries out a collective call: one interface, and an executor for each way.
//!
//! A [`Running`] call is an [`Operation`], which all executors share, and an [`Executor`], which
//! knows how far the call has come:
//!
//! | executor | carries out |
//! |---|---|
//! | [`Tiny`] | what fits one published slot, written out: latency is measured by it |
//! | [`Direct`] | the `direct` all-reduce over published memory, as one loop over slices |
//! | [`Steps`] | any schedule, step by step |
//! | [`LateRing`] | a ring over messages that bypasses stragglers |
//!
//! The engine meets them only here: an executor *advances* as far as it can without waiting, is
//! told what *completes*, names the ranks that it *waits for* and the time at which it goes on
//! without them, and is *done* when all slices are. Messages between two ranks run beside them in
//! [`p2p`](super::p2p), with the same words.

use std::time::Duration;

use super::Job;
use super::direct::Direct;
use super::geometry::Geometry;
use super::late_ring::{LateMergeState, LateRing};
use super::lateness::Lateness;
use super::plans::Plans;
use super::steps::{PushScratch, Steps};
use super::tiny::Tiny;
use super::tiny::inline::Inline;
use super::unverified::Unverified;
use crate::call::Call;
use crate::error::{Error, Ranks, Result, Site};
use crate::memory::{Block, Pool, Region, Registry};
use crate::reduce::{self, Factor, Kernel, Parallel};
use crate::schedule::{Buffer, Span};
use crate::transport::{SlotUse, Ticket, Time, Transport, Windows};

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
    /// Whether a slot holds the output behind the input.
    pub is_apart: bool,
    /// Keeps `scratch`, and a scaled copy of the input, alive.
    pub owned: Vec<Block>,
}

/// What all executors need to know of a call.
#[derive(Debug)]
pub struct Operation {
    /// What this rank says it is in.
    pub call: Call,
    /// The number under which the engine keeps it, for tickets; set when it gets one.
    pub id: usize,
    /// Where the data is.
    pub buffers: Buffers,
    /// The combining loop, where something is combined.
    pub kernel: Option<Kernel>,
    /// What every element of the result is scaled by at the end.
    pub factor: Option<Factor>,
    /// Whether results that replace nothing are stored past the caches.
    pub non_temporal_stores: bool,
    /// Whose slots are written to.
    pub slot_use: SlotUse,
    /// Whether the call goes through published memory.
    pub publishes: bool,
    /// Whether this rank waits for every other one, so that it has seen which call they are in.
    pub hears_all: bool,
    /// How many slices.
    pub slices: u32,
    /// How many of them may be under way at once.
    pub slices_in_flight: u32,
    /// The first window generation, when memory is published; set when the call begins.
    pub first_generation: u64,
    /// Whether it has begun.
    pub is_begun: bool,
    /// How long it may take once it has begun.
    pub timeout: Duration,
    /// When it must be done; unset until the driver first reads the clock.
    pub deadline: Option<Time>,
}

/// How a call is carried out, and how far it has come.
#[derive(Debug)]
pub enum Executor {
    /// One published slice.
    Tiny(Tiny),
    /// The `direct` all-reduce over published memory.
    Direct(Direct),
    /// Any schedule.
    Steps(Steps),
    /// A ring that bypasses stragglers.
    LateRing(Box<LateRing>),
}

/// A collective call under way.
#[derive(Debug)]
pub struct Running {
    /// What all executors share.
    pub operation: Operation,
    /// The one that carries it out.
    pub executor: Executor,
    /// What to do in its place where not all ranks' memory can be reached.
    fallback: Option<Job>,
}

/// What executors keep from one call to the next, so that it is not allocated each time.
pub struct Kept {
    /// A list to build operands in.
    pub operands: Vec<Region>,
    /// Payloads in the heads of slots.
    pub inline: Inline,
    /// Plans, and the bookkeeping of their steps.
    pub plans: Plans,
    /// Room for a push.
    pub push: PushScratch,
    /// What late-merge calls need, where the communicator has them.
    pub late_merge: Option<Box<LateMergeState>>,
}

impl Kept {
    /// Nothing yet, among `world_size` ranks.
    pub fn new(world_size: usize) -> Kept {
        Kept {
            operands: Vec::new(),
            inline: Inline::new(world_size),
            plans: Plans::default(),
            push: PushScratch::default(),
            late_merge: None,
        }
    }
}

/// What an executor works with: the rank's, for all its calls.
pub struct Context {
    /// Where messages go.
    pub transport: Box<dyn Transport>,
    /// Published memory, if all ranks are on one host.
    pub windows: Option<Windows>,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// What was kept of earlier calls.
    pub kept: Kept,
    /// What copies and combines, maybe with other threads.
    pub parallel: Parallel,
    /// The buffers that peers have mapped, and theirs.
    pub registry: Registry,
    /// Learns which peers arrived.
    pub lateness: Lateness,
    /// Finished calls in which this rank did not hear from all others, and their generations: the
    /// newest few.
    pub unverified: Unverified,
    /// Memory for what cannot be known beforehand.
    pub pool: Pool,
    /// The time of the last attempt.
    pub now: Time,
    /// Whether the transport has been polled at this time.
    pub is_polled: bool,
}

/// Where a call's number begins in a ticket; what stands below is its executor's.
const TICKET_CALL_SHIFT: u32 = 48;

/// Stands for the call in the tickets of what no call waits for: no call has this number.
const UNATTENDED: u64 = 0xfffe;

/// A ticket of call `call`; `rest` is below 2^48.
pub fn ticket(call: usize, rest: u64) -> Ticket {
    (call as u64) << TICKET_CALL_SHIFT | rest
}

/// A ticket of what no call waits for.
pub fn unattended(rest: u64) -> Ticket {
    UNATTENDED << TICKET_CALL_SHIFT | rest
}

/// Whether no call waits for what was posted with this ticket.
pub fn is_unattended(ticket: Ticket) -> bool {
    ticket >> TICKET_CALL_SHIFT == UNATTENDED
}

/// The call that a ticket belongs to.
pub fn ticket_call(ticket: Ticket) -> usize {
    (ticket >> TICKET_CALL_SHIFT) as usize
}

impl Executor {
    /// Does what can be done without waiting; whether that was anything.
    #[inline]
    fn advance(&mut self, operation: &Operation, context: &mut Context) -> Result<bool> {
        match self {
            Executor::Tiny(tiny) => tiny.advance(operation, context),
            Executor::Direct(direct) => direct.advance(operation, context),
            Executor::Steps(steps) => steps.advance(operation, context),
            Executor::LateRing(ring) => ring.advance(operation, context),
        }
    }

    /// Slices that are done, in order.
    #[inline]
    fn slices_done(&self) -> u32 {
        match self {
            Executor::Tiny(tiny) => u32::from(tiny.is_done()),
            Executor::Direct(direct) => direct.slices_done(),
            Executor::Steps(steps) => steps.slices_done(),
            Executor::LateRing(ring) => ring.slices_done(),
        }
    }

    /// Notes that what was posted with `ticket` is complete.
    fn complete(&mut self, ticket: Ticket, lateness: &mut Lateness) {
        match self {
            Executor::Steps(steps) => steps.complete(ticket, lateness),
            Executor::LateRing(ring) => ring.complete(ticket),
            Executor::Tiny(_) | Executor::Direct(_) => unreachable!("they post nothing"),
        }
    }

    /// The ranks that it waits for now.
    fn waiting_for(&self, operation: &Operation, context: &mut Context) -> Vec<usize> {
        match self {
            Executor::Tiny(tiny) => tiny.waiting_for(operation, context),
            Executor::Direct(direct) => direct.waiting_for(operation, context),
            Executor::Steps(steps) => steps.waiting_for(operation, context),
            Executor::LateRing(ring) => ring.waiting_for(),
        }
    }

    /// Its call is done: what peers have stored in registered memory goes where the user reads it.
    pub fn end(&self, operation: &Operation, registry: &Registry) {
        if let Executor::Steps(steps) = self
            && steps.plan.is_registered()
        {
            registry.sync_from_file(operation.buffers.output);
        }
    }

    /// Leaves what the next call of the kind can use.
    pub fn keep(self, kept: &mut Kept) {
        match self {
            Executor::Steps(steps) => kept.plans.keep(&steps.plan, steps.channels),
            Executor::LateRing(ring) => {
                if let Some(state) = &mut kept.late_merge {
                    state.keep(ring);
                }
            }
            Executor::Tiny(_) | Executor::Direct(_) => {}
        }
    }
}

impl Running {
    /// A call that has not begun.
    pub fn new(operation: Operation, executor: Executor) -> Running {
        Running {
            operation,
            executor,
            fallback: None,
        }
    }

    /// The same call, which does `fallback` where not all ranks' memory can be reached.
    pub fn or(self, fallback: Option<Job>) -> Running {
        Running { fallback, ..self }
    }

    /// Does what can be done without waiting; whether that was anything.
    #[inline]
    pub fn advance(&mut self, context: &mut Context) -> Result<bool> {
        self.executor.advance(&self.operation, context)
    }

    /// Whether everything is done.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.executor.slices_done() == self.operation.slices
    }

    /// Notes that what was posted with `ticket` is complete.
    pub fn complete(&mut self, ticket: Ticket, lateness: &mut Lateness) {
        self.executor.complete(ticket, lateness);
    }

    /// What to do in its place, once it has turned out that not all ranks' memory can be reached,
    /// which it does on all ranks alike.
    pub fn take_fallback(&mut self) -> Option<Job> {
        let fell_back = matches!(&self.executor, Executor::Steps(steps) if steps.fell_back());
        self.fallback.take_if(|_| fell_back)
    }

    /// Whether it is a tiny call, which is prepared for good and runs again and again.
    #[inline]
    pub fn is_tiny(&self) -> bool {
        matches!(self.executor, Executor::Tiny(_))
    }

    /// Whether there is local work left that depends on no peer.
    pub fn has_local_work(&self) -> bool {
        matches!(&self.executor, Executor::Steps(steps) if steps.has_local_work())
    }

    /// Whether every attempt should know what time it is.
    pub fn needs_clock(&self) -> bool {
        matches!(self.executor, Executor::LateRing(_))
    }

    /// When it has waited too long for a peer, so that it goes on without it.
    pub fn next_timer(&self) -> Option<Time> {
        match &self.executor {
            Executor::LateRing(ring) => ring.next_timer(),
            _ => None,
        }
    }

    /// The wait under way has lasted until `now`, long enough for the clock.
    pub fn time_wait(&mut self, now: Time, lateness: &mut Lateness) {
        match &mut self.executor {
            Executor::Tiny(tiny) => tiny.time_wait(now, lateness),
            _ => lateness.time_wait(now),
        }
    }

    /// The peer whose wait is counted as a short one already.
    pub fn counted_as_short(&self) -> Option<usize> {
        match &self.executor {
            Executor::Tiny(tiny) => tiny.counted_as_short(),
            _ => None,
        }
    }

    /// The ranks that it waits for now.
    pub fn waiting_for(&self, context: &mut Context) -> Vec<usize> {
        let mut ranks = self.executor.waiting_for(&self.operation, context);
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Where it stands, in words.
    pub fn site(&self, context: &mut Context) -> Site {
        let (slice, slices) = (self.executor.slices_done() + 1, self.operation.slices);
        let phase = match &self.waiting_for(context)[..] {
            [] => format!("slice {slice} of {slices}"),
            ranks => format!("waiting for {}, slice {slice} of {slices}", Ranks(ranks)),
        };
        Site {
            call: self.operation.call,
            phase,
        }
    }

    /// Sets the deadline if there is none yet, and gives the error of a call whose deadline has
    /// passed.
    pub fn check_deadline(&mut self, now: Time, context: &mut Context) -> Result<()> {
        let timeout = self.operation.timeout;
        let deadline = self.operation.deadline.get_or_insert(now.after(timeout));
        if now < *deadline {
            return Ok(());
        }
        Err(Error::Timeout {
            waiting_for: self.waiting_for(context),
            after_ms: timeout.as_millis() as u64,
            site: Some(self.site(context)),
        })
    }
}

impl Buffers {
    /// What a call in these is about: the longer of input and output.
    pub fn bytes(&self) -> usize {
        self.input.bytes().max(self.output.bytes())
    }
}

impl Operation {
    /// The window generation of a slice.
    pub fn generation(&self, slice: u32) -> u64 {
        self.first_generation + u64::from(slice)
    }

    /// The last generation of a call through published memory.
    pub fn last_generation(&self) -> u64 {
        self.generation(self.slices - 1)
    }

    /// The combining loop of a call that reduces.
    pub fn kernel(&self) -> Kernel {
        self.kernel.expect(
            "a schedule that reduces belongs to a collective that does, whose kernel was made",
        )
    }

    /// The memory of `span` in `slice`.
    pub fn region(&self, span: Span, slice: u32) -> Region {
        if span.len == 0 {
            return Region::EMPTY;
        }
        let buffers = &self.buffers;
        match span.buffer {
            Buffer::Input => buffers
                .input
                .part(buffers.input_cut.range(span.first, span.len, slice)),
            Buffer::Output => buffers
                .output
                .part(buffers.output_cut.range(span.first, span.len, slice)),
            Buffer::Scratch => {
                let cut = &buffers.input_cut;
                let bytes = cut.range(span.first, span.len, slice).len();
                let base = (slice % self.slices_in_flight) as usize * cut.slice_bytes()
                    + cut.slot_offset(span.first, slice);
                buffers.scratch.part(base..base + bytes)
            }
        }
    }

    /// Where chunk `first` of `buffer` stands in a published slot.
    pub fn slot_offset(&self, buffer: Buffer, first: u32, slice: u32) -> usize {
        let Buffers {
            input_cut,
            output_cut,
            is_apart,
            ..
        } = &self.buffers;
        match buffer {
            Buffer::Input | Buffer::Scratch => input_cut.slot_offset(first, slice),
            Buffer::Output if *is_apart => {
                input_cut.slice_bytes() + output_cut.slot_offset(first, slice)
            }
            Buffer::Output => output_cut.slot_offset(first, slice),
        }
    }

    /// Scales `len` chunks of the result of `slice` from `first` on, where the operation asks for
    /// it.
    pub fn scale_result(&self, first: u32, len: u32, slice: u32) -> Result<()> {
        let Some(factor) = self.factor else {
            return Ok(());
        };
        let range = self.buffers.output_cut.range(first, len, slice);
        let region = self.buffers.output.part(range);
        reduce::scale(self.call.dtype, region, region, factor)?;
        Ok(())
    }
}

/// The windows of a context that has them.
#[inline]
pub fn windows(windows: &mut Option<Windows>) -> Result<&mut Windows> {
    windows
        .as_mut()
        .ok_or_else(|| Error::Unsupported("published memory between ranks of several hosts".into()))
}
