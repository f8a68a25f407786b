//! The health of one communicator, as a rank knows it.
//!
//! The data path polls [`Health::is_faulty`], one atomic load. Everything else is control path. The
//! first verdict is final, and the same on all ranks, because the rendezvous server chooses it. A
//! rank that cannot reach the server uses its own suspicion as its verdict.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::connection::{ANSWER, ControlConnection, Reach};
use super::fault::Fault;
use super::frame::Frame;
use super::poll::remaining;
use super::standing::{INQUIRY, RankProgress, Standing};
use crate::call::CallPosition;
use crate::error::{Error, LEFT, Result};
use crate::sync::lock;
use crate::transport::Waker;
use crate::wait::SPAN_MAX;

/// Interval at which a rank that waits for a verdict checks whether the server can still send one.
const LOOK: Duration = Duration::from_millis(50);
/// Time limit for the verdict when a rank gives up while it joins: the verdict arrives at once
/// unless rank 0 is frozen.
const GIVING_UP: Duration = Duration::from_millis(500);
/// Maximum duration of a timeout's inquiry, including the messages.
const INQUIRY_GRACE: Duration = Duration::from_millis(2 * INQUIRY.as_millis() as u64);

/// The communicators that this process has open, by number.
#[derive(Debug, Default)]
pub(super) struct OpenCommunicators(Mutex<HashMap<u64, Arc<Health>>>);

impl OpenCommunicators {
    /// Adds a communicator; fails if its number is taken.
    pub fn add(&self, communicator: u64, health: &Arc<Health>) -> Result<()> {
        match lock(&self.0).entry(communicator) {
            Entry::Vacant(entry) => {
                entry.insert(health.clone());
                Ok(())
            }
            Entry::Occupied(_) => Err(Error::InvalidArgument(format!(
                "communicator {communicator:x} is open already"
            ))),
        }
    }

    /// Removes a communicator; returns whether it was open.
    pub fn remove(&self, communicator: u64) -> bool {
        lock(&self.0).remove(&communicator).is_some()
    }

    pub fn get(&self, communicator: u64) -> Option<Arc<Health>> {
        lock(&self.0).get(&communicator).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Health>> {
        lock(&self.0).values().cloned().collect()
    }
}

/// The health of one communicator, as this rank knows it.
pub struct Health {
    pub(crate) communicator: u64,
    /// The world rank of each rank.
    world_ranks: Vec<u32>,
    /// This rank's number in the communicator.
    me: usize,
    /// The abort word: 0, or 1 once there is a verdict. Stored after the verdict itself.
    word: AtomicU32,
    verdict: Mutex<Option<Error>>,
    decided: Condvar,
    left: Vec<AtomicBool>,
    /// Number of flags set in `left`, so that a check for any is one load.
    left_count: AtomicU32,
    progress: RankProgress,
    waker: Waker,
    connection: Arc<ControlConnection>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health")
            .field("communicator", &self.communicator)
            .field("world_ranks", &self.world_ranks)
            .field("fault", &self.fault())
            .finish()
    }
}

impl Health {
    pub(super) fn new(
        communicator: u64,
        world_ranks: Vec<u32>,
        me: usize,
        waker: Waker,
        connection: Arc<ControlConnection>,
    ) -> Health {
        let left = world_ranks.iter().map(|_| AtomicBool::new(false)).collect();
        Health {
            communicator,
            world_ranks,
            me,
            word: AtomicU32::new(0),
            verdict: Mutex::new(None),
            decided: Condvar::new(),
            left,
            left_count: AtomicU32::new(0),
            progress: RankProgress::default(),
            waker,
            connection,
        }
    }

    /// Whether there is a verdict; reads the abort word.
    pub fn is_faulty(&self) -> bool {
        // Pairs with the Release store in `pronounce`: a reader of the word finds the verdict.
        self.word.load(Ordering::Acquire) != 0
    }

    /// Returns the verdict, with ranks of this communicator.
    pub fn fault(&self) -> Option<Error> {
        if !self.is_faulty() {
            return None;
        }
        lock(&self.verdict).clone()
    }

    /// Reports `error` to all ranks. The verdict follows, on this rank too; without a server,
    /// `error` is the verdict at once.
    pub fn report(&self, error: &Error) {
        if self.is_faulty() {
            return;
        }
        let fault = self.suspicion(error);
        let frame = Frame::Report {
            communicator: self.communicator,
            fault: fault.clone(),
        };
        if !self.connection.send(&frame) && !self.awaits_end_of_server() {
            self.pronounce(&fault);
        }
    }

