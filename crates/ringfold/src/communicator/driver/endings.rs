//! Calls that end in an error: verdicts, interruptions, panics.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::drive::Pace;
use super::state::{DriverState, EngineDriver, INBOX, OnWait};
use crate::engine::{Engine, Job};
use crate::error::{Error, LEFT, Result};
use crate::sync::lock;
use crate::types::Collective;

/// Time that a rank whose deadline has passed waits for the verdict, which names the ranks that all
/// others wait for.
pub(in crate::communicator) const TIMEOUT_GRACE: Duration = Duration::from_millis(600);

thread_local! {
    /// Addresses of the drivers in whose calls this thread is calling back.
    static CALLING_BACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A guard that marks this thread as calling back.
struct CallingBack;

impl CallingBack {
    fn from(driver: &EngineDriver) -> CallingBack {
        CALLING_BACK.with_borrow_mut(|drivers| drivers.push(std::ptr::from_ref(driver).addr()));
        CallingBack
    }
}

impl Drop for CallingBack {
    fn drop(&mut self) {
        CALLING_BACK.with_borrow_mut(|drivers| drivers.pop());
    }
}

impl EngineDriver {
    /// Whether the calling thread runs a callback of one of this driver's calls.
    pub fn is_calling_back(&self) -> bool {
        let own = std::ptr::from_ref(self).addr();
        CALLING_BACK.with_borrow(|drivers| drivers.contains(&own))
    }

    /// Runs the callback, under no lock. An error or a panic of the callback ends the communicator.
    /// When this returns, nothing on this rank touches the buffers of its calls, whichever thread
    /// drove them.
    pub(super) fn call_back(&self, on_wait: OnWait<'_>) -> Result<()> {
        let calling = CallingBack::from(self);
        let outcome = catch_unwind(AssertUnwindSafe(on_wait));
        drop(calling);
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(interruption)) => {
                self.interrupted(&interruption.to_string());
                Err(interruption)
            }
            Err(panic) => {
                self.interrupted(text_of(&*panic));
                resume_unwind(panic)
            }
        }
    }

    fn interrupted(&self, by: &str) {
        self.poison(self.abort_all(format!("interrupted: {by}")));
    }

    /// Tells all ranks to abort; returns the verdict.
    pub(super) fn abort_all(&self, reason: String) -> Error {
        let aborted = Error::Aborted {
            rank: self.rank,
            reason,
        };
        self.watch.report_fault(aborted, Duration::ZERO)
    }

    /// Runs `f` on the state; a panic of `f`, which is a bug in this library, becomes an error.
    #[inline(always)]
    pub(super) fn guarded<R>(
        &self,
        state: &mut DriverState,
        f: impl FnOnce(&mut DriverState) -> Result<R>,
    ) -> Result<R> {
        // Errors are boxed so that success, which is copied out of `catch_unwind`, is a few words.
        match self.caught(state, |state| f(state).map_err(Box::new)) {
            Ok(done) => done.map_err(|error| *error),
            Err(_) => Err(state.error.clone().unwrap_or(Error::Closed)),
        }
    }

    /// Runs `f` on the state. A panic of `f` ends the communicator, with the panic's message,
    /// before another thread sees the state.
    #[inline(always)]
    pub(super) fn caught<R>(
        &self,
        state: &mut DriverState,
        f: impl FnOnce(&mut DriverState) -> R,
    ) -> thread::Result<R> {
        catch_unwind(AssertUnwindSafe(|| f(&mut *state)))
            .inspect_err(|panic| self.panicked(state, &**panic))
    }

    #[cold]
    fn panicked(&self, state: &mut DriverState, panic: &(dyn Any + Send)) {
        let text = text_of(panic);
        let verdict = self.abort_all(format!(
            "a panic in ringfold, which is a bug in the library; please report it: {text}"
        ));
        self.end(state, verdict);
    }

    /// Fails if a rank that this rank waits for has left. Data that arrived before its departure is
    /// processed first.
    pub(super) fn check_departures(&self, state: &mut DriverState, pace: &Pace) -> Result<()> {
        let waits = self.program_waits(pace);
        let gone = |engine: &mut Engine| {
            engine.missed(waits, |transport, rank| {
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
                Err(self.fail(state, Error::peer_failed(rank, LEFT)))
            }
            Ok(false) => Ok(()),
        }
    }

    /// Whether a thread of the program waits for a call, and the inbox is empty.
    fn program_waits(&self, pace: &Pace) -> bool {
        // Pairs with the increment in `see_through`, before which the thread's job is enqueued.
        let waits = pace.calls_back || self.waiting.load(Ordering::Acquire) > 0;
        waits && self.attention.load(Ordering::Acquire) & INBOX == 0
    }

    /// Ends the communicator with the verdict, unless one more attempt finds data that arrived
    /// before the verdict.
    pub(super) fn handle_verdict(&self, state: &mut DriverState) -> Result<()> {
        match state.engine.progress(self.now()) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return Err(self.fail(state, error)),
        }
        Err(self.end_by_verdict(state))
    }

    /// Returns the verdict if `job` might never see it: a send may be done without waiting.
    pub(super) fn refusal(&self, job: &Job) -> Option<Error> {
        let is_refused = job.collective == Collective::Send && self.watch.is_faulty();
        is_refused.then(|| self.watch.fault().unwrap_or(Error::Closed))
    }

    pub(super) fn end_by_verdict(&self, state: &mut DriverState) -> Error {
        let verdict = self.watch.fault().unwrap_or(Error::Closed);
        let verdict = located(state, verdict);
        self.end(state, verdict)
    }

    /// Reports an error found here to all ranks, and ends the communicator. The verdict may differ
    /// from the error.
    pub(super) fn fail(&self, state: &mut DriverState, error: Error) -> Error {
        let error = located(state, error);
        let verdict = match &error {
            Error::Timeout { .. } => self.watch.report_fault(error, TIMEOUT_GRACE),
            fatal if fatal.is_fatal() => self.watch.report_fault(error, self.watch.crash_grace()),
            local => return self.interrupt(state, error.clone(), local.to_string()),
        };
        let verdict = located(state, verdict);
        self.end(state, verdict)
    }

    /// Ends the communicator for a reason of this rank alone: this rank gets `error`, the others an
    /// abort.
    fn interrupt(&self, state: &mut DriverState, error: Error, reason: String) -> Error {
        self.watch.report_fault(
            Error::Aborted {
                rank: self.rank,
                reason,
            },
            Duration::ZERO,
        );
        self.end(state, error)
    }

    pub(super) fn end(&self, state: &mut DriverState, error: Error) -> Error {
        state.engine.withdraw();
        self.clear_status(state);
        let error = state.error.get_or_insert(error).clone();
        if let Some(recorder) = &state.recorder {
            recorder.fail(&error);
        }
        let listed = state.completions.drain().map(|(_, completion)| completion);
        for completion in listed.chain(state.idle.drain(..)) {
            completion.complete(Err(error.clone()));
        }
        for completion in lock(&self.inbox).cancel() {
            completion.complete(Err(error.clone()));
        }
        error
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    let literal = || panic.downcast_ref::<&str>().copied();
    owned.or_else(literal).unwrap_or("no panic message")
}

/// Adds to `error` the call and the phase that the engine is in.
fn located(state: &mut DriverState, error: Error) -> Error {
    match state.engine.running_site() {
        Some(site) => error.at(site),
        None => error,
    }
}
