//! The engine: runs schedules over a transport. It does no waiting and reads no clock.
//!
//! [`Engine::submit`] takes a [`Job`]; [`Engine::progress`] does whatever can be done now, over and over, until
//! [`Engine::take_finished`] gives the job back. Whoever calls it decides how to wait in between (the communicator's
//! driver on real transports, the event loop in the simulator).
//!
//! # Model
//!
//! Collectives run one after the other, in the order of submission, which is the same on all ranks. Messages between two
//! ranks go beside them, see [`p2p`]. Within a collective slices overlap, see [`steps`].
//!
//! # Invariants
//!
//! * No allocation once a kind of call has been seen: plans, bookkeeping and scratch are kept.
//! * After an error nothing runs any more; the transport is only dropped.

mod announce;
pub mod direct;
pub mod geometry;
pub mod late_ring;
pub mod lateness;
pub mod p2p;
pub mod plan;
mod prepare;
pub mod steps;
pub mod tiny;
mod unverified;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::call::{Call, PREPARED};
use crate::error::{Error, Result, Site};
use crate::memory::{Pool, Region, Registry};
use crate::reduce::Parallel;
use crate::schedule::{Action, Medium, Spec, Weights};
use crate::transport::{Ticket, Time, Transport, Wake, Windows, mismatch};
use crate::types::{Algorithm, Collective, DType, Op, Protocol};
use geometry::Blocks;
use late_ring::run::Run;
use late_ring::{Keeper, Policy};
use lateness::{Lateness, Stats};
use p2p::Mailbox;
use plan::Plan;
use steps::{ChannelProgress, Context, Operation, Workbench, ticket_operation};
use tiny::TinyCalls;
pub use tiny::TinyJob;
use unverified::Unverified;

/// Jobs that may be submitted and not finished, at most.
pub const JOBS_MAX: usize = 4096;

/// What stands for the peer of a `Recv` that takes a message from any of them.
pub const ANY_SOURCE: usize = usize::MAX;

/// Plans kept, at most; the oldest goes first. A program has few kinds of calls.
const PLANS_MAX: usize = 256;

/// One call, checked and decided: what the engine needs to run it.
#[derive(Clone, Debug)]
pub struct Job {
    /// What to do.
    pub collective: Collective,
    /// How.
    pub algorithm: Algorithm,
    /// Over messages or published memory.
    pub medium: Medium,
    /// How its bytes travel.
    pub protocol: Protocol,
    /// The elements' type.
    pub dtype: DType,
    /// How they are combined.
    pub op: Op,
    /// The root, or the peer of a message; [`ANY_SOURCE`] for a receive from whoever sends.
    pub root: usize,
    /// The tag of a message.
    pub tag: u32,
    /// The count as the call states it to the peers.
    pub count: u64,
    /// What is read.
    pub input: Region,
    /// What is filled.
    pub output: Region,
    /// A vector's count, or the blocks of `input`.
    pub input_blocks: Blocks,
    /// A vector's count, or the blocks of `output`.
    pub output_blocks: Blocks,
    /// Whether input and output are (partly) the same memory, as the collective's in-place form has it.
    pub in_place: bool,
    /// Elements of one slice of the vector or of a block.
    pub slice_elements: u64,
    /// Independent pipelines.
    pub channels: u32,
    /// How long it may take.
    pub timeout: Duration,
    /// How to work in all ranks' buffers, if it turns out that all are registered; `None` to not ask: the same on all ranks.
    pub tries: Option<Algorithm>,
    /// Whether results that lie apart from their inputs are stored past the caches.
    pub streams: bool,
    /// Whether to go by the schedule's steps, also where they are written out as one loop.
    #[cfg(test)]
    pub by_steps: bool,
    /// Whether the library calls this to register memory, and not the user.
    pub registers: bool,
    /// How much each rank owns, if not all the same: of an all-reduce by `direct` over messages.
    pub weights: Option<Weights>,
}

/// A submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(usize);

/// A job that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub id: JobId,
    /// Who sent, where the job was a receive.
    pub source: Option<usize>,
}