    /// Whether the server has just died, and with it a member: the monitor is about to report that,
    /// and other failures may be its consequences.
    fn awaits_end_of_server(&self) -> bool {
        self.is_server_a_peer() && self.connection.state().reach != Reach::Closed
    }

    /// Whether world rank 0 is another rank of this communicator.
    fn is_server_a_peer(&self) -> bool {
        self.world_ranks.contains(&0) && self.world_ranks[self.me] != 0
    }

    /// Reports `suspicion` to all ranks and waits up to `grace` for the common verdict; without
    /// one, the suspicion becomes this rank's verdict. For a timeout, the grace covers at least an
    /// inquiry; if the server itself does not answer, rank 0 is frozen and is blamed.
    pub fn report_fault(&self, suspicion: Error, grace: Duration) -> Error {
        self.report(&suspicion);
        let is_timeout = matches!(suspicion, Error::Timeout { .. });
        let grace = match is_timeout {
            true => grace.max(INQUIRY_GRACE),
            false => grace,
        };
        let deadline = Instant::now() + grace;
        loop {
            let next_look = deadline.min(Instant::now() + LOOK);
            if let Some(verdict) = self.await_verdict(next_look) {
                return verdict;
            }
            // A server that left cleanly in the meantime sends no verdict.
            if next_look == deadline || self.connection.state().reach == Reach::Closed {
                break;
            }
        }
        let mut fault = self.suspicion(&suspicion);
        if is_timeout && self.is_server_a_peer() {
            fault.ranks = vec![0];
        }
        self.pronounce(&fault);
        self.fault().unwrap_or(suspicion)
    }

    /// Aborts the communicator on all ranks for `reason`, and wakes this rank's exchanges.
    pub fn give_up(&self, reason: &str) {
        let rank = self.me;
        let reason = reason.into();
        self.report_fault(Error::Aborted { rank, reason }, GIVING_UP);
        self.connection.announce();
    }

    /// Whether `rank` has left this communicator cleanly.
    pub fn has_left(&self, rank: usize) -> bool {
        // Pairs with the Release store in `mark_left`.
        self.left[rank].load(Ordering::Acquire)
    }

    /// Whether any rank has left this communicator cleanly.
    pub fn anyone_left(&self) -> bool {
        // A hint: `has_left` shows which rank, with the necessary ordering.
        self.left_count.load(Ordering::Relaxed) != 0
    }

    /// Returns this rank's progress: cheap to write, and read when a call times out or a rank asks.
    pub fn progress(&self) -> &RankProgress {
        &self.progress
    }

    /// Returns the progress of all ranks of this communicator: `None` for ranks that do not answer
    /// within `timeout`, or have left. Waits for `timeout` at most, plus half a second for the
    /// server.
    pub fn standing(&self, timeout: Duration) -> Vec<Option<Standing>> {
        let count = self.world_ranks.len();
        let timeout = timeout.min(SPAN_MAX);
        let ask = |token| Frame::Ask {
            communicator: self.communicator,
            token,
            timeout_ms: timeout.as_millis() as u64,
        };
        let ended = self
            .connection
            .request(ask, Instant::now() + timeout + ANSWER, || false);
        let mut standings = match ended.answer {
            Some(Frame::Standings { standings, .. }) if standings.len() == count => {
                in_order(&self.world_ranks, standings)
            }
            _ => vec![None; count],
        };
        standings[self.me] = Some(self.progress.standing());
        standings
    }

    /// Reports that this rank has waited at `position` for a while; the server compares this with
    /// the positions of the others.
    pub fn claim(&self, position: CallPosition) {
        if !position.call.is_message() && !self.is_faulty() {
            let communicator = self.communicator;
            // Without a server, calls are not compared, and the deadline ends the wait.
            self.connection.send(&Frame::Claim {
                communicator,
                position: Box::new(position),
            });
        }
    }

    /// Waits up to `grace` for a verdict, and reports nothing.
    pub fn await_fault(&self, grace: Duration) -> Option<Error> {
        self.await_verdict(Instant::now() + grace)
    }

    /// Waits for a verdict until `deadline`.
    fn await_verdict(&self, deadline: Instant) -> Option<Error> {
        let (guard, _) = self
            .decided
            .wait_timeout_while(lock(&self.verdict), remaining(deadline), |verdict| {
                verdict.is_none()
            })
            .unwrap_or_else(PoisonError::into_inner);
        guard.clone()
    }

