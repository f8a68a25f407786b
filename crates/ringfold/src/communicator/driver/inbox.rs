//! The jobs that wait for the driving thread.
//!
//! Collectives and messages have separate queues, because messages do not wait for collectives: a
//! collective may have to wait here until the engine has room, while a rank needs a message to
//! continue.
//!
//! # Invariants
//!
//! * The engine takes jobs of one kind in the order in which they were enqueued.
//! * A started job that the engine refuses ends the communicator: its caller has counted the call,
//!   so this rank's later calls would meet other calls of the peers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use crate::communicator::completion::Completion;
use crate::engine::Job;
use crate::types::Collective;

/// Maximum number of jobs that wait for the engine: some 400 MB. A program that has started this
/// many jobs waits for none of them.
const HANDED_MAX: usize = 1 << 20;

/// Jobs for the driving thread, and the worker that drives them if no other thread does.
#[derive(Default)]
pub struct Inbox {
    collectives: VecDeque<QueuedJob>,
    messages: VecDeque<QueuedJob>,
    pub(super) worker: Option<thread::JoinHandle<()>>,
    /// Whether the worker has jobs to drive.
    pub(super) has_work: bool,
    /// Whether the worker waits to be notified.
    pub(super) is_worker_asleep: bool,
    pub(super) is_stopped: bool,
}

/// A job for the driving thread.
pub struct QueuedJob {
    pub(super) job: Job,
    pub(super) completion: Arc<Completion>,
    /// Whether the caller has a handle of the call, instead of waiting for its result.
    pub(super) is_started: bool,
}

impl QueuedJob {
    /// Returns a job whose caller waits in the call.
    pub fn waited_for(job: Job, completion: Arc<Completion>) -> QueuedJob {
        QueuedJob {
            job,
            completion,
            is_started: false,
        }
    }

    /// Returns a job whose caller gets a handle.
    pub fn started(job: Job, completion: Arc<Completion>) -> QueuedJob {
        QueuedJob {
            is_started: true,
            ..QueuedJob::waited_for(job, completion)
        }
    }
}

impl Inbox {
    /// Adds a job.
    pub fn push(&mut self, handed: QueuedJob) {
        let jobs = match handed.job.collective.is_message() {
            true => &mut self.messages,
            false => &mut self.collectives,
        };
        jobs.push_back(handed);
    }

    /// Whether there is room for `more` jobs.
    pub fn has_room_for(&self, more: usize) -> bool {
        self.collectives.len() + self.messages.len() + more <= HANDED_MAX
    }

    /// Drops all jobs; returns their completions.
    pub fn cancel(&mut self) -> impl Iterator<Item = Arc<Completion>> {
        let jobs = self.messages.drain(..).chain(self.collectives.drain(..));
        jobs.map(|handed| handed.completion)
    }

    /// Whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.collectives.is_empty() && self.messages.is_empty()
    }

    /// Removes and returns the next job of a kind that the engine can take, according to
    /// `can_take`.
    pub fn next(&mut self, can_take: impl Fn(Collective) -> bool) -> Option<QueuedJob> {
        match can_take(Collective::Send).then(|| self.messages.pop_front()) {
            Some(Some(message)) => Some(message),
            _ if can_take(Collective::Barrier) => self.collectives.pop_front(),
            _ => None,
        }
    }
}
