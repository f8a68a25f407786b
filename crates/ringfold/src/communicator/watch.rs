//! What a communicator asks about its peers' health: of the job's control plane, or of the threads
//! of a process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::call::Position;
use crate::control::claims::Claims;
use crate::control::standing::{Progress, Standing};
use crate::control::{Health, Session};
use crate::error::Error;
use crate::sync::lock;
use crate::transport::Waker;

/// The health of a communicator's ranks.
pub trait Watch: Send + Sync {
    /// Whether a verdict has fallen: one load, asked on every fruitless attempt.
    fn is_faulty(&self) -> bool;

    /// The verdict.
    fn fault(&self) -> Option<Error>;

    /// Reports a suspicion to all ranks, waits up to `grace` for the verdict, and gives it; at the
    /// latest then the suspicion is the verdict on this rank.
    fn report_fault(&self, suspicion: Error, grace: Duration) -> Error;

    /// How long a rank that suspects a crash waits for the verdict that names the rank that really
    /// crashed.
    fn crash_grace(&self) -> Duration;

    /// Whether some rank has left in good order.
    fn anyone_left(&self) -> bool;

    /// Whether this rank has.
    fn has_left(&self, rank: usize) -> bool;

    /// Where this rank notes how far it is.
    fn progress(&self) -> &Progress;

    /// How far all ranks are; nothing from those that do not answer within `timeout` or have left.
    fn standing(&self, timeout: Duration) -> Vec<Option<Standing>>;

    /// Says that this rank has waited at `position` for a while. If another one waits in a
    /// different call instead, that ends the communicator.
    fn claim(&self, position: Position);

    /// Tells the others that this rank leaves in good order.
    fn leave(&self);
}

/// The watch of ranks that are processes: what the control plane knows.
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

    fn progress(&self) -> &Progress {
        self.health.progress()
    }

    fn standing(&self, timeout: Duration) -> Vec<Option<Standing>> {
        self.health.standing(timeout)
    }

    fn claim(&self, position: Position) {
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
    /// How far each rank is.
    ranks: Mutex<Vec<Arc<Progress>>>,
    wakers: Mutex<Vec<Waker>>,
    claims: Mutex<Claims>,
}

impl ThreadWatch {
    /// The view of the next rank; `waker` is called when a verdict falls or a rank leaves.
    pub fn register(self: &Arc<ThreadWatch>, waker: Waker) -> ThreadRank {
        lock(&self.wakers).push(waker);
        let mut ranks = lock(&self.ranks);
        let progress = Arc::<Progress>::default();
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

/// One thread's view of its [`ThreadWatch`].
pub struct ThreadRank {
    /// Shared by all ranks.
    watch: Arc<ThreadWatch>,
    rank: usize,
    progress: Arc<Progress>,
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
        // Threads have one word for the verdict, and the first suspicion is it.
        Duration::ZERO
    }

    fn anyone_left(&self) -> bool {
        // Pairs with the Release increment in `leave`.
        self.watch.left_count.load(Ordering::Acquire) > 0
    }

    fn has_left(&self, rank: usize) -> bool {
        lock(&self.watch.left).contains(&rank)
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn standing(&self, _timeout: Duration) -> Vec<Option<Standing>> {
        let ranks = lock(&self.watch.ranks);
        let standing = |rank: usize| (!self.has_left(rank)).then(|| ranks[rank].standing());
        (0..ranks.len()).map(standing).collect()
    }

    fn claim(&self, position: Position) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_names_its_ranks_by_the_communicators_own_numbers() {
        let calls = ["this".to_string(), "that".to_string()];
        let error = Error::Mismatch {
            ranks: [0, 1],
            calls: Box::new(calls),
            site: None,
        };
        assert_eq!(
            error.renumbered(&[2, 0, 1]).to_string(),
            "ranks 2 and 0 are in different calls: rank 2 in this, rank 0 in that"
        );
    }
}
