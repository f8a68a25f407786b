//! The thread that drives while jobs are left and no other thread does.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;

use super::drive::{Pace, Step, Until};
use super::state::{Driver, INBOX, State};
use crate::communicator::completion::Completion;
use crate::engine::Job;
use crate::error::Result;
use crate::sync::lock;
use crate::threads;

impl Driver {
    /// Takes `jobs` on, in this order; the worker carries them out. All of them, or none where
    /// there is no worker to be had: a job that was refused must not run later, on memory that is
    /// the caller's again.
    pub fn start(self: &Arc<Driver>, jobs: Vec<Job>) -> Result<Vec<Arc<Completion>>> {
        self.employ()?;
        let take_on = |job| {
            let completion = Arc::new(Completion::default());
            self.enqueue(job, completion.clone());
            completion
        };
        let completions = jobs.into_iter().map(take_on).collect();
        lock(&self.inbox).has_work = true;
        self.for_worker.notify_one();
        Ok(completions)
    }

    /// Makes the worker, unless it is there.
    fn employ(self: &Arc<Driver>) -> Result<()> {
        let mut inbox = lock(&self.inbox);
        if inbox.worker.is_none() {
            let driver = self.clone();
            inbox.worker = Some(threads::start("ringfold worker", move || driver.work())?);
        }
        Ok(())
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
            // A panic was reported where it was caught.
            let _ = worker.join();
        }
        // A thread that still drives ends the helper threads with the engine.
        if let Some(mut state) = self.try_state() {
            state.engine.end_threads();
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
            let mut pace = Pace::without_callback();
            // The threads that wait for the jobs get the error; the worker has no caller.
            while let Ok(Step::Asked) = self.drive_to_idle(&mut pace) {}
        }
    }

    fn drive_to_idle(&self, pace: &mut Pace) -> Result<Step> {
        self.let_visitors_pass();
        let mut state = lock(&self.state);
        self.guarded(&mut state, |state| self.drive(state, &Until::Idle, pace))
    }

    /// Takes over what other threads want done.
    pub(super) fn drain(&self, state: &mut State) {
        let mut inbox = lock(&self.inbox);
        self.attention.fetch_and(!INBOX, Ordering::Relaxed);
        while let Some((job, completion)) = inbox.jobs.pop_front() {
            if let Some(error) = state.error.clone().or_else(|| self.refusal(&job)) {
                completion.complete(Err(error));
                continue;
            }
            match state.submit(job) {
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
}
