//! A communicator's source of its peers' health: the job's control plane, or the threads of a
//! process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::call::CallPosition;
use crate::control::claims::Claims;
use crate::control::standing::{RankProgress, Standing};
use crate::control::{Health, Session};
use crate::error::Error;
use crate::sync::lock;
use crate::transport::Waker;

/// The health of a communicator's ranks.
pub trait Watch: Send + Sync {
    /// Whether there is a verdict: one load, made on every fruitless attempt.
    fn is_faulty(&self) -> bool;

    /// Returns the verdict.
    fn fault(&self) -> Option<Error>;

    /// Reports a suspicion to all ranks, waits up to `grace` for the verdict, and returns it.
    /// Without a verdict by then, the suspicion is the verdict on this rank.
    fn report_fault(&self, suspicion: Error, grace: Duration) -> Error;

    /// Returns how long a rank that suspects a crash waits for the verdict, which names the rank
    /// that really crashed.
    fn crash_grace(&self) -> Duration;

    /// Whether some rank has left without an error.
    fn anyone_left(&self) -> bool;

    /// Whether `rank` has left without an error.
    fn has_left(&self, rank: usize) -> bool;

    /// Returns the record of this rank's progress.
    fn progress(&self) -> &RankProgress;

    /// Returns the progress of all ranks; `None` for ranks that do not answer within `timeout` or
    /// have left.
    fn standing(&self, timeout: Duration) -> Vec<Option<Standing>>;

    /// Announces that this rank has waited at `position` for a while. If another rank waits in a
    /// different call instead, the mismatch ends the communicator.
    fn claim(&self, position: CallPosition);

    /// Tells the other ranks that this rank leaves without an error.
    fn leave(&self);
}

/// The watch of ranks that are processes, by the control plane.
#[derive(Clone)]
pub struct SessionWatch {
    pub session: Session,
    pub health: Arc<Health>,
}

impl Watch for SessionWatch {
    fn is_faulty(&self) -> bool {
        self.health.is_faulty()
    }

    fn fault(&self) -> Option<Error> {
        self.health.fault()
    }

    fn report_fault(&self, suspicion: Error, grace: Duration) -> Error {
        self.health.report_fault(suspicion, grace)
    }

    fn crash_grace(&self) -> Duration {
        self.session.silence().verdict_grace()
    }

    fn anyone_left(&self) -> bool {
        self.health.anyone_left()
    }

    fn has_left(&self, rank: usize) -> bool {
        self.health.has_left(rank)
    }

    fn progress(&self) -> &RankProgress {
        self.health.progress()
    }

    fn standing(&self, timeout: Duration) -> Vec<Option<Standing>> {
        self.health.standing(timeout)
    }

    fn claim(&self, position: CallPosition) {
        self.health.claim(position);
    }

    fn leave(&self) {
        self.session.close(self.health.communicator);
    }
}

/// The watch of ranks that are threads of one process.
#[derive(Default)]
pub struct ThreadWatch {
    fault: OnceLock<Error>,
    left_count: AtomicU32,
    left: Mutex<Vec<usize>>,
    /// The progress of each rank.
    ranks: Mutex<Vec<Arc<RankProgress>>>,
    wakers: Mutex<Vec<Waker>>,
    claims: Mutex<Claims>,
}

impl ThreadWatch {
    /// Returns the view of the next rank; `waker` is called when there is a verdict or a rank
    /// leaves.
    pub fn register(self: &Arc<ThreadWatch>, waker: Waker) -> ThreadRank {
        lock(&self.wakers).push(waker);
        let mut ranks = lock(&self.ranks);
        let progress = Arc::<RankProgress>::default();
        ranks.push(progress.clone());
        ThreadRank {
            watch: self.clone(),
            rank: ranks.len() - 1,
            progress,
        }
    }

    fn wake_all(&self) {
        lock(&self.wakers).iter().for_each(|waker| waker());
    }
}

/// One rank's view of its [`ThreadWatch`].
pub struct ThreadRank {
    /// The watch that all ranks share.
    watch: Arc<ThreadWatch>,
    rank: usize,
    progress: Arc<RankProgress>,
}

impl Watch for ThreadRank {
    fn is_faulty(&self) -> bool {
        self.watch.fault.get().is_some()
    }

    fn fault(&self) -> Option<Error> {
        self.watch.fault.get().cloned()
    }

    fn report_fault(&self, suspicion: Error, _grace: Duration) -> Error {
        let verdict = self.watch.fault.get_or_init(|| suspicion).clone();
        self.watch.wake_all();
        verdict
    }

    fn crash_grace(&self) -> Duration {
        // Threads share the verdict, and the first suspicion is the verdict.
        Duration::ZERO
    }

    fn anyone_left(&self) -> bool {
        // Pairs with the Release increment in `leave`.
        self.watch.left_count.load(Ordering::Acquire) > 0
    }

    fn has_left(&self, rank: usize) -> bool {
        lock(&self.watch.left).contains(&rank)
    }

    fn progress(&self) -> &RankProgress {
        &self.progress
    }

    fn standing(&self, _timeout: Duration) -> Vec<Option<Standing>> {
        let ranks = lock(&self.watch.ranks);
        let standing = |rank: usize| (!self.has_left(rank)).then(|| ranks[rank].standing());
        (0..ranks.len()).map(standing).collect()
    }

    fn claim(&self, position: CallPosition) {
        let mut claims = lock(&self.watch.claims);
        let error = claims.compare(self.rank as u32, position);
        drop(claims);
        if let Some(error) = error {
            self.report_fault(error, Duration::ZERO);
        }
    }

    fn leave(&self) {
        lock(&self.watch.left).push(self.rank);
        // Pairs with the Acquire load in `anyone_left`.
        self.watch.left_count.fetch_add(1, Ordering::Release);
        self.watch.wake_all();
    }
}
