//! Who runs the engine, and how it waits.
//!
//! One thread at a time *drives*: it holds the engine, asks it to progress and waits by [`Patience`] in between. A
//! blocking call drives until its own job is done. Jobs that come meanwhile from other threads, and those started
//! asynchronously, go through the inbox; a worker thread, made on first use, drives while such jobs are left and nobody
//! else does.
//!
//! # Invariants
//!
//! * Every wait sees the verdict of the watch, the deadline of its job, and a departed peer.
//! * A verdict is looked at only when an attempt bore no fruit: a call whose data has arrived succeeds. Or when this rank
//!   is at work of its own, which bears fruit whatever befell the peers, and which they would have to wait for in any case.
//! * After a fatal error nothing touches a caller's buffer again: the engine is not asked to progress any more.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::notifier::Notifier;
use super::waiting::Waiting;
use super::watch::Watch;
use super::work::Completion;
use crate::engine::lateness::{Stats, UNTIMED_ATTEMPTS};
use crate::engine::{Engine, Finished, Job, JobId, TinyJob};
use crate::error::{Error, Result};
use crate::memory::Registry;
use crate::transport::{Time, Waker};
use crate::types::Collective;
use crate::wait::{BLOCK_MAX, Patience, Pause, Waiter};

/// How long a rank whose deadline has passed waits for the verdict that names the ranks everybody waits for.
pub(super) const TIMEOUT_GRACE: Duration = Duration::from_millis(600);

/// Attempts of a tiny call before the waiting begins that looks at deadlines: a few microseconds while they spin.
const TINY_ATTEMPTS: u32 = 200;

/// How long a waiting thread goes without calling back (for signals); a sleep may add [`BLOCK_MAX`].
const ON_WAIT_INTERVAL: Duration = Duration::from_millis(20);

/// What a thread calls while it waits; an error ends the wait and the communicator.
pub type OnWait<'a> = &'a mut dyn FnMut() -> Result<()>;

/// A communicator's engine and those who drive it.
pub struct Driver {
    rank: usize,
    state: Mutex<State>,
    inbox: Mutex<Inbox>,
    /// Whether the inbox holds jobs: one load for the thread that drives.
    is_inbox_filled: AtomicBool,
    /// Tells the worker that there is something to do.
    for_worker: Condvar,
    watch: Box<dyn Watch>,
    waker: Waker,
    /// Held from the first use on, so that its thread is not made anew for every call.
    notifier: OnceLock<Arc<Notifier>>,
    origin: Instant,
}

struct State {
    engine: Engine,
    /// Whom to tell when a job is done; the driving thread's own job is not listed.
    completions: HashMap<JobId, Arc<Completion>>,
    /// Why nothing runs any more.
    error: Option<Error>,
    waiter: Waiter,
    /// Whether it stands somewhere in words what is waited for.
    is_described: bool,
    /// Since when this rank waits in the call that it waits in.
    waiting: Option<Waiting>,
}

#[derive(Default)]
struct Inbox {
    jobs: VecDeque<(Job, Arc<Completion>)>,
    worker: Option<thread::JoinHandle<()>>,
    /// Jobs handed over that are not done yet.
    has_work: bool,
    is_stopped: bool,
}

