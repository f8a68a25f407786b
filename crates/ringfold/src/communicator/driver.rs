//! Drives a communicator's engine, and waits for its calls.
//!
//! One thread at a time *drives*: it holds the engine, polls it for progress and waits by
//! [`Patience`](crate::wait::Patience) in between. A blocking call drives until its own job is
//! done. Jobs that other threads submit meanwhile, and those started asynchronously, go through the
//! inbox. A worker thread, created on first use, drives while such jobs are left and no other
//! thread does.
//!
//! The driving thread releases the engine between two attempts if another thread requests it (a
//! *visit*: to read figures or to end the communicator), and when its own callback is due. So a
//! callback, which may be a signal handler, runs under no lock of the driver and may use the
//! communicator. From then on the thread's call has a [`Completion`], because another thread may
//! drive the call to its end.
//!
//! # Invariants
//!
//! * Every wait checks the verdict of the watch, the deadline of its job, and departed peers.
//! * A verdict is checked only after a fruitless attempt, so a call whose data has arrived
//!   succeeds. The exception is local work, which progresses even if peers have failed: verdicts
//!   are checked between its chunks.
//! * After a fatal error nothing touches a caller's buffer again: the engine is no longer polled.
//!   An interrupted wait returns only after the last poll.
//! * Only the library's own code runs under its locks.

mod drive;
mod endings;
mod inbox;
mod recorder;
mod state;
#[cfg(test)]
mod tests;
mod worker;

use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::completion::Completion;
use crate::board::Board;
use crate::engine::{Engine, Job, JobId};
use crate::error::{Error, Result};
use crate::sync::lock;
use drive::{Pace, StopReason, Until};
pub(super) use endings::TIMEOUT_GRACE;
use inbox::{Inbox, QueuedJob};
use recorder::Recorder;
use state::{DriverState, INBOX, ON_WAIT_INTERVAL, VISIT};
pub use state::{EngineDriver, OnWait};

/// The outcome of driving a thread's own call until the engine is released.
pub enum DriveOutcome {
    /// The call is done; the source of a receive.
    Done(Option<usize>),
    /// The call continues; its completion is set at its end.
    UnderWay(Arc<Completion>),
}

impl EngineDriver {
    /// Runs `job` and returns when it is done on this rank. Returns the source of a receive.
    pub fn run(&self, job: Job, on_wait: OnWait<'_>) -> Result<Option<usize>> {
        let mut pace = Pace::default();
        match self.begin(job, &mut pace)? {
            DriveOutcome::Done(source) => Ok(source),
            DriveOutcome::UnderWay(completion) => {
                self.see_through(&completion, None, pace, on_wait)?;
                Ok(completion.source())
            }
        }
    }

    /// Runs a tiny call if nothing else is under way; returns false if the call must run as a job.
    #[inline]
    pub fn run_tiny(&self, job: &Job, on_wait: OnWait<'_>) -> Result<bool> {
        let mut pace = Pace::brief();
        match self.begin_tiny::<false>(job, &mut pace)? {
            None => Ok(false),
            Some(DriveOutcome::Done(_)) => Ok(true),
            Some(DriveOutcome::UnderWay(completion)) => {
                self.see_through(&completion, None, pace, on_wait)
            }
        }
    }

    /// Begins a tiny call, and spins for a few microseconds at most; `None` if the call must run as
    /// a job.
    #[inline]
    pub fn begin_promptly(&self, job: &Job) -> Result<Option<DriveOutcome>> {
        self.begin_tiny::<true>(job, &mut Pace::prompt())
    }

