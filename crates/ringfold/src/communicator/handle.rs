//! A communicator as its user holds it: its calls, and the choices of how to run them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::agreed::AgreedWeights;
use super::choices::Choices;
use super::completion::Completion;
use super::driver::{EngineDriver, OnWait};
use super::group::RankGroup;
use super::membership::Membership;
use super::request::Request;
use super::work::Work;
use crate::call::{PREPARED, Way};
use crate::control::Standing;
use crate::engine::lateness::Stats;
use crate::engine::{Engine, Gate, Job};
use crate::error::{Error, Result};
use crate::memory::ForkGuard;
use crate::schedule::Groups;
use crate::tune::calibration::Calibration;
use crate::tune::{Rules, Tuning};
use crate::types::{Algorithm, Method};

/// Maximum number of bytes, of all ranks together, that a started call moves in its caller's
/// thread: that takes no longer than to wake the worker.
const PROMPT_BYTES_MAX: u64 = 128 << 10;

/// A group of ranks that communicate.
///
/// Every rank makes the same collective calls in the same order; a difference is an
/// `Error::Mismatch`. All methods may be called from any thread. Calls of several threads on one
/// communicator run in the order of their arrival.
///
/// Dropping a communicator leaves it like [`close`](Communicator::close), but without waiting: if
/// calls are still under way, the communicator is aborted on all ranks.
pub struct Communicator {
    pub(crate) driver: Arc<EngineDriver>,
    pub(super) place: RankPosition,
    pub(crate) policy: ChoicePolicy,
    pub(super) weights: AgreedWeights,
    pub(super) choices: Choices,
    pub(crate) membership: Membership,
    pub(super) fork_guard: Arc<ForkGuard>,
}

/// The position of a rank among the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankPosition {
    pub rank: usize,
    pub world_size: usize,
    pub local_rank: usize,
    pub local_size: usize,
    pub hosts: usize,
    /// Number of runs of consecutive ranks of one host.
    pub runs: usize,
    /// Whether the hosts hold consecutive blocks of the ranks.
    pub are_blocks: bool,
    /// The transport's name: `shm`, `tcp`, `rdma`, `shm+tcp`, `shm+rdma`, `local` or `self`.
    pub transport: &'static str,
}

/// The basis of every choice, besides the call itself.
#[derive(Clone, Debug)]
pub(crate) struct ChoicePolicy {
    pub tuning: Tuning,
    /// Whether choices are not logged, as those of the library's own calls.
    pub is_silent: bool,
    /// The method of every collective that has it.
    pub algorithm: Option<Method>,
    /// The rank known to be late.
    pub late_rank: Option<usize>,
    pub timeout: Duration,
    pub slot_bytes: Option<usize>,
    /// The least block that ranks read from the memory of a sender of their host, if they can.
    pub read_bytes_min: Option<u64>,
    /// Number of domains of equal size into which the ranks are divided.
    pub domains: usize,
    /// Whether rings bypass slow ranks.
    pub bypasses_stragglers: bool,
    /// Whether all reductions are in the order of the canonical tree.
    pub is_reproducible: bool,
}

impl ChoicePolicy {
    /// Returns the policy that chooses by `tuning` alone.
    pub fn new(tuning: Tuning) -> ChoicePolicy {
        ChoicePolicy {
            tuning,
            is_silent: false,
            algorithm: None,
            late_rank: None,
            timeout: Duration::ZERO,
            slot_bytes: None,
            read_bytes_min: None,
            domains: 1,
            bypasses_stragglers: false,
            is_reproducible: false,
        }
    }
}

impl Communicator {
    pub(crate) fn new(
        driver: EngineDriver,
        place: RankPosition,
        policy: ChoicePolicy,
        membership: Membership,
    ) -> Communicator {
        Communicator {
            driver: Arc::new(driver),
            place,
            policy,
            weights: AgreedWeights::default(),
            choices: Choices::default(),
            membership,
            fork_guard: Arc::new(ForkGuard::new()),
        }
    }

    /// Makes collectives that have this method use it; all ranks set the same.
    pub(super) fn force_algorithm(&mut self, algorithm: Option<Method>) {
        self.policy.algorithm = algorithm;
        self.choices.forget();
    }

    /// Replaces the table of rules by which later calls are decided. For use between calls: all
    /// ranks set the same rules, at the same point in their order of calls. A difference is a
    /// `Mismatch` of a later call that it concerns. Communicators that are
    /// [`split`](Communicator::split) off later begin with these rules. For the tuner's sweeps; a
    /// program sets [`Config::tuner_rules`](crate::Config::tuner_rules).
    #[doc(hidden)]
    pub fn set_rules(&mut self, rules: Rules) {
        self.policy.tuning.rules = rules;
        self.choices = Choices::default();
    }

