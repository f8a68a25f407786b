//! A communicator as its user holds it: its calls, and how they are chosen.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::agreed::Agreed;
use super::choices::{Choices, Kind};
use super::driver::{Driver, OnWait};
use super::group::Group;
use super::membership::Membership;
use super::request::{Counts, Request};
use super::work::Work;
use crate::call::{PREPARED, Way};
use crate::control::Standing;
use crate::engine::lateness::Stats;
use crate::engine::{Engine, Job};
use crate::error::{Error, Result};
use crate::memory::{ForkGuard, Region};
use crate::schedule::{Groups, Schedule};
use crate::tune::calibration::Calibration;
use crate::tune::choose;
use crate::tune::{Explanation, Question, Rules, Tuning};
use crate::types::{Access, Algorithm, Collective, DType, Method};

/// Where choices are logged.
pub(super) const TUNING_LOG: &str = "ringfold::tuning";

/// The sizes of which the log tells what the model says.
const LOGGED_SIZES: [u64; 5] = [8, 1 << 10, 32 << 10, 1 << 20, 32 << 20];

/// A group of ranks that communicate.
///
/// Every rank makes the same collective calls in the same order; a difference is an
/// `Error::Mismatch`. All methods may be called from any thread; calls of several threads on one
/// communicator are executed in the order in which they came.
///
/// Dropping a communicator leaves it like [`close`](Communicator::close) does, but waits for
/// nothing: when calls are still under way it is aborted on all ranks.
pub struct Communicator {
    pub(crate) driver: Arc<Driver>,
    pub(super) place: Place,
    pub(crate) policy: Policy,
    pub(super) weights: Agreed,
    pub(super) choices: Choices,
    pub(crate) membership: Membership,
    pub(super) fork_guard: Arc<ForkGuard>,
}

/// Where a rank stands among the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub rank: usize,
    pub world_size: usize,
    pub local_rank: usize,
    pub local_size: usize,
    pub hosts: usize,
    /// Runs of consecutive ranks of one host.
    pub runs: usize,
    /// `shm`, `tcp`, `shm+tcp`, `local` or `self`.
    pub transport: &'static str,
}

/// What the choice of every call is made from, beside the call itself.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub tuning: Tuning,
    /// Whether choices are kept from the log: those of the library's own calls.
    pub is_silent: bool,
    /// The algorithm of every collective that has it.
    pub algorithm: Option<Method>,
    /// The rank that is known to come late.
    pub late_rank: Option<usize>,
    pub timeout: Duration,
    pub slot_bytes: Option<usize>,
    /// Domains of equal size that the ranks sit in.
    pub domains: usize,
    /// Whether rings bypass slow ranks.
    pub bypasses_stragglers: bool,
}

impl Policy {
    /// Choices by `tuning` alone.
    pub fn new(tuning: Tuning) -> Policy {
        Policy {
            tuning,
            is_silent: false,
            algorithm: None,
            late_rank: None,
            timeout: Duration::ZERO,
            slot_bytes: None,
            domains: 1,
            bypasses_stragglers: false,
        }
    }
}

impl Communicator {
    pub(crate) fn new(
        driver: Driver,
        place: Place,
        policy: Policy,
        membership: Membership,
    ) -> Communicator {
        Communicator {
            driver: Arc::new(driver),
            place,
            policy,
            weights: Agreed::default(),
            choices: Choices::default(),
            membership,
            fork_guard: Arc::new(ForkGuard::new()),
        }
    }

    /// Has collectives that have this algorithm use it from now on; all ranks say the same.
    pub(super) fn force_algorithm(&mut self, algorithm: Option<Method>) {
        self.policy.algorithm = algorithm;
        self.choices.forget();
    }

    /// Has calls decided by this table of rules from now on, instead of the one before. Between
    /// calls, and all ranks set the same, in the same place of their order of calls: a difference
    /// is a `Mismatch` of a later call that it concerns. Communicators that are
    /// [`split`](Communicator::split) off later begin with it.
    pub fn set_rules(&mut self, rules: Rules) {
        self.policy.tuning.rules = rules;
        self.choices = Choices::default();
    }

    /// What was measured on this rank's machine; nothing for ranks that are threads.
    pub(crate) fn calibration(&self) -> Option<Calibration> {
        self.membership.group().and_then(Group::calibration)
    }

    /// The table of rules by which calls are decided, empty where there is none. The same on all
    /// ranks.
    pub fn rules(&self) -> &Rules {
        &self.policy.tuning.rules
    }

    /// What there is to choose from for this request, what is chosen, and why. Where this
    /// communicator has registered memory it says how a request in such memory would go.
    ///
    /// It changes nothing, calls no peer, and waits for no call.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the request cannot be carried out, or not as it asks or the operator's
    /// variables insist.
    pub fn explain(&self, request: &Request) -> Result<Explanation> {
        let bytes = request.bytes(self.place.world_size);
        let question = Question {
            is_registered: self.place.hosts == 1 && self.has_registered(),
            ..self.question(request, bytes, self.weights.weights().is_some())
        };
        choose::explain(&question, &self.policy.tuning)
    }