    /// Drives `job` as far as this thread may without releasing the engine. If another thread
    /// drives, leaves the job to that thread.
    fn begin(&self, job: Job, pace: &mut Pace) -> Result<DriveOutcome> {
        if self.attention.load(Ordering::Relaxed) == 0
            && let Some(mut state) = self.try_state()
            && state.has_room_for(job.collective)
        {
            return self.guarded(&mut state, |state| {
                if let Some(error) = state.error.clone().or_else(|| self.refusal(&job)) {
                    return Err(error);
                }
                let id = state.submit(job)?;
                self.drive_own(state, id, pace)
            });
        }
        let completion = Arc::new(Completion::default());
        self.enqueue(QueuedJob::waited_for(job, completion.clone()));
        Ok(DriveOutcome::UnderWay(completion))
    }

    /// Begins and drives a tiny call like `begin`; `None` if the call cannot begin at once.
    ///
    /// Calls that wait have code of their own, which the compiler moves to its one place: a call of
    /// code that is shared takes a twentieth longer.
    #[inline(always)]
    fn begin_tiny<const IS_PROMPT: bool>(
        &self,
        job: &Job,
        pace: &mut Pace,
    ) -> Result<Option<DriveOutcome>> {
        let Some(mut state) = self.try_state() else {
            return Ok(None);
        };
        // Pairs with the store in `announce`.
        if self.attention.load(Ordering::Acquire) != 0 || state.error.is_some() {
            return Ok(None);
        }
        self.guarded(&mut state, |state| match state.engine.begin_tiny(job) {
            Ok(Some(id)) => {
                state.show_begun(id, job);
                self.drive_own(state, id, pace).map(Some)
            }
            Ok(None) => Ok(None),
            Err(error) => Err(self.fail_to_begin(state, error)),
        })
    }

    /// Returns the error of a call that has not begun. If an earlier call did not match, that is
    /// the error of all ranks.
    #[cold]
    fn fail_to_begin(&self, state: &mut DriverState, error: Error) -> Error {
        match error.is_fatal() {
            true => self.fail(state, error),
            false => error,
        }
    }

    /// Begins a message, and makes the progress that needs no wait; `None` if the message cannot
    /// begin at once.
    fn begin_message(&self, job: &Job) -> Result<Option<DriveOutcome>> {
        let Some(mut state) = self.try_state() else {
            return Ok(None);
        };
        // Pairs with the store in `announce`.
        if self.attention.load(Ordering::Acquire) != 0
            || state.error.is_some()
            || !state.engine.is_idle()
            || self.refusal(job).is_some()
        {
            return Ok(None);
        }
        self.guarded(&mut state, |state| {
            let id = state.submit(job.clone())?;
            self.drive_own(state, id, &mut Pace::without_wait())
                .map(Some)
        })
    }

    /// Drives the thread's own call as far as possible without releasing the engine.
    #[inline(always)]
    fn drive_own(
        &self,
        state: &mut DriverState,
        id: JobId,
        pace: &mut Pace,
    ) -> Result<DriveOutcome> {
        let until = Until::job(id);
        if self.drive(state, &until, pace)? == StopReason::Reached {
            return Ok(DriveOutcome::Done(until.source()));
        }
        let completion = Arc::new(Completion::default());
        state.completions.insert(id, completion.clone());
        Ok(DriveOutcome::UnderWay(completion))
    }

    /// Waits until `completion` is set, driving if no other thread does; returns false if `timeout`
    /// passes first.
    pub fn wait(
        &self,
        completion: &Completion,
        timeout: Option<Duration>,
        on_wait: OnWait<'_>,
    ) -> Result<bool> {
        self.see_through(completion, timeout, Pace::default(), on_wait)
    }

    /// Waits until no call is under way on this rank.
    pub fn finish(&self, on_wait: OnWait<'_>) -> Result<()> {
        let idle = Arc::new(Completion::default());
        let is_idle = self.visit(|state| {
            let is_idle = state.error.is_some() || self.is_state_idle(state);
            if !is_idle {
                state.idle.push(idle.clone());
            }
            is_idle
        });
        match is_idle {
            true => Ok(()),
            false => self
                .see_through(&idle, None, Pace::default(), on_wait)
                .map(|_| ()),
        }
    }

