//! The engine: runs schedules over a transport, never waits and reads no clock.
//!
//! [`Engine::submit`] accepts a [`Job`]. The caller repeats [`Engine::progress`], which does all
//! work that is ready, until [`Engine::take_finished`] returns the job. How to wait in between is
//! up to the caller: the communicator's driver on real transports, the event loop in the simulator.
//!
//! # Model
//!
//! Collectives run one after the other, in the order of submission, which is the same on all ranks;
//! each has an [`executor`]. Messages between two ranks run beside the collectives, see [`p2p`].
//!
//! # Invariants
//!
//! * No allocation once a kind of call has been seen: plans, bookkeeping and scratch are kept.
//! * After an error nothing runs; the transport is only dropped.
//!
//! From submission to completion, the engine takes no lock, writes no log and makes no avoidable
//! system call. Everything that can lack room is queued and bounded: slices in flight, slots,
//! cells, calls.

mod announce;
mod context;
mod direct;
mod executor;
mod executors;
mod gate;
mod gated;
pub mod geometry;
mod job;
pub mod late_ring;
pub mod lateness;
mod operation;
pub mod p2p;
pub mod plan;
mod prepare;
mod running;
mod slicing;
mod status;
mod steps;
mod tickets;
pub mod tiny;
mod tiny_calls;
mod unverified;
mod wide;

use std::collections::VecDeque;

use crate::call::{PREPARED, Rooted, RootedCalls};
use crate::error::Result;
use crate::memory::{Hold, Pool, Region, Registry};
use crate::reduce::Parallel;
use crate::schedule::Groups;
use crate::transport::ended::ClosedTransport;
use crate::transport::{Term, Ticket, Time, Transport, Wake};
use context::Context;
use executors::Kept;
pub use gate::{Gate, OwnSlots, SharedSlots};
pub use job::{ANY_SOURCE, COLLECTIVES_MAX, Finished, Job, JobId, MESSAGES_MAX};
use late_ring::{LateMergePolicy, LateMergeState};
use lateness::{Lateness, Stats};
use p2p::Mailbox;
use running::Running;
use tiny::TinyKinds;
use unverified::Unverified;

/// Runs the calls of one rank over one transport.
pub struct Engine {
    /// The state that all calls share.
    context: Context,
    /// The state that executors keep from one call to the next.
    kept: Kept,
    /// The groups of ranks that share a host.
    hosts: Groups,
    /// Calls by number; tiny calls stay for the next call of their kind.
    calls: Vec<Option<Running>>,
    free: Vec<usize>,
    tiny: TinyKinds,
    /// Calls under way, in order; only the first runs.
    queue: VecDeque<usize>,
    mailbox: Mailbox,
    finished: VecDeque<JobId>,
    sequence: u64,
    /// Digests of the submitted collectives with a root.
    rooted: Rooted,
    generation: u64,
    done: Vec<Ticket>,
    /// Whether a fallback has been logged.
    is_fallback_logged: bool,
}

impl Engine {
    /// Creates an engine for `rank` of `world_size` ranks.
    pub fn new(
        transport: Box<dyn Transport>,
        rank: usize,
        world_size: usize,
        pool: Pool,
    ) -> Engine {
        let mut lateness = Lateness::new(world_size);
        lateness.reset(PREPARED);
        Engine {
            context: Context {
                windows: transport.windows(),
                transport,
                rank,
                world_size,
                operands: Vec::new(),
                parallel: Parallel::none(),
                registry: Registry::new(rank),
                lateness,
                unverified: Unverified::default(),
                pool,
                now: Time::default(),
                is_polled: false,
            },
            kept: Kept::new(world_size),
            hosts: Groups::ONE,
            calls: Vec::new(),
            free: Vec::new(),
            tiny: TinyKinds::default(),
            queue: VecDeque::new(),
            mailbox: Mailbox::new(rank, world_size),
            finished: VecDeque::new(),
            sequence: PREPARED,
            rooted: Rooted::default(),
            generation: 0,
            done: Vec::new(),
            is_fallback_logged: false,
        }
    }

    /// Returns the copy and reduction loops, which use this thread alone unless replaced here.
    pub(crate) fn parallel(&mut self) -> &mut Parallel {
        &mut self.context.parallel
    }

    /// Returns the statistics of late ranks up to now, in the finished calls.
    pub fn stats(&self) -> Stats {
        self.context.lateness.stats(self.collectives_finished())
    }

    /// Resets the statistics, from the call under way on.
    pub fn reset_stats(&mut self) {
        let finished = self.collectives_finished();
        self.context.lateness.reset(finished);
    }

    /// Returns the statistics of late ranks: the engine adds arrivals, its driver adds waits.
    pub fn lateness(&mut self) -> &mut Lateness {
        &mut self.context.lateness
    }