/// Until when a thread drives.
enum Until<'a> {
    /// This one is done; who sent is noted, if it was a receive.
    Job(JobId, &'a Cell<Option<usize>>),
    Complete(&'a Completion),
    Tiny,
    Idle,
}

impl Driver {
    /// A driver of `engine`.
    pub fn new(
        mut engine: Engine,
        rank: usize,
        watch: Box<dyn Watch>,
        patience: Patience,
    ) -> Driver {
        let waker = engine.transport().waker();
        Driver {
            rank,
            state: Mutex::new(State {
                engine,
                completions: HashMap::new(),
                error: None,
                waiter: Waiter::new(patience),
                is_described: false,
                waiting: None,
            }),
            inbox: Mutex::new(Inbox::default()),
            is_inbox_filled: AtomicBool::new(false),
            for_worker: Condvar::new(),
            watch,
            waker,
            notifier: OnceLock::new(),
            origin: Instant::now(),
        }
    }

    /// The health of the peers.
    pub fn watch(&self) -> &dyn Watch {
        self.watch.as_ref()
    }

    /// Who tells those that want to know when a call is done.
    pub fn notifier(&self) -> Result<Arc<Notifier>> {
        if let Some(notifier) = self.notifier.get() {
            return Ok(notifier.clone());
        }
        let notifier = Notifier::shared()?;
        Ok(self.notifier.get_or_init(|| notifier).clone())
    }

    /// Runs `job` and returns when it is done on this rank. Gives who sent, where it was a receive.
    pub fn run(&self, job: Job, on_wait: OnWait<'_>) -> Result<Option<usize>> {
        if let Ok(mut state) = self.state.try_lock()
            && !self.is_inbox_filled.load(Ordering::Relaxed)
        {
            if let Some(error) = state.error.clone().or_else(|| self.refusal(&job)) {
                return Err(error);
            }
            let id = state.engine.submit(job)?;
            let source = Cell::new(None);
            self.drive(&mut state, &Until::Job(id, &source), on_wait)?;
            return Ok(source.get());
        }
        // Here the state is free again: whoever waits below drives, or lets others drive.
        let completion = Arc::new(Completion::default());
        self.enqueue(job, completion.clone());
        self.wait(&completion, None, on_wait)?;
        Ok(completion.source())
    }

    /// Runs a tiny call by the shortest way, if nothing else is under way; `None` when it must go the usual one.
    pub fn run_tiny(&self, job: &TinyJob, on_wait: OnWait<'_>) -> Option<Result<()>> {
        let mut state = self.state.try_lock().ok()?;
        // Pairs with the store in `enqueue`.
        if self.is_inbox_filled.load(Ordering::Acquire) || state.error.is_some() {
            return None;
        }
        match state.engine.begin_tiny(job) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(Err(error)),
        }
        for attempt in 1..=UNTIMED_ATTEMPTS {
            match state.engine.poll_tiny() {
                Ok(true) => {
                    state.waiter.learn(attempt - 1);
                    self.note(&state);
                    return Some(Ok(()));
                }
                Ok(false) => {}
                Err(error) => return Some(Err(self.fail(&mut state, error))),
            }
            if attempt == UNTIMED_ATTEMPTS || state.waiter.pause(attempt) != Pause::Spin {
                return Some(self.await_tiny(&mut state, attempt, on_wait));
            }
            std::hint::spin_loop();
        }
        unreachable!("the last attempt leads on");
    }

    /// Goes on with a tiny call after so many attempts: apart, so that the short ones are short.
    #[cold]
    fn await_tiny(&self, state: &mut State, attempts: u32, on_wait: OnWait<'_>) -> Result<()> {
        let since = self.now();
        for attempt in attempts..=TINY_ATTEMPTS {
            match state.waiter.pause(attempt) {
                Pause::Spin => std::hint::spin_loop(),
                // Others take their time with the core, so a verdict may have come meanwhile.
                Pause::Yield if !self.watch.is_faulty() => thread::yield_now(),
                Pause::Yield | Pause::Block(_) => break,
            }
            match state.engine.poll_tiny() {
                Ok(true) => {
                    state.waiter.learn(attempt);
                    let wait = self.now().since(since);
                    state.engine.count_tiny(wait);
                    self.note(state);
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => return Err(self.fail(state, error)),
            }
        }
        state.engine.lateness().begin_long_tiny(since);
        self.drive(state, &Until::Tiny, on_wait)
    }

    /// Takes `job` on; the worker carries it out.
    pub fn start(self: &Arc<Driver>, job: Job) -> Result<Arc<Completion>> {
        let completion = Arc::new(Completion::default());
        self.enqueue(job, completion.clone());
        let mut inbox = lock(&self.inbox);
        inbox.has_work = true;
        if inbox.worker.is_none() {
            let driver = self.clone();
            let worker = thread::Builder::new()
                .name("ringfold worker".into())
                .spawn(move || driver.work());
            inbox.worker =
                Some(worker.map_err(|error| Error::system("cannot start a thread", error))?);
        }
        self.for_worker.notify_one();
        Ok(completion)
    }

    /// Waits until `completion` is reached, driving if nobody else does; false when `timeout` passes first.
    pub fn wait(
        &self,
        completion: &Completion,
        timeout: Option<Duration>,
        on_wait: OnWait<'_>,
    ) -> Result<bool> {
        let begin = Instant::now();
        loop {
            if let Some(result) = completion.result() {
                return result.map(|()| true);
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            if timeout.is_none()
                && let Some(mut state) = self.try_state()
            {
                self.drive(&mut state, &Until::Complete(completion), on_wait)?;
                continue;
            }
            completion.wait(left.unwrap_or(ON_WAIT_INTERVAL).min(ON_WAIT_INTERVAL));
            if completion.result().is_none() {
                self.call_back(on_wait)?;
            }
        }
    }

    /// Waits for everything that was started.
    pub fn finish(&self, on_wait: OnWait<'_>) -> Result<()> {
        let mut state = lock(&self.state);
        if state.error.is_some() {
            return Ok(());
        }
        self.drive(&mut state, &Until::Idle, on_wait)
    }

    /// Has `f` change the registered buffers between two calls.
    pub fn with_registry<R>(&self, f: impl FnOnce(&mut Registry) -> R) -> R {
        f(lock(&self.state).engine.registry())
    }

    /// Who was late until now.
    pub fn stats(&self) -> Stats {
        lock(&self.state).engine.stats()
    }

    /// Counts from zero again.
    pub fn reset_stats(&self) {
        lock(&self.state).engine.reset_stats();
    }

    /// Whether the next calls are the library's own; see [`Engine::set_preparing`].
    pub fn set_preparing(&self, is_preparing: bool) {
        lock(&self.state).engine.set_preparing(is_preparing);
    }

    /// Whether no call is under way. After an error none is.
    pub fn is_idle(&self) -> bool {
        let Some(state) = self.try_state() else {
            return false;
        };
        // Pairs with the store in `enqueue`.
        let is_filled = self.is_inbox_filled.load(Ordering::Acquire);
        state.error.is_some() || (state.engine.is_idle() && !is_filled)
    }

    /// Has every later call fail with `error`, and waiting ones with the verdict.
    pub fn poison(&self, error: Error) {
        (self.waker)();
        let mut state = lock(&self.state);
        self.end(&mut state, error);
    }

    /// Ends the worker. Nothing is started afterwards.
    pub fn stop(&self) {
        let worker = {
            let mut inbox = lock(&self.inbox);
            inbox.is_stopped = true;
            self.for_worker.notify_one();
            inbox.worker.take()
        };
        (self.waker)();
        if let Some(worker) = worker
            && worker.thread().id() != thread::current().id()
        {
            // A worker that panicked has nothing more to say than the panic message.
            let _ = worker.join();
        }
        // Somebody who still drives ends the helpers with the engine.
        if let Some(mut state) = self.try_state() {
            state.engine.helpers().end();
        }
    }

    fn enqueue(&self, job: Job, completion: Arc<Completion>) {
        let mut inbox = lock(&self.inbox);
        inbox.jobs.push_back((job, completion));
        // Pairs with the load in `drain`; the jobs themselves are passed under the lock.
        self.is_inbox_filled.store(true, Ordering::Release);
        drop(inbox);
        (self.waker)();
    }

    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The worker's life.
    fn work(&self) {
        loop {
            let mut inbox = lock(&self.inbox);
            while !inbox.has_work && !inbox.is_stopped {
                inbox = self
                    .for_worker
                    .wait(inbox)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if inbox.is_stopped {
                return;
            }
            inbox.has_work = false;
            drop(inbox);
            let mut state = lock(&self.state);
            // Whoever waits for the jobs gets the error; the worker itself has nobody to tell.
            let _ = self.drive(&mut state, &Until::Idle, &mut || Ok(()));
        }
    }

    fn drive(&self, state: &mut State, until: &Until<'_>, on_wait: OnWait<'_>) -> Result<()> {
        let mut attempts = 0;
        let mut last_call_back = None;
        let mut now = Time(0);
        self.note(state);
        loop {
            // Pairs with the store in `enqueue`.
            if self.is_inbox_filled.load(Ordering::Acquire) {
                self.drain(state);
            }
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if state.engine.goes_by_time() {
                now = self.now();
            }
            let progressed = match state.engine.progress(now) {
                Ok(progressed) => progressed,
                Err(error) => return Err(self.fail(state, error)),
            };
            if progressed && attempts > 0 {
                state.waiter.learn(attempts);
                attempts = 0;
            }
            if progressed {
                state.engine.lateness().end_wait(|| self.now());
            }
            if self.deliver(state, until) {
                self.note(state);
                self.fall_silent(state);
                return Ok(());
            }
            if progressed {
                if state.engine.is_at_work() {
                    self.look_up(state, &mut now, &mut last_call_back, on_wait)?;
                }
                continue;
            }
            attempts += 1;
            state.engine.lateness().begin_wait();
            if self.watch.is_faulty() {
                self.heed_verdict(state)?;
            }
            if state.waiter.is_clock_due(attempts) {
                now = self.now();
                state.engine.lateness().time_wait(now);
                self.look_around(state, now, &mut last_call_back, on_wait)?;
            } else if attempts == UNTIMED_ATTEMPTS {
                let now = self.now();
                state.engine.lateness().time_wait(now);
            }
            match state.waiter.pause(attempts) {
                Pause::Spin => std::hint::spin_loop(),
                Pause::Yield => thread::yield_now(),
                Pause::Block(timeout) => {
                    let timer = state.engine.next_timer();
                    let until_timer = timer.map_or(BLOCK_MAX, |timer| timer.since(self.now()));
                    let timeout = timeout.min(BLOCK_MAX).min(until_timer);
                    if let Err(error) = state.engine.transport().block(timeout) {
                        return Err(self.fail(state, error));
                    }
                }
            }
        }
    }

    /// Tells whom it concerns about finished jobs; whether `until` is reached.
    fn deliver(&self, state: &mut State, until: &Until<'_>) -> bool {
        let mut is_mine_done = false;
        let mut is_any_done = false;
        while let Some(Finished { id, source }) = state.engine.take_finished() {
            is_any_done = true;
            match until {
                Until::Job(mine, sender) if *mine == id => {
                    is_mine_done = true;
                    sender.set(source);
                }
                _ => {
                    if let Some(completion) = state.completions.remove(&id) {
                        completion.succeed(source);
                    }
                }
            }
        }
        if is_any_done {
            self.note(state);
        }
        state.engine.lateness().settle();
        match until {
            Until::Job(..) => is_mine_done,
            Until::Tiny => !state.engine.is_tiny_active(),
            Until::Complete(completion) => completion.result().is_some(),
            Until::Idle => state.engine.is_idle() && !self.is_inbox_filled.load(Ordering::Acquire),
        }
    }

    /// Takes over what other threads want done.
    fn drain(&self, state: &mut State) {
        let mut inbox = lock(&self.inbox);
        self.is_inbox_filled.store(false, Ordering::Relaxed);
        while let Some((job, completion)) = inbox.jobs.pop_front() {
            if let Some(error) = state.error.clone().or_else(|| self.refusal(&job)) {
                completion.complete(Err(error));
                continue;
            }
            match state.engine.submit(job) {
                Ok(id) => {
                    state.completions.insert(id, completion);
                }
                Err(error) => completion.complete(Err(error)),
            }
        }
        // Jobs outlive the thread that takes them over: the worker sees to the rest.
        inbox.has_work = true;
        self.for_worker.notify_one();
        self.note(state);
    }

    /// Notes how far this rank is, for those who ask.
    fn note(&self, state: &State) {
        let engine = &state.engine;
        let progress = self.watch.progress();
        progress.note(engine.collectives_finished(), engine.sequence());
    }

    /// Says what this rank waits in.
    fn describe(&self, state: &mut State) {
        if let Some(site) = state.engine.running_site() {
            let text = format!("{}, {}", site.call, site.phase);
            self.watch.progress().describe(site.call, text);
            state.is_described = true;
            let now = self.now();
            let waiting = state.waiting.get_or_insert(Waiting::new(&site.call, now));
            if waiting.is_claim_due(&site.call, now) {
                self.watch.claim(site.call);
            }
        }
    }

    /// Says that it waits in nothing any more.
    fn fall_silent(&self, state: &mut State) {
        if std::mem::take(&mut state.is_described) {
            self.watch.progress().fall_silent();
            state.waiting = None;
        }
    }

    /// What is done between two pieces of work that would go on whatever befalls the peers.
    fn look_up(
        &self,
        state: &mut State,
        now: &mut Time,
        last_call_back: &mut Option<Time>,
        on_wait: OnWait<'_>,
    ) -> Result<()> {
        if self.watch.is_faulty() {
            return Err(self.end_by_verdict(state));
        }
        *now = self.now();
        self.look_around(state, *now, last_call_back, on_wait)
    }

    /// What is too costly to do on every attempt.
    fn look_around(
        &self,
        state: &mut State,
        now: Time,
        last_call_back: &mut Option<Time>,
        on_wait: OnWait<'_>,
    ) -> Result<()> {
        let checked = state.engine.check_deadlines(now);
        if let Err(error) = checked.and_then(|()| state.engine.compare_media()) {
            return Err(self.fail(state, error));
        }
        let last = *last_call_back.get_or_insert(now);
        if now.since(last) < ON_WAIT_INTERVAL {
            return Ok(());
        }
        *last_call_back = Some(now);
        self.describe(state);
        if self.watch.anyone_left() {
            self.heed_departures(state)?;
        }
        if let Err(interruption) = on_wait() {
            let reason = format!("interrupted: {interruption}");
            return Err(self.interrupt(state, interruption, reason));
        }
        Ok(())
    }

    /// Fails if a rank has left that this one waits for. What it did before it left is taken first.
    fn heed_departures(&self, state: &mut State) -> Result<()> {
        let gone = |engine: &mut Engine| {
            engine.missed(|transport, rank| {
                self.watch.has_left(rank) && transport.is_departure_final(rank)
            })
        };
        let Some(rank) = gone(&mut state.engine) else {
            return Ok(());
        };
        let now = self.now();
        match state.engine.progress(now) {
            Err(error) => Err(self.fail(state, error)),
            Ok(true) => Ok(()),
            Ok(false) if gone(&mut state.engine) == Some(rank) => {
                let reason = "it left (closed its communicator) while it was still needed".into();
                Err(self.fail(
                    state,
                    Error::PeerFailed {
                        rank,
                        reason,
                        site: None,
                    },
                ))
            }
            Ok(false) => Ok(()),
        }
    }

    /// Ends everything by the verdict, unless one more attempt finds data that had come before it.
    fn heed_verdict(&self, state: &mut State) -> Result<()> {
        match state.engine.progress(self.now()) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return Err(self.fail(state, error)),
        }
        Err(self.end_by_verdict(state))
    }

    /// The verdict, where `job` might never see it: a send may be done without any waiting.
    fn refusal(&self, job: &Job) -> Option<Error> {
        let is_refused = job.collective == Collective::Send && self.watch.is_faulty();
        is_refused.then(|| self.watch.fault().unwrap_or(Error::Closed))
    }

    fn end_by_verdict(&self, state: &mut State) -> Error {
        let verdict = self.watch.fault().unwrap_or(Error::Closed);
        let verdict = located(state, verdict);
        self.end(state, verdict)
    }

    /// Ends everything by an error found here: the others are told, and the verdict may be another than the suspicion.
    fn fail(&self, state: &mut State, error: Error) -> Error {
        let error = located(state, error);
        let verdict = match &error {
            Error::Timeout { .. } => self.watch.settle(error, TIMEOUT_GRACE),
            fatal if fatal.is_fatal() => self.watch.settle(error, self.watch.crash_grace()),
            local => return self.interrupt(state, error.clone(), local.to_string()),
        };
        let verdict = located(state, verdict);
        self.end(state, verdict)
    }

    /// Ends everything for a reason of this rank alone: it gets `error`, the others an abort.
    fn interrupt(&self, state: &mut State, error: Error, reason: String) -> Error {
        self.watch.settle(
            Error::Aborted {
                rank: self.rank,
                reason,
            },
            Duration::ZERO,
        );
        self.end(state, error)
    }

    fn end(&self, state: &mut State, error: Error) -> Error {
        state.engine.withdraw();
        self.fall_silent(state);
        let error = state.error.get_or_insert(error).clone();
        for (_, completion) in state.completions.drain() {
            completion.complete(Err(error.clone()));
        }
        for (_, completion) in lock(&self.inbox).jobs.drain(..) {
            completion.complete(Err(error.clone()));
        }
        error
    }

    fn call_back(&self, on_wait: OnWait<'_>) -> Result<()> {
        on_wait().map_err(|interruption| {
            let reason = format!("interrupted: {interruption}");
            self.watch.settle(
                Error::Aborted {
                    rank: self.rank,
                    reason,
                },
                Duration::ZERO,
            );
            (self.waker)();
            interruption
        })
    }

    fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() * 1000)
    }
}

/// `error` with the place where the engine stands.
fn located(state: &mut State, error: Error) -> Error {
    match state.engine.running_site() {
        Some(site) => error.at(site),
        None => error,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
