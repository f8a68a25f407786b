//! The state that the driving threads share, and its locks.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::inbox::Inbox;
use super::recorder::{JobShown, Recorder};
use crate::communicator::completion::Completion;
use crate::communicator::notifier::Notifier;
use crate::communicator::waiting::CallWait;
use crate::communicator::watch::Watch;
use crate::engine::{Engine, Job, JobId};
use crate::error::{Error, Result};
use crate::sync::lock;
use crate::transport::{Time, Waker};
use crate::types::Collective;
use crate::wait::{Patience, Waiter};

/// Interval at which a waiting thread calls back (for signals); a sleep may add
/// [`BLOCK_MAX`](crate::wait::BLOCK_MAX).
pub const ON_WAIT_INTERVAL: Duration = Duration::from_millis(20);

/// The bit of [`EngineDriver::attention`] that is set if the inbox has jobs.
pub const INBOX: u32 = 1;

/// The bit of [`EngineDriver::attention`] that is set if a thread waits for the state.
pub const VISIT: u32 = 2;

/// The callback of a waiting thread, which may use the communicator. Its error ends the wait and
/// the communicator.
pub type OnWait<'a> = &'a mut dyn FnMut() -> Result<()>;

/// A communicator's engine and the threads that drive it.
pub struct EngineDriver {
    pub(super) rank: usize,
    pub(super) state: Mutex<DriverState>,
    pub(super) inbox: Mutex<Inbox>,
    /// Requests to the driving thread: [`INBOX`], [`VISIT`]. Costs one load if there are none.
    pub(super) attention: AtomicU32,
    /// Number of the program's threads that wait for a call while another thread drives.
    pub(super) waiting: AtomicU32,
    /// The lock that a visiting thread holds.
    pub(super) turn: Mutex<()>,
    /// Wakes the worker.
    pub(super) for_worker: Condvar,
    pub(super) watch: Box<dyn Watch>,
    pub(super) waker: Waker,
    /// The notifier, held from the first use until the end, so that not every call starts a thread.
    pub(super) notifier: Mutex<Option<Arc<Notifier>>>,
    pub(super) origin: Instant,
}

pub struct DriverState {
    pub(super) engine: Engine,
    /// Completions by job, to be set when the job is done. The job of a driving thread is not
    /// listed until that thread releases the engine.
    pub(super) completions: HashMap<JobId, Arc<Completion>>,
    /// Completions to be set when no job is under way.
    pub(super) idle: Vec<Arc<Completion>>,
    /// The error that ended the communicator.
    pub(super) error: Option<Error>,
    pub(super) waiter: Waiter,
    /// Whether the status that other ranks can ask for describes a wait.
    pub(super) is_described: bool,
    /// The call in which this rank waits, and since when.
    pub(super) waiting: Option<CallWait>,
    /// The recorder that shows calls to other processes, if there is a board.
    pub(super) recorder: Option<Box<Recorder>>,
}

impl EngineDriver {
    /// Creates a driver of `engine`.
    pub fn new(
        mut engine: Engine,
        rank: usize,
        watch: Box<dyn Watch>,
        patience: Patience,
    ) -> EngineDriver {
        let waker = engine.transport().waker();
        EngineDriver {
            rank,
            state: Mutex::new(DriverState {
                engine,
                completions: HashMap::new(),
                idle: Vec::new(),
                error: None,
                waiter: Waiter::new(patience),
                is_described: false,
                waiting: None,
                recorder: None,
            }),
            inbox: Mutex::new(Inbox::default()),
            attention: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            turn: Mutex::new(()),
            for_worker: Condvar::new(),
            watch,
            waker,
            notifier: Mutex::new(None),
            origin: Instant::now(),
        }
    }

    /// Returns the watch over the peers' health.
    pub fn watch(&self) -> &dyn Watch {
        self.watch.as_ref()
    }

    /// Returns the notifier, which runs the callbacks of completed calls.
    pub fn notifier(&self) -> Result<Arc<Notifier>> {
        let mut held = lock(&self.notifier);
        if let Some(notifier) = &*held {
            return Ok(notifier.clone());
        }
        Ok(held.insert(Notifier::shared()?).clone())
    }

    #[inline(always)]
    pub(super) fn try_state(&self) -> Option<MutexGuard<'_, DriverState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            // The thread that panicked ended the communicator before it released the state.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() * 1000)
    }
}

impl DriverState {
    /// Whether the engine has room for a call of this kind.
    pub(super) fn has_room_for(&self, collective: Collective) -> bool {
        match collective.is_message() {
            true => self.engine.has_room_for_messages(),
            false => self.engine.has_room_for_collectives(),
        }
    }

    /// Submits a job, and shows it.
    pub(super) fn submit(&mut self, job: Job) -> Result<JobId> {
        let Some(recorder) = &mut self.recorder else {
            return self.engine.submit(job);
        };
        let shown = JobShown::of(&job);
        let id = self.engine.submit(job)?;
        recorder.begin(id, &shown, self.engine.sequence());
        Ok(id)
    }

    /// Shows a tiny call that has begun.
    #[inline]
    pub(super) fn show_begun(&mut self, id: JobId, job: &Job) {
        if let Some(recorder) = &mut self.recorder {
            let kinds = self.engine.tiny_kinds_prepared();
            recorder.begin_tiny(id, job, kinds, self.engine.sequence());
        }
    }

    /// Shows that the driving thread's tiny call is done.
    #[inline]
    pub(super) fn show_done(&mut self, id: JobId) {
        if let Some(recorder) = &mut self.recorder {
            let finished = self.engine.collectives_finished();
            recorder.end_tiny(id, self.engine.lateness(), finished);
        }
    }

    /// Shows the counts of the calls that have ended.
    #[inline]
    pub(super) fn settle(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            let finished = self.engine.collectives_finished();
            recorder.settle(self.engine.lateness(), finished);
        }
    }
}
