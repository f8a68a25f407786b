//! One rank's part of the simulated machines.

use std::collections::{BTreeMap, VecDeque};

use super::message::{Incoming, Source};
use super::record::ORIGIN;
use crate::error::Error;
use crate::random::SplitMix64;
use crate::simulate::scenario::Scenario;
use crate::transport::Ticket;

/// One side of a rank's connection to others.
#[derive(Default)]
pub(in crate::simulate) struct Port {
    /// Until when it is taken, sending and receiving; in half duplex the first stands for both.
    pub until_ps: [u64; 2],
    /// Messages that wait for it, and whether one leaves or it rests: where links are shared.
    pub queue: VecDeque<u32>,
    pub is_taken: bool,
}

/// A rank's operations in progress, and its totals.
#[derive(Default)]
pub(in crate::simulate) struct RankState {
    pub incoming: BTreeMap<Source, Incoming>,
    /// The streams that are listened to.
    pub listened: Vec<Source>,
    /// For the next poll.
    pub done: Vec<Ticket>,
    pub error: Option<Error>,
    /// To others, and to those of its host.
    pub ports: [Port; 2],
    pub has_left: bool,
    /// Whether it takes part no more: nothing is delivered, nothing computed.
    pub is_stopped: bool,
    /// Whether it stands in the list of those that something happened to.
    pub is_touched: bool,
    /// The end of the chain behind what was last reported.
    pub cause: u32,
    pub random: SplitMix64,
    /// Reductions begun.
    pub reductions: u32,
    pub is_server_busy: bool,
    pub is_messaging: bool,
    /// With turns, whether it has a core between jobs; whether it polls there, so that a rank which
    /// needs the core gets it; whether it sleeps.
    pub keeps_core: bool,
    pub polls: bool,
    pub is_asleep: bool,
    /// Jobs begun.
    pub turn: u32,
    /// When it makes its call.
    pub begins_ps: u64,
    /// Whether a message to be reduced was requested: in a rendezvous with a serial server.
    pub has_asked: bool,
    /// Streams whose next message waits for that.
    pub unasked: VecDeque<Source>,
    /// Receivers and channels of streams whose next message has no grant, in the order of sending.
    pub ungranted: Vec<Source>,
    pub stalls: Vec<(u64, u64)>,
    /// Jobs in progress.
    pub computing: u32,
    pub computing_since_ps: u64,
    pub account: Account,
}

/// What a rank has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Payload that it sent.
    pub sent_bytes: u64,
    /// Messages that it sent.
    pub sent_messages: u64,
    /// How long it reduced.
    pub reduce_ps: u64,
    /// How long it computed anything.
    pub computing_ps: u64,
    /// When its last reduction was done.
    pub last_reduction_ps: Option<u64>,
}

impl Account {
    /// What was done since `before`.
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