    /// This process' rank in this communicator.
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.place.world_size
    }

    /// This rank's number among the ranks of its host.
    pub fn local_rank(&self) -> usize {
        self.place.local_rank
    }

    /// The number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.place.local_size
    }

    /// The number of hosts.
    pub fn hosts(&self) -> usize {
        self.place.hosts
    }

    /// The host of each rank: hosts are numbered by their first rank.
    pub fn hosts_of_ranks(&self) -> Vec<usize> {
        let hosts = self.membership.group().map_or(Groups::ONE, Group::hosts);
        let ranks = 0..self.place.world_size as u32;
        ranks.map(|rank| hosts.of(rank) as usize).collect()
    }

    /// What moves the data: `shm`, `tcp`, `shm+tcp`; `local` among threads, `self` alone.
    pub fn transport(&self) -> &'static str {
        self.place.transport
    }

    /// Executes `request` and returns when it is done on this rank; gives the rank that sent, where
    /// the request is a `Recv`.
    ///
    /// Calls `on_wait` every 20 to 40 ms while it waits. When `on_wait` fails (Ctrl-C), the
    /// communicator is aborted on all ranks and the error is returned. A panic of `on_wait` aborts
    /// it, too, and goes on.
    ///
    /// `on_wait` runs under no lock and may use the communicator. A call that it makes is carried
    /// out after the one that waits, by this rank as by the others; [`abort`](Communicator::abort)
    /// and [`close`](Communicator::close) end both.
    ///
    /// # Safety
    /// The regions are valid until this returns, and nothing else writes to `input` or touches
    /// `output` meanwhile.
    pub unsafe fn run(&self, request: &Request, on_wait: OnWait<'_>) -> Result<Option<usize>> {
        self.check_open()?;
        let mut job = request.draft(&self.choose(request)?, self.timeout(request));
        self.complete(request, &mut job)?;
        if job.is_tiny() && self.driver.run_tiny(&job, on_wait)? {
            return Ok(None);
        }
        self.driver.run(job, on_wait)
    }

    /// Starts `request` and returns at once; it is carried out by the communicator's own thread.
    ///
    /// # Safety
    /// As for `run`, until the work is done (waited for, or `is_done`). The work is not leaked.
    /// Memory of [`Registered`](crate::Registered) is not dropped before.
    pub unsafe fn start(&self, request: Request) -> Result<Work> {
        self.check_open()?;
        let job = self.job(&request)?;
        let mut works = self.works(vec![job])?;
        Ok(works.pop().expect("one work for one job"))
    }

    /// Starts calls that are made together, in this order, and returns at once: like
    /// [`start`](Communicator::start) of each, but the tuner knows how many they are, and gives
    /// each fewer channels. All ranks make the same groups.
    ///
    /// # Errors
    /// What is wrong with any of them; none is started then.
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

    /// Jobs that the communicator's own thread carries out: all of them, or none.
    pub(super) fn works(&self, jobs: Vec<Job>) -> Result<Vec<Work>> {
        let completions = self.driver.start(jobs)?.into_iter();
        let work = |completion| Work::new(self.driver.clone(), completion, self.fork_guard.clone());
        Ok(completions.map(work).collect())
    }

    /// Checks a request as its call does, and starts nothing: a caller that makes several calls
    /// together can find out beforehand whether any of them is refused.
    ///
    /// # Errors
    /// The error with which the call would be refused.
    pub fn check_request(&self, request: &Request) -> Result<()> {
        self.check_open()?;
        self.job(request).map(drop)
    }

    /// How this request would be carried out.
    pub fn way(&self, request: &Request) -> Result<Way> {
        self.choose(request)
    }

    /// How far all ranks are, by rank: to find out why a call takes so long. `None` stands
    /// for a rank that does not answer within `timeout`, or has left.
    ///
    /// Not collective: the others answer by a thread of the library, also those that are stuck in a
    /// call, and this works from any thread while another one is in a call. Nothing is decided by
    /// it, and no call is delayed. It returns with the last answer, at the latest half a second
    /// after `timeout`. Without a server (rank 0's process is gone) only this rank is known.
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

    /// Who was late in the collective calls until now, and for whom this rank waited: counted
    /// always, at no cost that could be measured. Waits of less than a few microseconds count as no
    /// time.
    ///
    /// Not collective; [`Stats`] is this rank's view. It waits for no call: of those under way it
    /// has what is counted so far. Works after an error, and after [`close`](Communicator::close),
    /// too.
    pub fn stats(&self) -> Stats {
        self.driver.with_engine(|engine| engine.stats())
    }

    /// Has [`stats`](Communicator::stats) count from zero again. Not collective.
    pub fn reset_stats(&self) {
        self.driver.with_engine(Engine::reset_stats);
    }

    /// The request, checked, as it is carried out.
    pub(super) fn job(&self, request: &Request) -> Result<Job> {
        let mut job = request.draft(&self.choose(request)?, self.timeout(request));
        self.complete(request, &mut job)?;
        Ok(job)
    }

    fn timeout(&self, request: &Request) -> Duration {
        request.timeout.unwrap_or(self.policy.timeout)
    }

    /// Checks the request and completes its draft.
    #[inline(always)]
    fn complete(&self, request: &Request, job: &mut Job) -> Result<()> {
        request.check_into(self.place.rank, self.place.world_size, job)?;
        if job.way.is_weighted && self.place.world_size > 1 {
            job.weights = self.weights.weights();
        }
        if job.way.algorithm == Algorithm::Stragglar {
            job.root = self.late_rank()?;
        }
        Ok(())
    }

    /// The rank that `stragglar` expects last.
    #[cold]
    fn late_rank(&self) -> Result<usize> {
        self.policy.late_rank.ok_or_else(|| {
            let text = "`stragglar` does not know which rank is late; set `Config::late_rank` or \
                        RINGFOLD_LATE_RANK";
            Error::InvalidArgument(text.into())
        })
    }

    /// The algorithm that is requested. The communicator's is for the collectives that have it.
    fn requested(&self, request: &Request) -> Option<Method> {
        let serves = |method: &Method| {
            Access::ALL
                .iter()
                .any(|access| Schedule::exists(request.collective, *method, *access))
        };
        request.algorithm.or(self.policy.algorithm.filter(serves))
    }

    /// How the request is carried out: as the last one of its kind, if that is remembered.
    #[inline(always)]
    pub(super) fn choose(&self, request: &Request) -> Result<Way> {
        let bytes = request.bytes(self.place.world_size);
        let is_weighted = self.weights.are_there();
        let kind = Kind::of(request, bytes, is_weighted);
        match kind.and_then(|kind| self.choices.get(kind)) {
            Some(way) => Ok(way),
            None => self.choose_anew(request, bytes, is_weighted),
        }
    }

    #[cold]
    pub(super) fn choose_anew(
        &self,
        request: &Request,
        bytes: u64,
        is_weighted: bool,
    ) -> Result<Way> {
        let question = self.question(request, bytes, is_weighted);
        let way = choose::choose(&question, &self.policy.tuning)?;
        if let Some(kind) = Kind::of(request, bytes, is_weighted) {
            self.choices.put(kind, &way);
            if !self.policy.is_silent
                && log::log_enabled!(target: TUNING_LOG, log::Level::Info)
                && self.choices.is_unlogged(kind)
            {
                self.log_choice(&question, &way);
            }
        }
        Ok(way)
    }

    /// Logs a new choice and why, and for those who look closely what else there was.
    fn log_choice(&self, question: &Question, way: &Way) {
        let question = Question {
            is_registered: way.access == Access::Registered,
            ..*question
        };
        let Ok(explanation) = choose::explain(&question, &self.policy.tuning) else {
            return;
        };
        let tried = way.tried().map_or("", |way| way.method().name());
        let registered = match tried {
            "" if question.lends => {
                "; within a host, large messages are lent from registered memory"
            }
            "" => "",
            _ => "; in registered memory ",
        };
        log::info!(
            target: TUNING_LOG,
            "choice: {} of {} bytes, {} ranks: {}{registered}{tried}",
            question.collective,
            question.bytes,
            question.world_size,
            explanation.decision(),
        );
        log::debug!(
            target: TUNING_LOG,
            "costs: {} of {} bytes: {explanation}",
            question.collective,
            question.bytes,
        );
    }

    /// Logs what the model says of all-reduces of some sizes. Costs a moment where the log wants
    /// it, and nothing otherwise.
    pub(crate) fn log_model(&self) {
        if self.rank() != 0 || !log::log_enabled!(target: TUNING_LOG, log::Level::Debug) {
            return;
        }
        let counts = Counts::Even(0);
        let (collective, nothing) = (Collective::AllReduce, Region::EMPTY);
        let request = Request::new(collective, DType::U8, counts, nothing, nothing);
        for bytes in LOGGED_SIZES {
            let question = self.question(&request, bytes, self.weights.are_there());
            if let Ok(explanation) = choose::explain(&question, &self.policy.tuning) {
                log::debug!(
                    target: TUNING_LOG,
                    "model: all_reduce of {bytes} bytes: {explanation}"
                );
            }
        }
    }

    /// Whether there has been registered memory: the same on all ranks at the same call.
    fn has_registered(&self) -> bool {
        self.driver
            .with_engine(|engine| engine.registry().is_used())
    }

    pub(super) fn question(&self, request: &Request, bytes: u64, is_weighted: bool) -> Question {
        let policy = &self.policy;
        let question = Question {
            hosts: self.place.hosts,
            runs: self.place.runs,
            domains: policy.domains,
            slot_bytes: policy.slot_bytes,
            // Ranks find out in the call itself.
            is_registered: self.place.hosts == 1,
            lends: self.place.hosts > 1 && self.has_registered(),
            is_uneven: request.is_uneven(),
            is_pairwise: matches!(request.counts, Counts::Pairwise { .. }),
            group: request.group,
            algorithm: self.requested(request),
            protocol: request.protocol,
            ..Question::new(request.collective, bytes, self.place.world_size)
        };
        question.with_policies(
            is_weighted,
            policy.bypasses_stragglers,
            &policy.tuning.limits,
        )
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}