    /// Shows all later calls on `board`.
    pub fn attach(&self, board: Board) {
        self.visit(|state| state.recorder = Some(Box::new(Recorder::new(board))));
    }

    /// Closes and drops the board.
    fn detach(&self) {
        if let Some(recorder) = self.visit(|state| state.recorder.take()) {
            recorder.board().close();
        }
    }

    /// Runs `f` on the engine between two attempts. If `f` changes registered buffers, no call that
    /// uses them is under way.
    pub fn with_engine<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        self.visit(|state| f(&mut state.engine))
    }

    /// Sets whether the next calls are the library's own; see [`Engine::set_preparing`].
    pub fn set_preparing(&self, is_preparing: bool) {
        self.visit(|state| state.engine.set_preparing(is_preparing));
    }

    /// Whether no call is under way; true after an error.
    pub fn is_idle(&self) -> bool {
        self.visit(|state| state.error.is_some() || self.is_state_idle(state))
    }

    /// Makes every later call fail with `error`, and those under way with `error` or the verdict.
    /// After the return, no call's buffers are touched.
    pub fn poison(&self, error: Error) {
        self.visit(|state| self.end(state, error));
    }

    /// Waits until `completion` is set, `timeout` has passed, or the callback has failed.
    fn see_through(
        &self,
        completion: &Completion,
        timeout: Option<Duration>,
        mut pace: Pace,
        on_wait: OnWait<'_>,
    ) -> Result<bool> {
        let begin = Instant::now();
        loop {
            if let Some(result) = completion.result() {
                return result.map(|()| true);
            }
            if std::mem::take(&mut pace.is_call_back_due) {
                self.call_back(on_wait)?;
                continue;
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            self.let_visitors_pass();
            if timeout.is_none()
                && let Some(mut state) = self.try_state()
            {
                let until = Until::Complete(completion);
                let driven = self.guarded(&mut state, |state| self.drive(state, &until, &mut pace));
                // The call may have ended before the communicator did, or with another error.
                if let Err(error) = driven {
                    return completion.result().unwrap_or(Err(error)).map(|()| true);
                }
                continue;
            }
            // Pairs with the load in `program_waits`.
            self.waiting.fetch_add(1, Ordering::Release);
            completion.wait(left.unwrap_or(ON_WAIT_INTERVAL).min(ON_WAIT_INTERVAL));
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            pace.is_call_back_due = true;
        }
    }

    /// Runs `f` on the state as soon as the driving thread releases it, between two attempts.
    fn visit<R>(&self, f: impl FnOnce(&mut DriverState) -> R) -> R {
        let turn = lock(&self.turn);
        // Pairs with the load in `attend`; the visitor's changes are passed under the locks.
        self.attention.fetch_or(VISIT, Ordering::Release);
        (self.waker)();
        let visited = self.caught(&mut lock(&self.state), f);
        // Cleared after the state is free, so that a driver that finds no flag finds no visitor.
        self.attention.fetch_and(!VISIT, Ordering::Release);
        drop(turn);
        visited.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Waits for visitors: they are quick, and take precedence over a driving thread.
    fn let_visitors_pass(&self) {
        // Pairs with the release in `visit`.
        if self.attention.load(Ordering::Acquire) & VISIT != 0 {
            drop(lock(&self.turn));
        }
    }

    fn enqueue(&self, handed: QueuedJob) {
        let mut inbox = lock(&self.inbox);
        inbox.push(handed);
        self.announce(inbox);
    }

    /// Tells the driving thread of new jobs in the inbox.
    fn announce(&self, inbox: MutexGuard<'_, Inbox>) {
        // Pairs with the load in `attend`; the jobs themselves are passed under the lock.
        self.attention.fetch_or(INBOX, Ordering::Release);
        drop(inbox);
        (self.waker)();
    }
}