    /// Returns the fault that this rank suspects. A peer that left cleanly is named as such: its
    /// closed connection looks the same as a failure.
    fn suspicion(&self, error: &Error) -> Fault {
        let mut fault = Fault::from_error(error, &self.world_ranks, self.me);
        if let Error::PeerFailed { rank, .. } = error
            && self.left.get(*rank).is_some_and(|_| self.has_left(*rank))
        {
            fault.text = LEFT.into();
        }
        fault
    }

    /// Makes `fault` the verdict, unless there is one.
    pub(super) fn pronounce(&self, fault: &Fault) {
        let mut verdict = lock(&self.verdict);
        if verdict.is_some() {
            return;
        }
        let error = fault.to_error(&self.world_ranks);
        // No warning: the waiting calls return the error.
        log::info!(
            target: "ringfold::control",
            "communicator {:x} of {} ranks ends: {error}", self.communicator, self.world_ranks.len()
        );
        *verdict = Some(error);
        // Pairs with the Acquire load in `is_faulty`.
        self.word.store(1, Ordering::Release);
        drop(verdict);
        self.decided.notify_all();
        (self.waker)();
    }

    /// Records that world rank `rank` has left cleanly.
    pub(super) fn mark_left(&self, rank: u32) {
        if let Some(rank) = self.rank_of(rank) {
            // Pairs with the Acquire load in `has_left`.
            if !self.left[rank].swap(true, Ordering::Release) {
                self.left_count.fetch_add(1, Ordering::Relaxed);
            }
            (self.waker)();
        }
    }

    /// Records that world rank `rank` died: a fault, if it is a member that has not left.
    pub(super) fn mark_dead(&self, rank: u32, reason: &str) {
        if self.rank_of(rank).is_some_and(|rank| !self.has_left(rank)) {
            self.pronounce(&Fault::peer_failed(rank, reason));
        }
    }

    /// Returns the rank of `world_rank` in this communicator.
    fn rank_of(&self, world_rank: u32) -> Option<usize> {
        self.world_ranks.iter().position(|rank| *rank == world_rank)
    }
}

/// Reorders values that the server sent by ascending world rank into the order of `world_ranks`.
pub(super) fn in_order<T>(world_ranks: &[u32], sent: Vec<T>) -> Vec<T> {
    let mut ranks: Vec<usize> = (0..world_ranks.len()).collect();
    ranks.sort_unstable_by_key(|rank| world_ranks[*rank]);
    let mut numbered: Vec<(usize, T)> = ranks.into_iter().zip(sent).collect();
    numbered.sort_unstable_by_key(|(rank, _)| *rank);
    numbered.into_iter().map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::socket::Socket;
    use super::*;
    use crate::error::GONE;

    /// Returns the health of rank 2 of three, whose server has died unnoticed by its monitor.
    fn orphan() -> Health {
        let (ours, theirs) = Socket::pair().expect("cannot create a socket pair");
        drop(theirs);
        let connection = ControlConnection::new(2, 3, Some(ours), Reach::Open)
            .expect("cannot create an eventfd");
        Health::new(7, vec![0, 1, 2], 2, Arc::new(|| ()), Arc::new(connection))
    }

    #[test]
    fn ranks_are_the_communicators_own_in_every_order_of_world_ranks() {
        assert_eq!(in_order(&[5, 2, 9], vec!["2", "5", "9"]), ["5", "2", "9"]);
        let connection = ControlConnection::new(2, 10, None, Reach::Closed);
        let connection = Arc::new(connection.expect("cannot create an eventfd"));
        let health = Health::new(7, vec![5, 2, 9], 1, Arc::new(|| ()), connection);
        health.mark_left(5);
        assert!(health.has_left(0) && !health.has_left(1) && !health.has_left(2));
        health.mark_dead(9, GONE);
        let verdict = health.fault();
        let blamed = matches!(verdict, Some(Error::PeerFailed { rank: 2, .. }));
        assert!(blamed, "{verdict:?}");
    }

    #[test]
    fn the_servers_own_end_counts_before_a_suspicion_that_it_did_not_take() {
        let health = orphan();
        let suspicion = Error::peer_failed(1, GONE);
        health.report(&suspicion);
        health.mark_dead(0, GONE);
        let verdict = health.fault();
        let blamed = matches!(verdict, Some(Error::PeerFailed { rank: 0, .. }));
        assert!(blamed, "{verdict:?}");
    }

    #[test]
    fn a_suspicion_is_the_verdict_when_no_other_rank_has_one() {
        let health = orphan();
        let suspicion = Error::peer_failed(1, GONE);
        let verdict = health.report_fault(suspicion, Duration::from_millis(1));
        let blamed = matches!(verdict, Error::PeerFailed { rank: 1, .. });
        assert!(blamed, "{verdict:?}");
    }
}
