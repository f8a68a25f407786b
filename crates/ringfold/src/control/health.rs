//! What a rank knows about the health of one communicator.
//!
//! The data path polls [`Health::is_faulty`], one atomic load. Everything else is control path. The
//! first verdict stands; on all ranks it is the same, because the rendezvous server chooses it. A
//! rank that cannot reach the server keeps its own suspicion as its verdict.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::connection::{ANSWER, ControlConnection, Reach};
use super::fault::Fault;
use super::frame::Frame;
use super::hub::INQUIRY;
use super::poll::remaining;
use super::standing::{Progress, Standing};
use crate::call::Position;
use crate::error::{Error, LEFT, Result};
use crate::sync::lock;
use crate::transport::Waker;
use crate::wait::SPAN_MAX;

/// How often a rank that waits for a verdict checks whether the server can still give one.
const LOOK: Duration = Duration::from_millis(50);
/// How long a rank that gives up while it joins waits for the verdict: it comes at once where rank
/// 0 is not frozen.
const GIVING_UP: Duration = Duration::from_millis(500);
/// What a timeout's inquiry takes at most, there and back.
const INQUIRY_GRACE: Duration = Duration::from_millis(2 * INQUIRY.as_millis() as u64);

/// The communicators that this process has open, by number.
#[derive(Debug, Default)]
pub(super) struct OpenCommunicators(Mutex<HashMap<u64, Arc<Health>>>);

impl OpenCommunicators {
    /// Adds one; an error if its number is taken.
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

