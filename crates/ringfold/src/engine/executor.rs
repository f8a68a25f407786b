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

use std::sync::Arc;

use super::Job;
use super::context::{Context, Kept};
use super::direct::Direct;
use super::late_ring::LateRing;
use super::lateness::Lateness;
use super::operation::Operation;
use super::plan::Plan;
use super::steps::Steps;
use super::tiny::Tiny;
use crate::error::{Error, Ranks, Result, Site};
use crate::memory::Registry;
use crate::transport::{Ticket, Time};

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

impl Executor {
    /// That of a call that bypasses slow ranks, at its beginning.
    pub fn late_ring(operation: &Operation, context: &mut Context) -> Result<Executor> {
        let (rank, world_size) = (context.rank, context.world_size);
        let ring = context.late_merge().ring(operation, rank, world_size)?;
        Ok(Executor::LateRing(ring))
    }

    /// The one that suits `plan`, at its beginning.
    pub fn planned(plan: Arc<Plan>, is_divided: bool, context: &mut Context) -> Executor {
        // Steps can be divided among threads, blocks of the written-out loop are too small.
        if plan.has_direct_loop() && !is_divided {
            return Executor::Direct(Direct::default());
        }
        let channels = context.kept.plans.progress(&plan);
        Executor::Steps(Steps { plan, channels })
    }

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
    pub fn complete(&mut self, ticket: Ticket, lateness: &mut Lateness) {
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
