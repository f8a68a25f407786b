//! The execution of a collective call: one interface, and an executor for each way.
//!
//! A [`Running`] call is a [`PreparedOperation`], which all executors share, and an [`Executor`],
//! which tracks the progress of the call:
//!
//! | executor | carries out |
//! |---|---|
//! | [`Tiny`] | calls that fit one published slot, written out: latency is measured with these |
//! | [`Direct`] | the `direct` all-reduce over published memory, as one loop over slices |
//! | [`Steps`] | any schedule, step by step |
//! | [`LateRing`] | a ring over messages that bypasses stragglers |
//!
//! The engine uses executors only through this interface. An executor *advances* as far as it can
//! without waiting and learns which tickets *complete*. The executor names the ranks that it
//! *waits for*, and the time at which it continues without them, and is *done* when all slices are.
//! Messages between two ranks run beside the executors in [`p2p`](super::p2p), by methods of the
//! same names.
//!
//! The way alone, and whether helper threads share the call, select the executor, so a measurement
//! by name measures what a tuned call gets.

use std::sync::Arc;

use super::Job;
use super::context::{Context, Kept};
use super::direct::Direct;
use super::late_ring::LateRing;
use super::lateness::Lateness;
use super::operation::PreparedOperation;
use super::plan::ExecutionPlan;
use super::steps::Steps;
use super::tiny::Tiny;
use crate::error::{Error, Ranks, Result, Site};
use crate::memory::Registry;
use crate::transport::{Ticket, Time};

/// The executor of a call, with its progress.
#[derive(Debug)]
pub enum Executor {
    /// A call of one published slice.
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
    /// The data that all executors share.
    pub operation: PreparedOperation,
    /// The executor of the call.
    pub executor: Executor,
    /// The job to run instead if not all ranks' memory can be reached.
    fallback: Option<Job>,
}

impl Executor {
    /// Creates the executor of a call that bypasses slow ranks.
    pub fn late_ring(operation: &PreparedOperation, context: &mut Context) -> Result<Executor> {
        let (rank, world_size) = (context.rank, context.world_size);
        let ring = context.late_merge().ring(operation, rank, world_size)?;
        Ok(Executor::LateRing(ring))
    }

    /// Creates the executor that suits `plan`.
    pub fn planned(plan: Arc<ExecutionPlan>, is_divided: bool, context: &mut Context) -> Executor {
        // Steps can be divided among threads; the blocks of the direct loop are too small.
        if plan.has_direct_loop() && !is_divided {
            return Executor::Direct(Direct::default());
        }
        let channels = context.kept.plans.progress(&plan);
        Executor::Steps(Steps { plan, channels })
    }

    /// Does all work that is ready; returns whether there was any.
    #[inline]
    fn advance(&mut self, operation: &PreparedOperation, context: &mut Context) -> Result<bool> {
        match self {
            Executor::Tiny(tiny) => tiny.advance(operation, context),
            Executor::Direct(direct) => direct.advance(operation, context),
            Executor::Steps(steps) => steps.advance(operation, context),
            Executor::LateRing(ring) => ring.advance(operation, context),
        }
    }

    /// Returns the number of slices that are done, in order.
    #[inline]
    fn slices_done(&self) -> u32 {
        match self {
            Executor::Tiny(tiny) => u32::from(tiny.is_done()),
            Executor::Direct(direct) => direct.slices_done(),
            Executor::Steps(steps) => steps.slices_done(),
            Executor::LateRing(ring) => ring.slices_done(),
        }
    }

    /// Records that the work posted with `ticket` is complete.
    pub fn complete(&mut self, ticket: Ticket, lateness: &mut Lateness) {
        match self {
            Executor::Steps(steps) => steps.complete(ticket, lateness),
            Executor::LateRing(ring) => ring.complete(ticket),
            Executor::Tiny(_) | Executor::Direct(_) => unreachable!(
                "tiny and direct calls post \
                nothing"
            ),
        }
    }

    /// Returns the ranks that the call waits for now.
    fn waiting_for(&self, operation: &PreparedOperation, context: &mut Context) -> Vec<usize> {
        match self {
            Executor::Tiny(tiny) => tiny.waiting_for(operation, context),
            Executor::Direct(direct) => direct.waiting_for(operation, context),
            Executor::Steps(steps) => steps.waiting_for(operation, context),
            Executor::LateRing(ring) => ring.waiting_for(),
        }
    }

    /// Ends the call: updates the user's buffer with results that peers stored in registered
    /// memory.
    pub fn end(&self, operation: &PreparedOperation, registry: &Registry) {
        if let Executor::Steps(steps) = self
            && steps.plan.is_registered()
        {
            registry.sync_from_file(operation.buffers.output);
        }
    }

    /// Keeps the state that the next call of the same kind can reuse.
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
    /// Creates a call that has not begun.
    pub fn new(operation: PreparedOperation, executor: Executor) -> Running {
        Running {
            operation,
            executor,
            fallback: None,
        }
    }

    /// Sets the job to run instead if not all ranks' memory can be reached.
    pub fn or(self, fallback: Option<Job>) -> Running {
        Running { fallback, ..self }
    }

    /// Does all work that is ready; returns whether there was any.
    #[inline]
    pub fn advance(&mut self, context: &mut Context) -> Result<bool> {
        self.executor.advance(&self.operation, context)
    }

    /// Whether the call is done.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.executor.slices_done() == self.operation.slices
    }

    /// Takes the fallback if the executor found that not all ranks' memory can be reached, which
    /// all ranks find alike.
    pub fn take_fallback(&mut self) -> Option<Job> {
        let fell_back = matches!(&self.executor, Executor::Steps(steps) if steps.fell_back());
        self.fallback.take_if(|_| fell_back)
    }

    /// Whether the call is a tiny one, which is prepared once and runs again and again.
    #[inline]
    pub fn is_tiny(&self) -> bool {
        matches!(self.executor, Executor::Tiny(_))
    }

    /// Whether local work is left that depends on no peer.
    pub fn has_local_work(&self) -> bool {
        matches!(&self.executor, Executor::Steps(steps) if steps.has_local_work())
    }

    /// Whether every attempt needs the current time.
    pub fn needs_clock(&self) -> bool {
        matches!(self.executor, Executor::LateRing(_))
    }

    /// Returns the time at which the call stops waiting for a peer and continues without that peer.
    pub fn next_timer(&self) -> Option<Time> {
        match &self.executor {
            Executor::LateRing(ring) => ring.next_timer(),
            _ => None,
        }
    }

    /// Records that the wait under way has lasted until `now`, long enough to be timed.
    pub fn time_wait(&mut self, now: Time, lateness: &mut Lateness) {
        match &mut self.executor {
            Executor::Tiny(tiny) => tiny.time_wait(now, lateness),
            _ => lateness.time_wait(now),
        }
    }

    /// Returns the peer whose wait is already counted as a short one.
    pub fn counted_as_short(&self) -> Option<usize> {
        match &self.executor {
            Executor::Tiny(tiny) => tiny.counted_as_short(),
            _ => None,
        }
    }

    /// Returns the ranks that the call waits for now.
    pub fn waiting_for(&self, context: &mut Context) -> Vec<usize> {
        let mut ranks = self.executor.waiting_for(&self.operation, context);
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Describes the progress of the call, for errors.
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

    /// Sets the deadline if there is none yet; returns `Timeout` if the deadline has passed.
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
