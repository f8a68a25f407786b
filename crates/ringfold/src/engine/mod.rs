//! The engine: runs schedules over a transport. It does no waiting and reads no clock.
//!
//! [`Engine::submit`] takes a [`Job`]; [`Engine::progress`] does whatever can be done now, over and
//! over, until [`Engine::take_finished`] gives the job back. The caller decides how to wait in
//! between (the communicator's driver on real transports, the event loop in the simulator).
//!
//! # Model
//!
//! Collectives run one after the other, in the order of submission, which is the same on all ranks;
//! each has an [`executor`]. Messages between two ranks go beside them, see [`p2p`].
//!
//! # Invariants
//!
//! * No allocation once a kind of call has been seen: plans, bookkeeping and scratch are kept.
//! * After an error nothing runs any more; the transport is only dropped.

mod announce;
mod context;
mod direct;
mod executor;
pub mod geometry;
mod job;
pub mod late_ring;
pub mod lateness;
mod operation;
pub mod p2p;
pub mod plan;
mod plans;
mod prepare;
mod status;
mod steps;
mod tickets;
pub mod tiny;
mod unverified;

use std::collections::VecDeque;

use crate::call::{Marks, PREPARED, Rooted};
use crate::error::Result;
use crate::memory::{Hold, Pool, Region, Registry};
use crate::reduce::Parallel;
use crate::schedule::Groups;
use crate::transport::ended::Ended;
use crate::transport::{Term, Ticket, Time, Transport, Wake};
use context::{Context, Kept};
use executor::{Executor, Running};
pub use job::{ANY_SOURCE, COLLECTIVES_MAX, Finished, Job, JobId, MESSAGES_MAX};
use late_ring::{LateMergeState, Policy};
use lateness::{Lateness, Stats};
use p2p::Mailbox;
use tiny::TinyKinds;
use unverified::Unverified;

/// Runs the calls of one rank over one transport.
pub struct Engine {
    /// What calls work with.
    context: Context,
    /// How many domains of equal size the ranks sit in.
    domains: u32,
    /// Which of them share a host.
    hosts: Groups,
    /// By number; those of tiny calls stay for the next call of their kind.
    calls: Vec<Option<Running>>,
    free: Vec<usize>,
    tiny: TinyKinds,
    /// Calls under way, in order; only the first runs.
    queue: VecDeque<usize>,
    mailbox: Mailbox,
    finished: VecDeque<JobId>,
    sequence: u64,
    /// The collectives with a root that were submitted.
    rooted: Rooted,
    generation: u64,
    done: Vec<Ticket>,
    /// Whether the log says that a call fell back.
    is_fallback_logged: bool,
}