    /// Sets which ranks share a host. For use before the first call.
    pub(crate) fn set_hosts(&mut self, hosts: Groups) {
        self.hosts = hosts;
    }

    /// Makes the rings of `all_reduce` and `reduce_scatter` over messages bypass slow ranks, by
    /// `policy`, from the next call on. Their `SKIP` uses `signal_channel`, which nothing else
    /// uses. Must be the same on all ranks.
    pub fn set_late_merge(&mut self, policy: LateMergePolicy, signal_channel: usize) {
        let state = LateMergeState::new(policy, signal_channel);
        self.kept.late_merge = Some(Box::new(state));
    }

    /// Returns the transport, for the thread that waits.
    pub fn transport(&mut self) -> &mut dyn Transport {
        self.context.transport.as_mut()
    }

    /// Lets peers of this host read messages of `bytes_min` bytes or more from this rank's memory:
    /// all of them can.
    pub fn set_read_bytes_min(&mut self, bytes_min: u64) {
        self.mailbox.read_bytes_min = usize::try_from(bytes_min).unwrap_or(usize::MAX);
    }

    /// Returns the registered buffers.
    pub fn registry(&self) -> &Registry {
        &self.context.registry
    }

    /// Calls `change` on the registered buffers, none of which is used by a call under way.
    pub fn change_registry<R>(&mut self, change: impl FnOnce(&mut Registry) -> R) -> R {
        let changed = change(&mut self.context.registry);
        let memory = self.context.registry.peer_memory();
        self.context.transport.set_peer_memory(memory);
        changed
    }

    /// Prepares memory of this rank for direct use by messages, see [`Transport::hold`].
    pub(crate) fn hold(&mut self, memory: Region) -> Option<Hold> {
        self.context.transport.hold(memory, Term::Long)
    }

    /// Stops all calls for good and returns their memory to its owner; peers that still read that
    /// memory detect the withdrawal.
    pub(crate) fn withdraw(&mut self) {
        self.context.transport.withdraw();
    }

    /// Moves out everything that has memory, descriptors or threads; the statistics stay readable.
    /// No call is under way, and none is submitted afterwards.
    pub(crate) fn dissolve(&mut self) -> Engine {
        let Context {
            rank, world_size, ..
        } = self.context;
        let mut counts = Engine::new(Box::new(ClosedTransport), rank, world_size, Pool::default());
        std::mem::swap(&mut counts.context.lateness, &mut self.context.lateness);
        counts.sequence = self.collectives_finished();
        std::mem::replace(self, counts)
    }

    /// Returns the last submitted collectives with a root.
    pub fn rooted(&self) -> RootedCalls {
        self.rooted.marks()
    }

    /// Returns the number of the last submitted collective.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Sets whether the next calls are the library's, to prepare the communicator. These calls have
    /// their own numbers and are not counted, so that the user's calls begin with 1. For use
    /// between calls, on all ranks alike.
    pub fn set_preparing(&mut self, is_preparing: bool) {
        assert!(self.is_idle(), "no call may be under way");
        self.sequence = if is_preparing { 0 } else { PREPARED };
        self.rooted = Rooted::default();
        self.reset_stats();
    }

    /// Returns the number of the last finished collective, as collectives end in order.
    pub fn collectives_finished(&self) -> u64 {
        self.sequence - self.queue.len() as u64
    }

    /// Whether another collective can be submitted.
    pub fn has_room_for_collectives(&self) -> bool {
        self.queue.len() < COLLECTIVES_MAX
    }

    /// Whether another message can be submitted. Messages do not wait for collectives.
    pub fn has_room_for_messages(&self) -> bool {
        self.mailbox.under_way() < MESSAGES_MAX
    }

    /// Submits a job, for which there must be room. The job's regions must stay valid until it is
    /// finished.
    pub fn submit(&mut self, job: Job) -> Result<JobId> {
        if job.collective.is_message() {
            assert!(self.has_room_for_messages(), "no room for a message");
            return self.mailbox.submit(job);
        }
        assert!(self.has_room_for_collectives(), "no room for a collective");
        let running = self.prepare(job)?;
        let id = self.place(running);
        self.queue.push_back(id);
        Ok(JobId::collective(id))
    }

    /// Assigns a number to a call.
    fn place(&mut self, running: Running) -> usize {
        let id = self.free.pop().unwrap_or_else(|| {
            self.calls.push(None);
            self.calls.len() - 1
        });
        self.put(id, running);
        id
    }

    fn put(&mut self, id: usize, mut running: Running) {
        running.operation.id = id;
        self.calls[id] = Some(running);
    }

