//! State of one simulated rank.

use std::collections::{BTreeMap, VecDeque};

use super::message::{IncomingStream, StreamKey};
use super::record::ORIGIN;
use crate::error::Error;
use crate::random::SplitMix64;
use crate::simulate::scenario::Scenario;
use crate::transport::Ticket;

/// A rank's port, in both directions.
#[derive(Default)]
pub(in crate::simulate) struct RankPort {
    /// End of the port's busy time, sending and receiving; in half duplex, the first is for both.
    pub until_ps: [u64; 2],
    /// With shared links: messages that wait for the port, and whether it is sending or resting.
    pub queue: VecDeque<u32>,
    pub is_taken: bool,
}

/// A rank's operations in progress, and its totals.
#[derive(Default)]
pub(in crate::simulate) struct RankState {
    pub incoming: BTreeMap<StreamKey, IncomingStream>,
    /// Streams that the rank listens to.
    pub listened: Vec<StreamKey>,
    /// Completed tickets for the next poll.
    pub done: Vec<Ticket>,
    pub error: Option<Error>,
    /// Port to other hosts, or to all ranks; and port within the host, if separate.
    pub ports: [RankPort; 2],
    pub has_left: bool,
    /// Whether the rank takes no further part: nothing is delivered, nothing computed.
    pub is_stopped: bool,
    /// Whether the rank is in the world's list of touched ranks.
    pub is_touched: bool,
    /// End of the chain of parts that led to the last report.
    pub cause: u32,
    pub random: SplitMix64,
    /// Number of reductions begun.
    pub reductions: u32,
    pub is_server_busy: bool,
    pub is_messaging: bool,
    /// With turns: whether the rank has a core between jobs; whether it polls there, so that a rank
    /// which needs the core gets it; whether it sleeps.
    pub keeps_core: bool,
    pub polls: bool,
    pub is_asleep: bool,
    /// Number of jobs begun.
    pub turn: u32,
    /// Time at which the rank makes its call.
    pub begins_ps: u64,
    /// Whether a message to be reduced was requested, in a rendezvous with a serial server.
    pub has_asked: bool,
    /// Streams whose next message waits until `has_asked` is cleared.
    pub unasked: VecDeque<StreamKey>,
    /// Receivers and channels of streams whose next message lacks a grant, the longest wait first.
    pub ungranted: Vec<StreamKey>,
    pub stalls: Vec<(u64, u64)>,
    /// Number of jobs in progress.
    pub computing: u32,
    pub computing_since_ps: u64,
    pub account: Account,
}

/// Totals of a rank's work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Number of messages sent.
    pub sent_messages: u64,
    /// Time spent on reductions.
    pub reduce_ps: u64,
    /// Time with at least one job in progress.
    pub computing_ps: u64,
    /// Completion time of the last reduction.
    pub last_reduction_ps: Option<u64>,
}

impl Account {
    /// Returns the totals since `before`.
    pub fn since(&self, before: &Account) -> Account {
        Account {
            sent_bytes: self.sent_bytes - before.sent_bytes,
            sent_messages: self.sent_messages - before.sent_messages,
            reduce_ps: self.reduce_ps - before.reduce_ps,
            computing_ps: self.computing_ps - before.computing_ps,
            last_reduction_ps: None,
        }
    }
}

impl RankState {
    pub fn new(rank: usize, scenario: &Scenario) -> RankState {
        let mut stalls: Vec<(u64, u64)> = scenario.stalls(rank).collect();
        stalls.sort_unstable();
        RankState {
            cause: ORIGIN,
            random: SplitMix64::stream(scenario.seed, rank as u64),
            stalls,
            ..RankState::default()
        }
    }
}