impl Engine {
    /// An engine for `rank` of `world_size` ranks.
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
                kept: Kept::new(world_size),
                parallel: Parallel::none(),
                registry: Registry::new(rank),
                lateness,
                unverified: Unverified::default(),
                pool,
                now: Time::default(),
                is_polled: false,
            },
            domains: 1,
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

    /// What copies and combines, by this thread alone unless replaced here.
    pub(crate) fn parallel(&mut self) -> &mut Parallel {
        &mut self.context.parallel
    }

    /// Who was late until now, in the calls that are done.
    pub fn stats(&mut self) -> Stats {
        self.without_untimed(|lateness, finished| lateness.stats(finished))
    }

    /// Counts from zero again, from the call under way on.
    pub fn reset_stats(&mut self) {
        self.without_untimed(Lateness::reset);
    }

    /// What `f` finds or does while the wait of the tiny call under way, which is counted as short
    /// from the first, is not counted.
    fn without_untimed<R>(&mut self, f: impl FnOnce(&mut Lateness, u64) -> R) -> R {
        let counted = self.front().and_then(Running::counted_as_short);
        let finished = self.collectives_finished();
        self.context.lateness.take_back(counted);
        let found = f(&mut self.context.lateness, finished);
        if let Some(peer) = counted {
            self.context.lateness.count_short(None, peer);
        }
        found
    }

    /// The counts of who was late: the engine adds arrivals, its driver waits.
    pub fn lateness(&mut self) -> &mut Lateness {
        &mut self.context.lateness
    }

    /// Says that the ranks sit in this many domains of equal size, in rank order, before the first
    /// call.
    pub(crate) fn set_domains(&mut self, domains: u32) {
        self.domains = domains;
    }

    /// Says which ranks share a host, before the first call.
    pub(crate) fn set_hosts(&mut self, hosts: Groups) {
        self.hosts = hosts;
    }

    /// Has the rings of `all_reduce` and `reduce_scatter` over messages bypass slow ranks, by
    /// `policy`, from the next call on. Their `SKIP` goes by `signal_channel`, which nothing else
    /// uses. The same on all ranks.
    pub fn set_late_merge(&mut self, policy: Policy, signal_channel: usize) {
        let state = LateMergeState::new(policy, signal_channel);
        self.context.kept.late_merge = Some(Box::new(state));
    }

    /// The transport, for the thread that waits.
    pub fn transport(&mut self) -> &mut dyn Transport {
        self.context.transport.as_mut()
    }

    /// The registered buffers.
    pub fn registry(&self) -> &Registry {
        &self.context.registry
    }

    /// Has `change` change the registered buffers, none of which is used by a call under way.
    pub fn change_registry<R>(&mut self, change: impl FnOnce(&mut Registry) -> R) -> R {
        let changed = change(&mut self.context.registry);
        let memory = self.context.registry.peer_memory();
        self.context.transport.set_peer_memory(memory);
        changed
    }

    /// Has messages use memory of this rank's directly, see [`Transport::hold`].
    pub(crate) fn hold(&mut self, memory: Region) -> Option<Hold> {
        self.context.transport.hold(memory, Term::Long)
    }

    /// No call will run any more, and the memory of those under way goes back to its owner: peers
    /// that still read it are to see that it is not what it was.
    pub(crate) fn withdraw(&mut self) {
        self.context.transport.withdraw();
    }

    /// Takes out everything that has memory, descriptors or threads; the counts stay, to be read.
    /// No call is under way, and none is submitted afterwards.
    pub(crate) fn dissolve(&mut self) -> Engine {
        let Context {
            rank, world_size, ..
        } = self.context;
        let mut counts = Engine::new(Box::new(Ended), rank, world_size, Pool::default());
        std::mem::swap(&mut counts.context.lateness, &mut self.context.lateness);
        counts.sequence = self.collectives_finished();
        std::mem::replace(self, counts)
    }

    /// The last collectives with a root that were submitted.
    pub fn rooted(&self) -> Marks {
        self.rooted.marks()
    }

    /// The number of the last collective submitted.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether the next calls are those by which the library prepares the communicator. These have
    /// numbers of their own and are not counted, so that those of the user begin with 1. Between
    /// calls, and the same on all ranks.
    pub fn set_preparing(&mut self, is_preparing: bool) {
        assert!(self.is_idle(), "no call may be under way");
        self.sequence = if is_preparing { 0 } else { PREPARED };
        self.rooted = Rooted::default();
        self.reset_stats();
    }

    /// The number of the last collective that is done, if they end in order.
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

    /// Takes on a job, for which there is room. Its regions stay valid until it is finished.
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

    /// Gives a call a number.
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

    /// Does what can be done now; whether that was anything.
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

    /// Tells what is complete to what posted it.
    fn complete(&mut self) {
        for ticket in self.done.drain(..) {
            if p2p::owns(ticket) {
                self.mailbox.complete(ticket);
            } else if !tickets::is_unattended(ticket) {
                let call = self.calls.get_mut(tickets::call_of(ticket));
                let running = call.and_then(Option::as_mut);
                let running = running.expect("transports report tickets that were posted, once");
                let lateness = &mut self.context.lateness;
                running.executor.complete(ticket, lateness);
            }
        }
    }

    /// Whether no job is under way, or finished and not taken yet.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.finished.is_empty() && self.mailbox.under_way() == 0
    }

    /// A job that has finished, if any is not taken yet: the collectives in order, and then the
    /// messages. No later job has its number before it is taken.
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

    /// A call under way, and what it works with.
    #[inline]
    fn running(&mut self, id: usize) -> (&mut Running, &mut Context) {
        let running = self.calls[id].as_mut().expect("a queued call runs");
        (running, &mut self.context)
    }

    /// Runs the first call, and those after it as long as they end.
    fn advance(&mut self) -> Result<bool> {
        let mut progressed = false;
        while let Some(&id) = self.queue.front() {
            self.begin(id);
            let (running, context) = self.running(id);
            progressed |= running.advance(context)?;
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

    /// Runs the tiny call under way, and looks at nothing else; whether it is done. Its end is
    /// reported here, not by [`Engine::take_finished`].
    #[inline]
    pub fn advance_tiny(&mut self) -> Result<bool> {
        let id = *self.queue.front().expect("a tiny call is under way");
        let Some(Running {
            operation,
            executor: Executor::Tiny(tiny),
            ..
        }) = &mut self.calls[id]
        else {
            unreachable!("the call under way is a tiny one");
        };
        let is_done = tiny.advance(operation, &mut self.context)?;
        if is_done {
            self.queue.pop_front();
            self.context.lateness.end_call();
            self.context.compare_calls(operation)?;
        }
        Ok(is_done)
    }

    /// Gives the call its generations. Not before its turn, because those before it may need more
    /// than was thought.
    fn begin(&mut self, id: usize) {
        let next = self.generation;
        if let Some(Running { operation, .. }) = self.calls[id].as_mut()
            && !operation.is_begun
        {
            (operation.is_begun, operation.first_generation) = (true, next);
            self.context.lateness.begin_call();
            self.context.parallel.begin_call(operation.buffers.bytes());
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

    /// If not all ranks could push, does the call as it would have been done without asking. All
    /// ranks do the same.
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
        executor.keep(&mut self.context.kept);
        let running = self.prepare_fallback(fallback, operation)?;
        if !std::mem::replace(&mut self.is_fallback_logged, true) {
            announce::fallback(refused, &running.operation.call);
        }
        self.put(id, running);
        Ok(true)
    }

    /// Takes the first call, which is done, out of the queue and keeps what the next one of its
    /// kind can use.
    fn retire(&mut self, id: usize) -> Result<()> {
        self.queue.pop_front();
        let (running, context) = self.running(id);
        context.lateness.end_call();
        context.compare_calls(&running.operation)?;
        if running.is_tiny() {
            return Ok(());
        }
        if let Some(Running {
            operation,
            executor,
            ..
        }) = self.calls[id].take()
        {
            executor.end(&operation, &self.context.registry);
            executor.keep(&mut self.context.kept);
        }
        Ok(())
    }
}

#[cfg(test)]
impl Engine {
    /// `submit`, with the steps of the schedule also where another executor would take the call.
    pub fn submit_by_steps(&mut self, job: Job) -> Result<JobId> {
        let id = self.submit(job.clone())?;
        let running = self.calls.get(id.place()).and_then(Option::as_ref);
        if running.is_some_and(|running| matches!(running.executor, Executor::Direct(_))) {
            let plan = self.plan(&job)?;
            let channels = self.context.kept.plans.progress(&plan);
            let steps = Executor::Steps(steps::Steps { plan, channels });
            self.calls[id.place()]
                .as_mut()
                .expect("it is there")
                .executor = steps;
        }
        Ok(id)
    }
}

/// How many messages an engine's transport has lent.
#[cfg(test)]
pub fn messages_lent(engine: &Engine) -> u64 {
    engine.context.transport.messages_lent()
}

/// The windows of an engine's transport, where it has them.
#[cfg(test)]
pub fn windows(engine: &mut Engine) -> Option<&mut crate::transport::Windows> {
    engine.context.windows.as_mut()
}