    /// Does all work that is ready; returns whether there was any.
    pub fn progress(&mut self, now: Time) -> Result<bool> {
        (self.context.now, self.context.is_polled) =
            (now, self.context.is_polled && now == self.context.now);
        let mut progressed = self.advance()?;
        progressed |= self.mailbox.begin(self.context.transport.as_mut())?;
        self.done.clear();
        self.context.transport.poll(now, &mut self.done)?;
        self.context.is_polled = true;
        if !self.done.is_empty() {
            self.complete();
            self.advance()?;
            progressed = true;
        } else if self.needs_clock() {
            progressed |= self.advance()?;
        }
        progressed |= self.mailbox.advance(self.context.transport.as_mut())?;
        Ok(progressed)
    }

    /// Reports completed tickets to the calls and messages that posted them.
    fn complete(&mut self) {
        for ticket in self.done.drain(..) {
            if p2p::owns(ticket) {
                self.mailbox.complete(ticket);
            } else if !tickets::is_unattended(ticket) {
                let call = self.calls.get_mut(tickets::call_of(ticket));
                let running = call.and_then(Option::as_mut);
                let running = running.expect("transports report tickets that were posted, once");
                let lateness = &mut self.context.lateness;
                running.executor.get_mut().complete(ticket, lateness);
            }
        }
    }

    /// Whether no job is under way, or finished and not taken yet.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.finished.is_empty() && self.mailbox.under_way() == 0
    }

    /// Returns a finished job that is not taken yet: first the collectives in order, then the
    /// messages. The job's number is not reused before the job is taken.
    pub fn take_finished(&mut self) -> Option<Finished> {
        let Some(id) = self.finished.pop_front() else {
            return self.mailbox.take_finished();
        };
        // Tiny calls keep their places.
        if self.calls[id.place()].is_none() {
            self.free.push(id.place());
        }
        Some(Finished { id, source: None })
    }

    /// Returns a call under way, and the shared state.
    #[inline]
    fn running(&mut self, id: usize) -> (&mut Running, &mut Context) {
        let running = self.calls[id].as_mut().expect("a queued call runs");
        (running, &mut self.context)
    }

    /// Runs the first call, and the next one whenever a call ends.
    fn advance(&mut self) -> Result<bool> {
        let mut progressed = false;
        while let Some(&id) = self.queue.front() {
            self.begin(id);
            let running = self.calls[id].as_mut().expect("a queued call runs");
            progressed |= running.advance(&mut self.context, &mut self.kept)?;
            if self.fall_back(id)? {
                progressed = true;
                continue;
            }
            if !self.calls[id].as_ref().is_some_and(Running::is_done) {
                break;
            }
            self.retire(id)?;
            self.finished.push_back(JobId::collective(id));
        }
        Ok(progressed)
    }

    /// Assigns generations to the call, at its turn and not before, because earlier calls may need
    /// more generations than expected.
    fn begin(&mut self, id: usize) {
        let next = self.generation;
        if let Some(Running { operation, .. }) = self.calls[id].as_mut()
            && !operation.is_begun
        {
            (operation.is_begun, operation.first_generation) = (true, next);
            self.context.lateness.begin_call();
            self.context.parallel.begin_call(operation.bytes());
            if operation.publishes {
                self.generation += u64::from(operation.slices);
                return;
            }
            let buffers = &mut operation.buffers;
            if self.context.registry.is_used()
                && let Some(least) = self.context.transport.lent_bytes_min()
                && buffers.bytes() >= least
            {
                buffers.look_up(&self.context.registry);
            }
            buffers.hold(self.context.transport.as_mut());
        }
    }

    /// If not all ranks could push, restarts the call as it would have run without the attempt to
    /// push. All ranks do the same.
    fn fall_back(&mut self, id: usize) -> Result<bool> {
        let Some(fallback) = self.calls[id].as_mut().and_then(Running::take_fallback) else {
            return Ok(false);
        };
        let Some(Running {
            operation,
            executor,
            ..
        }) = self.calls[id].take()
        else {
            return Ok(false);
        };
        if let Some(windows) = &self.context.windows {
            windows.finish(operation.last_generation(), Wake::Peers);
        }
        let refused = operation.call.method();
        executor.keep(&mut self.kept);
        let running = self.prepare_fallback(fallback, operation)?;
        if !std::mem::replace(&mut self.is_fallback_logged, true) {
            announce::fallback(refused, &running.operation.call);
        }
        self.put(id, running);
        Ok(true)
    }

    /// Removes the first call, which is done, from the queue and keeps the state that the next one
    /// of its kind can reuse.
    fn retire(&mut self, id: usize) -> Result<()> {
        self.queue.pop_front();
        let (running, context) = self.running(id);
        context.lateness.end_call();
        context.compare_calls(&running.operation)?;
        if running.progress().is_reused() {
            return Ok(());
        }
        if let Some(Running {
            operation,
            executor,
            ..
        }) = self.calls[id].take()
        {
            executor.get().end(&operation, &self.context.registry);
            executor.keep(&mut self.kept);
        }
        Ok(())
    }
}