/// Runs the calls of one rank over one transport.
pub struct Engine {
    transport: Box<dyn Transport>,
    /// The transport's windows, where it has them.
    windows: Option<Windows>,
    rank: usize,
    world_size: usize,
    plans: Vec<(PlanKey, Arc<Plan>, Option<Vec<ChannelProgress>>)>,
    pool: Pool,
    registry: Registry,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Collectives in order; only the first runs.
    collectives: VecDeque<usize>,
    mailbox: Mailbox,
    finished: Vec<JobId>,
    sequence: u64,
    generation: u64,
    done: Vec<Ticket>,
    operands: Vec<Region>,
    bench: Workbench,
    /// Whether the log says that a push was refused.
    is_refusal_told: bool,
    parallel: Parallel,
    /// How many domains of equal size the ranks sit in.
    domains: u32,
    tiny: TinyCalls,
    /// Finished calls in which this rank did not hear from all others, and their generations: the newest few.
    unverified: Unverified,
    lateness: Lateness,
    /// What late-merge calls need, where there are any.
    late_merge: Option<Box<Keeper>>,
    /// The time of the last attempt, and whether the transport has been polled at that time.
    now: Time,
    is_polled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlanKey {
    spec: Spec,
    in_place: bool,
    channels: u32,
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
            windows: transport.windows(),
            transport,
            rank,
            world_size,
            plans: Vec::new(),
            pool,
            registry: Registry::new(rank),
            operations: Vec::new(),
            free: Vec::new(),
            collectives: VecDeque::new(),
            mailbox: Mailbox::new(rank, world_size),
            finished: Vec::new(),
            sequence: PREPARED,
            generation: 0,
            done: Vec::new(),
            operands: Vec::new(),
            bench: Workbench::default(),
            is_refusal_told: false,
            parallel: Parallel::none(),
            domains: 1,
            tiny: TinyCalls::new(world_size),
            unverified: Unverified::default(),
            lateness,
            late_merge: None,
            now: Time::default(),
            is_polled: false,
        }
    }

    /// What copies and combines, by this thread alone unless replaced here.
    pub(crate) fn parallel(&mut self) -> &mut Parallel {
        &mut self.parallel
    }

    /// Who was late until now, in the calls that are done.
    pub fn stats(&mut self) -> Stats {
        self.without_tiny(|lateness, finished| lateness.stats(finished))
    }

    /// Counts from zero again, from the call under way on.
    pub fn reset_stats(&mut self) {
        self.without_tiny(Lateness::reset);
    }

    /// What `f` finds or does while the tiny call under way, which is counted as short from the
    /// first, is not counted.
    fn without_tiny<R>(&mut self, f: impl FnOnce(&mut Lateness, u64) -> R) -> R {
        let blamed = self.tiny.blamed();
        let finished = self.collectives_finished();
        self.lateness.take_back(blamed);
        let found = f(&mut self.lateness, finished);
        if let Some(peer) = blamed {
            self.lateness.blame_shortly(None, peer);
        }
        found
    }

    /// Who was late: told by the engine, and by its driver of waits.
    pub fn lateness(&mut self) -> &mut Lateness {
        &mut self.lateness
    }

    /// Says that the ranks sit in this many domains of equal size, in rank order, before the first call.
    pub(crate) fn set_domains(&mut self, domains: u32) {
        self.domains = domains;
    }

    /// Has the rings of `all_reduce` and `reduce_scatter` over messages go around slow ranks, by `policy`, from the next call
    /// on. Their `SKIP` goes by `signal_channel`, which nothing else uses. The same on all ranks.
    pub fn set_late_merge(&mut self, policy: Policy, signal_channel: usize) {
        self.late_merge = Some(Box::new(Keeper::new(policy, signal_channel)));
    }

    /// Whether a call under way goes by the clock, so that every attempt should know what time it is.
    pub fn goes_by_time(&self) -> bool {
        self.running_late_merge().is_some()
    }

    /// When `progress` could next find something to do although no peer acts.
    pub fn next_event(&self) -> Option<Time> {
        let timer = self.next_timer();
        self.transport.next_event().into_iter().chain(timer).min()
    }

    /// When the call under way has waited too long for something, so that it is to go on.
    pub fn next_timer(&self) -> Option<Time> {
        self.running_late_merge().and_then(Run::next_timer)
    }

    fn running_late_merge(&self) -> Option<&Run> {
        let first = self.collectives.front();
        let operation = first.and_then(|id| self.operations[*id].as_ref());
        operation.and_then(|operation| operation.late_merge.as_deref())
    }

    /// The transport, for whoever waits.
    pub fn transport(&mut self) -> &mut dyn Transport {
        self.transport.as_mut()
    }

    /// The registered buffers.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// No call will run any more, and the memory of those under way goes back to its owner: peers that still read it are to
    /// see that it is not what it was.
    pub(crate) fn withdraw(&mut self) {
        if let Some(windows) = &self.windows {
            windows.withdraw();
        }
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
        self.reset_stats();
    }

    /// The number of the last collective that is done, if they end in order.
    pub fn collectives_finished(&self) -> u64 {
        let under_way = self.collectives.len() + usize::from(self.is_tiny_active());
        self.sequence - under_way as u64
    }

    /// Takes on a job. Its regions stay valid until it is finished.
    pub fn submit(&mut self, job: Job) -> Result<JobId> {
        if self.operations.len() - self.free.len() + self.mailbox.under_way() >= JOBS_MAX {
            return Err(Error::InvalidArgument(format!(
                "more than {JOBS_MAX} calls under way; wait for some of them"
            )));
        }
        if matches!(job.collective, Collective::Send | Collective::Recv) {
            return self.mailbox.submit(job);
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        match self.prepare(job) {
            Ok(operation) => {
                self.operations[id] = Some(operation);
                self.collectives.push_back(id);
                Ok(JobId(id))
            }
            Err(error) => {
                self.free.push(id);
                Err(error)
            }
        }
    }

    /// Does what can be done now; whether that was anything.
    pub fn progress(&mut self, now: Time) -> Result<bool> {
        (self.now, self.is_polled) = (now, self.is_polled && now == self.now);
        let mut progressed = self.is_tiny_active() && self.end_long_tiny()?;
        progressed |= self.advance()?;
        progressed |= self.mailbox.begin(self.transport.as_mut())?;
        self.done.clear();
        self.transport.poll(now, &mut self.done)?;
        self.is_polled = true;
        if !self.done.is_empty() {
            for ticket in self.done.drain(..) {
                if p2p::owns(ticket) {
                    self.mailbox.complete(ticket);
                    continue;
                }
                if late_ring::run::is_signal(ticket) {
                    continue;
                }
                let operation = self
                    .operations
                    .get_mut(ticket_operation(ticket))
                    .and_then(Option::as_mut);
                let operation =
                    operation.expect("transports report tickets that were posted, once");
                if let Some(run) = &mut operation.late_merge {
                    run.complete(ticket);
                    continue;
                }
                match operation.complete(ticket) {
                    Action::Send { peer, .. } => self.lateness.relieved(*peer as usize),
                    Action::Recv { peer, .. } | Action::RecvReduce { peer, .. } => {
                        self.lateness.heard(*peer as usize);
                    }
                    _ => {}
                }
            }
            self.advance()?;
            progressed = true;
        } else if self.goes_by_time() {
            progressed |= self.advance()?;
        }
        progressed |= self.mailbox.advance(self.transport.as_mut())?;
        Ok(progressed)
    }

    /// Whether the running job has work left that waits for nobody: `progress` goes on with it whatever befalls the peers.
    pub fn is_at_work(&self) -> bool {
        let first = self.collectives.front().copied();
        let operation = first.and_then(|id| self.operations[id].as_ref());
        operation.is_some_and(Operation::is_at_work)
    }

    /// Whether no job is under way.
    pub fn is_idle(&self) -> bool {
        self.collectives.is_empty() && self.mailbox.under_way() == 0 && !self.is_tiny_active()
    }

    /// A job that has finished since the last call, if any.
    pub fn take_finished(&mut self) -> Option<Finished> {
        let collective = self.finished.pop().map(|id| Finished { id, source: None });
        collective.or_else(|| self.mailbox.take_finished())
    }

    /// Sets the deadlines of running jobs that have none yet, and gives the error of one whose deadline has passed.
    pub fn check_deadlines(&mut self, now: Time) -> Result<()> {
        self.check_tiny_deadline(now)?;
        self.mailbox.check_deadlines(now)?;
        let first = self.collectives.front().copied();
        let Some((id, operation)) = first.and_then(|id| Some((id, self.operations[id].as_mut()?)))
        else {
            return Ok(());
        };
        let timeout = operation.timeout;
        let deadline = *operation.deadline.get_or_insert(now.after(timeout));
        if now < deadline {
            return Ok(());
        }
        let waiting_for =
            self.with_context(id, |operation, context| operation.waiting_for(context));
        Err(Error::Timeout {
            waiting_for,
            after_ms: timeout.as_millis() as u64,
            site: Some(self.site(id)),
        })
    }

    /// The ranks that the running jobs wait for.
    pub fn waiting_for(&mut self) -> Vec<usize> {
        let mut ranks = self.collective_waits_for();
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
        let awaited = self.collective_waits_for();
        let transport = self.transport.as_ref();
        let mut is_gone = |rank| is_gone(transport, rank);
        let missed = awaited.into_iter().find(|rank| is_gone(*rank));
        missed.or_else(|| self.mailbox.missed(&mut is_gone))
    }

    /// The ranks that the running collective waits for.
    fn collective_waits_for(&mut self) -> Vec<usize> {
        let mut ranks = self.tiny_waiting_for();
        if let Some(&id) = self.collectives.front() {
            let waiting_for =
                self.with_context(id, |operation, context| operation.waiting_for(context));
            ranks.extend(waiting_for);
        }
        ranks
    }

    /// Where the running job stands, if one runs.
    pub fn running_site(&mut self) -> Option<Site> {
        if self.is_tiny_active() {
            return self.tiny_site();
        }
        match self.collectives.front().copied() {
            Some(id) => Some(self.site(id)),
            None => self.mailbox.running_site(),
        }
    }

    fn site(&mut self, id: usize) -> Site {
        self.with_context(id, |operation, context| operation.site(context))
    }

    fn with_context<R>(
        &mut self,
        id: usize,
        f: impl FnOnce(&mut Operation, &mut Context<'_>) -> R,
    ) -> R {
        let mut context = Context {
            transport: self.transport.as_mut(),
            windows: self.windows.as_mut(),
            rank: self.rank,
            world_size: self.world_size,
            id,
            operands: &mut self.operands,
            parallel: &mut self.parallel,
            inline: &self.tiny.inline,
            registry: &self.registry,
            bench: &mut self.bench,
            lateness: &mut self.lateness,
            unverified: &mut self.unverified,
            pool: &self.pool,
            late_merge: self.late_merge.as_deref_mut(),
            now: self.now,
            is_polled: self.is_polled,
        };
        f(
            self.operations[id]
                .as_mut()
                .expect("a queued job has an operation"),
            &mut context,
        )
    }

    fn advance(&mut self) -> Result<bool> {
        let mut progressed = false;
        // A tiny call is a collective like any other: those after it wait for its end.
        while !self.is_tiny_active()
            && let Some(&id) = self.collectives.front()
        {
            self.begin(id);
            progressed |= self.with_context(id, |operation, context| operation.advance(context))?;
            if self.fall_back(id)? {
                progressed = true;
                continue;
            }
            if !self.operations[id].as_ref().is_some_and(Operation::is_done) {
                break;
            }
            self.collectives.pop_front();
            if let Some(pushed) = self.operations[id].as_ref().filter(|o| o.plan.exposes) {
                self.registry.take_back(pushed.buffers.output);
            }
            self.compare_calls(id)?;
            self.retire(id);
        }
        Ok(progressed)
    }

    /// Gives the operation its generations. Not before its turn, because those before it may need more than was thought.
    fn begin(&mut self, id: usize) {
        let next = self.generation;
        if let Some(operation) = self.operations[id].as_mut()
            && !operation.is_begun
        {
            (operation.is_begun, operation.first_generation) = (true, next);
            self.parallel.begin_call(operation.buffers.bytes());
            self.lateness.begin_call();
            if operation.publishes() {
                self.generation += operation.slices as u64;
            }
        }
    }

    /// If not all ranks could push, does the call as it would have been done without asking. All ranks do the same.
    fn fall_back(&mut self, id: usize) -> Result<bool> {
        let Some(refused) = self.operations[id].take_if(|operation| operation.is_refused) else {
            return Ok(false);
        };
        if let Some(windows) = self.windows.as_mut() {
            windows.finish(refused.last_generation(), Wake::Peers);
        }
        let (deadline, refused_algorithm) = (refused.deadline, refused.call.algorithm);
        let mut operation = self.prepare_instead(refused)?;
        operation.deadline = deadline;
        if !std::mem::replace(&mut self.is_refusal_told, true) {
            announce::refusal(refused_algorithm, &operation.call);
        }
        self.operations[id] = Some(operation);
        Ok(true)
    }

    /// Compares the calls of ranks that do not hear from each other in them (two that both take themselves for the root
    /// of a broadcast), at the next call in which all meet.
    fn compare_calls(&mut self, id: usize) -> Result<()> {
        let Some(operation) = self.operations[id]
            .as_ref()
            .filter(|operation| operation.publishes())
        else {
            return Ok(());
        };
        if operation.plan.hears_all {
            return self.verify_calls();
        }
        let (generation, call) = (operation.last_generation(), operation.call);
        self.unverified.note(generation, call);
        Ok(())
    }

    /// Looks whether a peer has published in the call in which this rank waits for messages: each would wait for the other in
    /// vain. For a rank that has waited for a while.
    pub fn compare_media(&mut self) -> Result<()> {
        let first = self.collectives.front().copied();
        let running = first.and_then(|id| self.operations[id].as_ref());
        let (Some(operation), Some(windows)) = (running, &self.windows) else {
            return Ok(());
        };
        if operation.publishes() {
            return Ok(());
        }
        for peer in (0..self.world_size).filter(|peer| *peer != self.rank) {
            // One who is through with this call may have published in a later one.
            let theirs = windows.entered(peer, self.generation);
            let in_this = |theirs: &Call| theirs.sequence == operation.call.sequence;
            if let Some(theirs) = theirs.filter(in_this) {
                return Err(mismatch([self.rank, peer], [&operation.call, &theirs]));
            }
        }
        Ok(())
    }

    fn verify_while_waiting(&mut self) -> Result<()> {
        match &self.windows {
            Some(windows) => self.unverified.verify_oldest(windows),
            None => Ok(()),
        }
    }

    fn verify_calls(&mut self) -> Result<()> {
        match &self.windows {
            Some(windows) => self.unverified.verify_all(windows),
            None => Ok(()),
        }
    }

    /// Takes a finished operation out and keeps what the next one of its kind can use.
    fn retire(&mut self, id: usize) {
        if let Some(mut operation) = self.operations[id].take() {
            if let Some(keeper) = &mut self.late_merge {
                keeper.spare = operation.late_merge.take().or(keeper.spare.take());
            }
            self.keep(operation.plan, operation.channels);
        }
        self.lateness.end_call();
        self.free.push(id);
        self.finished.push(JobId(id));
    }

    /// Keeps the bookkeeping of a plan's last operation for the next one.
    fn keep(&mut self, plan: Arc<Plan>, channels: Vec<ChannelProgress>) {
        let kept = self
            .plans
            .iter_mut()
            .find(|(_, known, _)| Arc::ptr_eq(known, &plan));
        if let Some((_, _, spare)) = kept {
            *spare = Some(channels);
        }
    }
}

/// The windows of an engine's transport, where it has them.
pub fn windows(engine: &mut Engine) -> Option<&mut Windows> {
    engine.windows.as_mut()
}