    /// Returns the measurements of this rank's machine; `None` for ranks that are threads.
    pub(crate) fn calibration(&self) -> Option<Calibration> {
        self.membership.group().and_then(RankGroup::calibration)
    }

    /// Returns the table of rules by which calls are decided, possibly empty. The same on all
    /// ranks.
    pub fn rules(&self) -> &Rules {
        &self.policy.tuning.rules
    }

    /// Returns this process' rank in this communicator.
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.place.world_size
    }

    /// Returns this rank's number among the ranks of its host.
    pub fn local_rank(&self) -> usize {
        self.place.local_rank
    }

    /// Returns the number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.place.local_size
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.place.hosts
    }

    /// Returns the host of each rank; hosts are numbered in the order of their first ranks.
    pub fn hosts_of_ranks(&self) -> Vec<usize> {
        let hosts = self
            .membership
            .group()
            .map_or(Groups::ONE, RankGroup::hosts);
        let ranks = 0..self.place.world_size as u32;
        ranks.map(|rank| hosts.of(rank) as usize).collect()
    }

    /// Returns the transport's name: `shm`, `tcp`, `rdma`, `shm+tcp` or `shm+rdma`; `local` among
    /// threads, `self` alone.
    pub fn transport(&self) -> &'static str {
        self.place.transport
    }

    /// Executes `request` and returns when it is done on this rank. Returns the source of a `Recv`.
    ///
    /// Calls `on_wait` every 20 to 40 ms while it waits. If `on_wait` fails (Ctrl-C), the
    /// communicator is aborted on all ranks and the error is returned. If `on_wait` panics, the
    /// communicator is aborted too, and the panic continues.
    ///
    /// `on_wait` runs under no lock and may use the communicator. Its calls are executed after the
    /// waiting call, on this rank as on the others; [`abort`](Communicator::abort) and
    /// [`close`](Communicator::close) end both.
    ///
    /// # Safety
    /// The regions are valid until this returns, and nothing else writes to `input` or touches
    /// `output` meanwhile.
    pub unsafe fn run(&self, request: &Request, on_wait: OnWait<'_>) -> Result<Option<usize>> {
        let job = self.checked_job(request)?;
        if job.is_tiny() && self.driver.run_tiny(&job, on_wait)? {
            return Ok(None);
        }
        self.driver.run(job, on_wait)
    }

    /// Returns the number of this rank's threads that share a large step.
    pub(crate) fn threads_of_step(&self) -> usize {
        self.driver
            .with_engine(|engine| engine.parallel().threads())
    }

    /// Executes `request` on data that devices move through slots, by `gate`; returns when this
    /// rank's devices may take the last of it. Slices in the slots of all ranks have `slice_bytes`
    /// at most. The memory of the request does not matter. For lanes.
    pub(crate) fn run_gated(
        &self,
        request: &Request,
        slice_bytes: usize,
        gate: Gate,
    ) -> Result<()> {
        self.check_open()?;
        let way = match gate {
            Gate::Own(_) => self.choose(request)?.in_parts(),
            Gate::Shared(_) => Way::by_slots(slice_bytes),
        };
        let (rank, world_size) = (self.place.rank, self.place.world_size);
        let mut job = request.check_gated(rank, world_size, &way, self.timeout(request), gate)?;
        self.add_policies(&mut job)?;
        self.driver.run(job, &mut || Ok(())).map(drop)
    }

    /// Starts `request` and returns at once, a small call at the latest after a few microseconds;
    /// the communicator's own thread executes what is left.
    ///
    /// # Safety
    /// As for `run`, until the work is done (waited for, or `is_done`). The work must not be
    /// leaked. Memory of [`Registered`](crate::Registered) must not be dropped before.
    pub unsafe fn start(&self, request: Request) -> Result<Work> {
        let job = self.checked_job(&request)?;
        let bytes = job.count.saturating_mul(job.dtype.size_bytes() as u64);
        if (job.is_tiny() || job.collective.is_message())
            && bytes.saturating_mul(self.place.world_size as u64) <= PROMPT_BYTES_MAX
            && let Some(completion) = self.driver.start_here(&job)?
        {
            return Ok(self.work(completion));
        }
        let mut works = self.works(vec![job])?;
        Ok(works.pop().expect("one work for one job"))
    }

    /// Starts calls that are made together, in this order, and returns at once. Like
    /// [`start`](Communicator::start) of each, but the tuner knows their number, and uses fewer
    /// channels for each. All ranks make the same groups.
    ///
    /// # Errors
    /// The error of any request that is refused; none is started then.
    ///
    /// # Safety
    /// As for `start` of each.
    pub unsafe fn start_group(&self, requests: Vec<Request>) -> Result<Vec<Work>> {
        self.check_open()?;
        let group = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let jobs = requests.into_iter().map(|request| {
            let request = Request { group, ..request };
            self.job(&request)
        });
        let jobs = jobs.collect::<Result<Vec<_>>>()?;
        self.works(jobs)
    }

    /// Starts jobs on the communicator's own thread: all of them, or none.
    pub(super) fn works(&self, jobs: Vec<Job>) -> Result<Vec<Work>> {
        let completions = self.driver.start(jobs)?.into_iter();
        Ok(completions
            .map(|completion| self.work(completion))
            .collect())
    }

    fn work(&self, completion: Arc<Completion>) -> Work {
        Work::new(self.driver.clone(), completion, self.fork_guard.clone())
    }

    /// Checks a request without starting it. A caller that makes several calls together can find
    /// out beforehand whether any of them would be refused.
    ///
    /// # Errors
    /// The error with which the call would be refused.
    pub fn check_request(&self, request: &Request) -> Result<()> {
        self.checked_job(request).map(drop)
    }

    /// Returns the way in which this request would be carried out.
    pub fn way(&self, request: &Request) -> Result<Way> {
        self.choose(request)
    }

    /// Returns the progress of all ranks, by rank, to find out why a call takes so long. `None`
    /// stands for a rank that does not answer within `timeout`, or has left.
    ///
    /// Not collective: a library thread answers on the other ranks, even if they are stuck in a
    /// call. Works from any thread while another thread is in a call. Affects no decision, and
    /// delays no call. Returns with the last answer, at the latest half a second after `timeout`.
    /// Without a server (rank 0's process has ended) only this rank's progress is known.
    ///
    /// # Errors
    /// `Closed` after [`close`](Communicator::close), `Unsupported` in a forked child.
    pub fn standing(&self, timeout: Duration) -> Result<Vec<Option<Standing>>> {
        self.check_open()?;
        let mut standings = self.driver.watch().standing(timeout);
        for standing in standings.iter_mut().flatten() {
            standing.finished = standing.finished.saturating_sub(PREPARED);
            standing.begun = standing.begun.saturating_sub(PREPARED);
        }
        Ok(standings)
    }

    /// Returns which ranks were late in the collective calls so far, and how long this rank waited
    /// for each. Always counted, at no measurable cost. Waits of less than a few microseconds count
    /// as no time.
    ///
    /// Not collective; [`Stats`] is this rank's view. Waits for no call: calls under way contribute
    /// what is counted so far. Also works after an error, and after [`close`](Communicator::close).
    pub fn stats(&self) -> Stats {
        self.driver.with_engine(|engine| engine.stats())
    }

    /// Resets the counts of [`stats`](Communicator::stats) to zero. Not collective.
    pub fn reset_stats(&self) {
        self.driver.with_engine(Engine::reset_stats);
    }

    /// Checks that the communicator is open, and returns the request's job.
    #[inline(always)]
    pub(super) fn checked_job(&self, request: &Request) -> Result<Job> {
        self.check_open()?;
        self.job(request)
    }

    /// Checks the request, and returns its job.
    #[inline(always)]
    pub(super) fn job(&self, request: &Request) -> Result<Job> {
        let mut job = request.draft(&self.choose(request)?, self.timeout(request));
        self.complete(request, &mut job)?;
        Ok(job)
    }

    fn timeout(&self, request: &Request) -> Duration {
        request.options.timeout.unwrap_or(self.policy.timeout)
    }

    /// Checks the request and completes its draft.
    #[inline(always)]
    fn complete(&self, request: &Request, job: &mut Job) -> Result<()> {
        request.check_into(self.place.rank, self.place.world_size, job)?;
        self.add_policies(job)
    }

    /// Adds the communicator's weights and its late rank to a job whose way has them.
    #[inline(always)]
    fn add_policies(&self, job: &mut Job) -> Result<()> {
        if job.way.is_weighted && self.place.world_size > 1 {
            job.weights = self.weights.weights();
        }
        if job.way.algorithm == Algorithm::Stragglar {
            job.root = self.late_rank()?;
        }
        Ok(())
    }

    /// Returns the rank that `stragglar` expects last.
    #[cold]
    fn late_rank(&self) -> Result<usize> {
        self.policy.late_rank.ok_or_else(|| {
            let text = "`stragglar` does not know which rank is late; set `Config::late_rank` or \
                        RINGFOLD_LATE_RANK";
            Error::InvalidArgument(text.into())
        })
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}