    /// Whether it was open.
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
    /// This rank.
    me: usize,
    /// 0, or 1 once there is a verdict. Stored after the verdict itself.
    word: AtomicU32,
    verdict: Mutex<Option<Error>>,
    decided: Condvar,
    left: Vec<AtomicBool>,
    /// How many of `left` are set, so that asking for any is one load.
    left_count: AtomicU32,
    progress: Progress,
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
            progress: Progress::default(),
            waker,
            connection,
        }
    }

    /// Whether there is a verdict: the abort word.
    pub fn is_faulty(&self) -> bool {
        // Pairs with the Release store in `pronounce`, so that who sees the word finds the verdict.
        self.word.load(Ordering::Acquire) != 0
    }

    /// The verdict, ranks as ranks of this communicator.
    pub fn fault(&self) -> Option<Error> {
        if !self.is_faulty() {
            return None;
        }
        lock(&self.verdict).clone()
    }

    /// Tells all ranks. The verdict follows, here too; without a server `error` is the verdict at
    /// once.
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

    /// Whether the server has just died, and with it a member: the monitor is about to say so, and
    /// other failures may be no more than its consequences.
    fn awaits_end_of_server(&self) -> bool {
        self.is_server_a_peer() && self.connection.state().reach != Reach::Closed
    }

    /// Whether world rank 0 is another rank of this communicator.
    fn is_server_a_peer(&self) -> bool {
        self.world_ranks.contains(&0) && self.world_ranks[self.me] != 0
    }

    /// Tells all ranks and waits up to `grace` for the verdict of them all; without one the
    /// suspicion becomes this rank's verdict. For a timeout the grace is at least what asking all
    /// ranks takes; when the server itself does not answer, rank 0 is frozen and named.
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
            // A server that left in good order while it was asked gives no verdict any more.
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

    /// Ends the communicator on all ranks because this one gives up, and wakes this rank's
    /// exchanges.
    pub fn give_up(&self, reason: &str) {
        let rank = self.me;
        let reason = reason.into();
        self.report_fault(Error::Aborted { rank, reason }, GIVING_UP);
        self.connection.announce();
    }

    /// Whether `rank` has left this communicator in good order.
    pub fn has_left(&self, rank: usize) -> bool {
        // Pairs with the Release store in `mark_left`.
        self.left[rank].load(Ordering::Acquire)
    }

    /// Whether any rank has left this communicator in good order.
    pub fn anyone_left(&self) -> bool {
        // A hint: `has_left` says who, with the ordering that goes with it.
        self.left_count.load(Ordering::Relaxed) != 0
    }

    /// How far this rank is. Cheap to write; read when a call times out, or a rank asks.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// How far all ranks are, as ranks of this communicator: nothing from those that do not answer
    /// within `timeout`, or have left. Waits no longer than that, and half a second more for the
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

    /// Says that this rank has waited at `position` for a while: the server compares it with what
    /// others wait in.
    pub fn claim(&self, position: Position) {
        if !position.call.is_message() && !self.is_faulty() {
            let communicator = self.communicator;
            // Without a server calls are not compared; then the deadline ends the wait.
            self.connection.send(&Frame::Claim {
                communicator,
                position: Box::new(position),
            });
        }
    }

    /// Waits for a verdict up to `grace`, and reports nothing.
    pub fn await_fault(&self, grace: Duration) -> Option<Error> {
        self.await_verdict(Instant::now() + grace)
    }

    /// Waits for a verdict.
    fn await_verdict(&self, deadline: Instant) -> Option<Error> {
        let (guard, _) = self
            .decided
            .wait_timeout_while(lock(&self.verdict), remaining(deadline), |verdict| {
                verdict.is_none()
            })
            .unwrap_or_else(PoisonError::into_inner);
        guard.clone()
    }

    /// What this rank itself suspects, in the light of who has left in good order: the end of a
    /// connection looks the same in both cases.
    fn suspicion(&self, error: &Error) -> Fault {
        let mut fault = Fault::from_error(error, &self.world_ranks, self.me);
        if let Error::PeerFailed { rank, .. } = error
            && self.left.get(*rank).is_some_and(|_| self.has_left(*rank))
        {
            fault.text = LEFT.into();
        }
        fault
    }

    /// The verdict is `fault`, unless there is one.
    pub(super) fn pronounce(&self, fault: &Fault) {
        let mut verdict = lock(&self.verdict);
        if verdict.is_some() {
            return;
        }
        let error = fault.to_error(&self.world_ranks);
        // No warning: the calls that wait return it.
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

    /// World rank `rank` has left in good order.
    pub(super) fn mark_left(&self, rank: u32) {
        if let Some(rank) = self.rank_of(rank) {
            // Pairs with the Acquire load in `has_left`.
            if !self.left[rank].swap(true, Ordering::Release) {
                self.left_count.fetch_add(1, Ordering::Relaxed);
            }
            (self.waker)();
        }
    }

    /// World rank `rank` died: a fault, if it is a member that has not left.
    pub(super) fn mark_dead(&self, rank: u32, reason: &str) {
        if self.rank_of(rank).is_some_and(|rank| !self.has_left(rank)) {
            self.pronounce(&Fault::peer_failed(rank, reason));
        }
    }

    /// The rank in this communicator of a world rank.
    fn rank_of(&self, world_rank: u32) -> Option<usize> {
        self.world_ranks.iter().position(|rank| *rank == world_rank)
    }
}

/// What the server sent in the order of these world ranks, put into their own order.
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

    /// The health of rank 2 of three, whose server is dead, which its monitor has not noticed yet.
    fn orphan() -> Health {
        let (ours, theirs) = Socket::pair().expect("socket pairs are to be had");
        drop(theirs);
        let connection =
            ControlConnection::new(2, 3, Some(ours), Reach::Open).expect("an eventfd is to be had");
        Health::new(7, vec![0, 1, 2], 2, Arc::new(|| ()), Arc::new(connection))
    }

    #[test]
    fn ranks_are_the_communicators_own_in_every_order_of_world_ranks() {
        assert_eq!(in_order(&[5, 2, 9], vec!["2", "5", "9"]), ["5", "2", "9"]);
        let connection = ControlConnection::new(2, 10, None, Reach::Closed);
        let connection = Arc::new(connection.expect("an eventfd is to be had"));
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
