//! The thread that runs the engine, and how it waits.
//!
//! One thread at a time *drives*: it holds the engine, asks it to progress and waits by
//! [`Patience`](crate::wait::Patience) in between. A blocking call drives until its own job is
//! done. Jobs that come meanwhile from other threads, and those started asynchronously, go through
//! the inbox; a worker thread, made on first use, drives while such jobs are left and no other
//! thread does.
//!
//! A thread that drives lets go of the engine between two attempts when another thread asks for it
//! (a *visit*: figures are read, the communicator is ended), and when its own callback is due. So a
//! callback, which may be a signal handler, runs under no lock of the driver's and may use the
//! communicator. From then on the thread's call has a [`Completion`], because another thread may
//! drive it to its end.
//!
//! # Invariants
//!
//! * Every wait sees the verdict of the watch, the deadline of its job, and a departed peer.
//! * A verdict is looked at only after a fruitless attempt, so a call whose data has arrived
//!   succeeds; and between chunks of local work, which succeeds whatever befell the peers.
//! * After a fatal error nothing touches a caller's buffer again: the engine is not asked to
//!   progress any more. A wait that is interrupted returns after that.
//! * No code but the library's runs under its locks.

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
use drive::{Pace, Step, Until};
pub(super) use endings::TIMEOUT_GRACE;
use inbox::{Handed, Inbox};
use recorder::Recorder;
pub use state::{Driver, OnWait};
use state::{INBOX, ON_WAIT_INTERVAL, State, VISIT};

/// How far a thread came with its own call before it let go of the engine.
enum Run {
    /// It is done; the source, if it was a receive.
    Done(Option<usize>),
    /// It goes on, and this is completed at its end.
    UnderWay(Arc<Completion>),
}

impl Driver {
    /// Runs `job` and returns when it is done on this rank. Gives the source, where it was a
    /// receive.
    pub fn run(&self, job: Job, on_wait: OnWait<'_>) -> Result<Option<usize>> {
        let mut pace = Pace::default();
        match self.begin(job, &mut pace)? {
            Run::Done(source) => Ok(source),
            Run::UnderWay(completion) => {
                self.see_through(&completion, None, pace, on_wait)?;
                Ok(completion.source())
            }
        }
    }

    /// Runs a tiny call, if nothing else is under way; false when it is to be run as a job.
    #[inline]
    pub fn run_tiny(&self, job: &Job, on_wait: OnWait<'_>) -> Result<bool> {
        let mut pace = Pace::brief();
        match self.begin_tiny(job, &mut pace)? {
            None => Ok(false),
            Some(Run::Done(_)) => Ok(true),
            Some(Run::UnderWay(completion)) => self.see_through(&completion, None, pace, on_wait),
        }
    }

    /// Drives `job` as far as this thread may without letting go of the engine; leaves it to the
    /// thread that drives, where there is one.
    fn begin(&self, job: Job, pace: &mut Pace) -> Result<Run> {
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
        self.enqueue(Handed::waited_for(job, completion.clone()));
        Ok(Run::UnderWay(completion))
    }

    /// The same for a tiny call; `None` if it cannot begin at once.
    #[inline(always)]
    fn begin_tiny(&self, job: &Job, pace: &mut Pace) -> Result<Option<Run>> {
        let Some(mut state) = self.try_state() else {
            return Ok(None);
        };
        // Pairs with the store in `enqueue`.
        if self.attention.load(Ordering::Acquire) != 0 || state.error.is_some() {
            return Ok(None);
        }
        self.guarded(&mut state, |state| match state.engine.begin_tiny(job)? {
            Some(id) => {
                state.show_begun(id, job);
                self.drive_own(state, id, pace).map(Some)
            }
            None => Ok(None),
        })
    }

    /// Drives the thread's own call as far as it may without letting go of the engine.
    #[inline(always)]
    fn drive_own(&self, state: &mut State, id: JobId, pace: &mut Pace) -> Result<Run> {
        let until = Until::job(id);
        if self.drive(state, &until, pace)? == Step::Reached {
            return Ok(Run::Done(until.source()));
        }
        let completion = Arc::new(Completion::default());
        state.completions.insert(id, completion.clone());
        Ok(Run::UnderWay(completion))
    }

    /// Waits until `completion` is reached, driving if no other thread does; false when `timeout`
    /// passes first.
    pub fn wait(
        &self,
        completion: &Completion,
        timeout: Option<Duration>,
        on_wait: OnWait<'_>,
    ) -> Result<bool> {
        self.see_through(completion, timeout, Pace::default(), on_wait)
    }

    /// Waits until nothing is under way on this rank.
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

    /// Shows the calls on `board` from now on.
    pub fn attach(&self, board: Board) {
        self.visit(|state| state.recorder = Some(Box::new(Recorder::new(board))));
    }

    /// Shows nothing any more: the board goes.
    fn detach(&self) {
        if let Some(recorder) = self.visit(|state| state.recorder.take()) {
            recorder.board().close();
        }
    }

    /// Has `f` use the engine between two attempts. If it changes registered buffers, no call that
    /// uses these is under way.
    pub fn with_engine<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        self.visit(|state| f(&mut state.engine))
    }

    /// Whether the next calls are the library's own; see [`Engine::set_preparing`].
    pub fn set_preparing(&self, is_preparing: bool) {
        self.visit(|state| state.engine.set_preparing(is_preparing));
    }

    /// Whether no call is under way. After an error none is.
    pub fn is_idle(&self) -> bool {
        self.visit(|state| state.error.is_some() || self.is_state_idle(state))
    }

    /// Has every later call fail with `error`, and those under way with it or the verdict. When
    /// this returns, none of their buffers is touched any more.
    pub fn poison(&self, error: Error) {
        self.visit(|state| self.end(state, error));
    }

    /// Has `completion` reached, or the time passed, or the callback refuse, whichever is first.
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
                // The call may have ended before the communicator did, or by another error.
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

    /// Has `f` look at the state or change it as soon as the thread that drives lets go of it:
    /// between two attempts.
    fn visit<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let turn = lock(&self.turn);
        // Pairs with the load in `attend`: what the visitor does is passed under the locks.
        self.attention.fetch_or(VISIT, Ordering::Release);
        (self.waker)();
        let visited = self.caught(&mut lock(&self.state), f);
        // After the state is free again, so that a driver that finds no flag finds no visitor.
        self.attention.fetch_and(!VISIT, Ordering::Release);
        drop(turn);
        visited.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Waits for visitors, which are quick: they go before a thread that drives.
    fn let_visitors_pass(&self) {
        // Pairs with the release in `visit`.
        if self.attention.load(Ordering::Acquire) & VISIT != 0 {
            drop(lock(&self.turn));
        }
    }

    fn enqueue(&self, handed: Handed) {
        let mut inbox = lock(&self.inbox);
        inbox.push(handed);
        self.announce(inbox);
    }

    /// Tells the thread that drives of new jobs in the inbox.
    fn announce(&self, inbox: MutexGuard<'_, Inbox>) {
        // Pairs with the load in `attend`; the jobs themselves are passed under the lock.
        self.attention.fetch_or(INBOX, Ordering::Release);
        drop(inbox);
        (self.waker)();
    }
}
