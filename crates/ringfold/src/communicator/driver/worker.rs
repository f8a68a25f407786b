//! The worker thread, which drives while jobs are left and no other thread does.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;

use super::DriveOutcome;
use super::drive::{Pace, StopReason, Until};
use super::inbox::{Inbox, QueuedJob};
use super::state::{DriverState, EngineDriver, INBOX};
use crate::communicator::completion::Completion;
use crate::engine::Job;
use crate::error::{Error, Result};
use crate::sync::lock;
use crate::threads;

impl EngineDriver {
    /// Starts `jobs` on the worker, in this order: all of them, or none if the worker cannot be
    /// created. A job that was refused must not run later, on memory that is the caller's again.
    pub fn start(self: &Arc<EngineDriver>, jobs: Vec<Job>) -> Result<Vec<Arc<Completion>>> {
        let mut inbox = lock(&self.inbox);
        self.employ(&mut inbox)?;
        if !inbox.has_room_for(jobs.len()) {
            drop(inbox);
            let reason = "more than a million calls are under way, and the program waits for none";
            let verdict = self.abort_all(reason.into());
            self.poison(verdict.clone());
            return Err(verdict);
        }
        let take_on = |job| {
            let completion = Arc::new(Completion::default());
            inbox.push(QueuedJob::started(job, completion.clone()));
            completion
        };
        let completions = jobs.into_iter().map(take_on).collect();
        self.call_worker(&mut inbox);
        self.announce(inbox);
        Ok(completions)
    }

    /// Starts a tiny call or a message in the caller's thread, which spins for a few microseconds
    /// at most, and leaves the rest to the worker; `None` if the call must run as a queued job.
    pub fn start_here(self: &Arc<EngineDriver>, job: &Job) -> Result<Option<Arc<Completion>>> {
        self.employ(&mut lock(&self.inbox))?;
        let begun = match job.is_tiny() {
            true => self.begin_tiny::<true>(job, &mut Pace::prompt()),
            false => self.begin_message(job),
        };
        let begun = match begun {
            Ok(begun) => begun,
            // The handle has the error, as if the worker had met it.
            Err(error) if self.visit(|state| state.error.is_some()) => {
                return Ok(Some(Arc::new(Completion::ended(Err(error), None))));
            }
            Err(refusal) => return Err(refusal),
        };
        Ok(begun.map(|begun| match begun {
            DriveOutcome::Done(source) => Arc::new(Completion::ended(Ok(()), source)),
            DriveOutcome::UnderWay(completion) => {
                self.call_worker(&mut lock(&self.inbox));
                completion
            }
        }))
    }

    /// Creates the worker, unless it exists.
    fn employ(self: &Arc<EngineDriver>, inbox: &mut Inbox) -> Result<()> {
        if inbox.is_stopped {
            return Err(Error::Closed);
        }
        if inbox.worker.is_none() {
            let driver = self.clone();
            inbox.worker = Some(threads::start("ringfold worker", move || driver.work())?);
        }
        Ok(())
    }

    /// Makes the worker drive; costs a system call only if the worker sleeps.
    fn call_worker(&self, inbox: &mut Inbox) {
        inbox.has_work = true;
        if std::mem::take(&mut inbox.is_worker_asleep) {
            self.for_worker.notify_one();
        }
    }

    /// Ends all calls and frees their resources, even if the communicator or a handle of it is
    /// still held. Later calls fail with `Closed`.
    pub fn dissolve(&self) {
        self.stop();
        self.detach();
        let dissolved = self.visit(|state| {
            if self.is_state_idle(state) {
                state.error.get_or_insert(Error::Closed);
            } else {
                self.end(state, Error::Closed);
            }
            state.engine.dissolve()
        });
        // Dropped under no lock: over RDMA this may take a moment.
        drop(dissolved);
        drop(lock(&self.notifier).take());
    }

    /// Stops the worker. No job is started afterwards.
    fn stop(&self) {
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
            // A panic was reported where it was caught.
            let _ = worker.join();
        }
    }

    /// Runs the main loop of the worker.
    fn work(&self) {
        loop {
            let mut inbox = lock(&self.inbox);
            while !inbox.has_work && !inbox.is_stopped {
                inbox.is_worker_asleep = true;
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
            let mut pace = Pace::without_callback();
            // The threads that wait for the jobs get the error; the worker has no caller.
            while let Ok(StopReason::Asked) = self.drive_to_idle(&mut pace) {}
        }
    }

    fn drive_to_idle(&self, pace: &mut Pace) -> Result<StopReason> {
        self.let_visitors_pass();
        let mut state = lock(&self.state);
        self.guarded(&mut state, |state| self.drive(state, &Until::Idle, pace))
    }

    /// Submits the jobs of other threads, as far as there is room.
    pub(super) fn drain(&self, state: &mut DriverState) {
        let mut took = false;
        loop {
            let mut inbox = lock(&self.inbox);
            let can_take = |kind| state.error.is_some() || state.has_room_for(kind);
            let Some(handed) = inbox.next(can_take) else {
                if inbox.is_empty() {
                    // Cleared under the lock of the inbox, which `announce` holds when it sets the
                    // flag.
                    self.attention.fetch_and(!INBOX, Ordering::Relaxed);
                }
                // The worker drives the jobs that outlast this thread's driving.
                self.call_worker(&mut inbox);
                break;
            };
            drop(inbox);
            self.take_on(state, handed);
            took = true;
        }
        if took {
            self.note(state);
        }
    }

    fn take_on(&self, state: &mut DriverState, handed: QueuedJob) {
        let QueuedJob {
            job,
            completion,
            is_started,
        } = handed;
        if let Some(error) = state.error.clone().or_else(|| self.refusal(&job)) {
            completion.complete(Err(error));
            return;
        }
        match state.submit(job) {
            Ok(id) => {
                state.completions.insert(id, completion);
            }
            Err(error) => {
                completion.complete(Err(error.clone()));
                if is_started {
                    let verdict = self.abort_all(format!("a started call was refused: {error}"));
                    self.end(state, verdict);
                }
            }
        }
    }
}
