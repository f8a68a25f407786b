//! What late-merge calls know: of a call under way, and from one call to the next.

use std::collections::VecDeque;

use super::places::{Place, Places};
use super::policy::Policy;
use super::station::{Interval, Order, Station};
use super::timers::Estimates;
use super::wire;
use crate::engine::job::Job;
use crate::engine::operation::Operation;
use crate::error::{Error, Result};
use crate::transport::{P2P_CHANNEL, Stream, Time};
use crate::types::{Access, Algorithm, Collective};

/// The most ranks: headers have ten bits for a position.
pub const RANKS_MAX: usize = 1 << wire::POSITION_BITS;

/// The channel of all but `SKIP`.
const DATA_CHANNEL: usize = P2P_CHANNEL + 1;

/// A late-merge call under way.
#[derive(Debug, Default)]
pub struct LateRing {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) gathers: bool,
    pub(super) slices: u32,
    pub(super) begun: u32,
    /// Slices whose origin has sent what it has.
    pub(super) started: u32,
    pub(super) retired: u32,
    /// Of slices under way, at `slice % flights.len()`.
    pub(super) flights: Vec<Flight>,
    /// What is posted, by the number in its ticket.
    pub(super) postings: Vec<Option<Posting>>,
    pub(super) free: Vec<u32>,
    /// The numbers of what is complete, oldest first.
    pub(super) done: VecDeque<u32>,
    /// The ranks from which pieces can come.
    pub(super) peers: Vec<usize>,
    /// Whether a receive is posted, by rank.
    pub(super) is_arriving: Vec<bool>,
    /// The same for `SKIP`.
    pub(super) is_skip_arriving: bool,
    pub(super) is_listening: bool,
    pub(super) orders: Vec<Order>,
    pub(super) signals: u32,
}

/// One slice under way.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// By chunk.
    pub(super) stations: Vec<Station>,
    pub(super) has_left: Vec<bool>,
    /// Stations that have not left.
    pub(super) open: usize,
    /// Whether the chunk's result is here or comes.
    pub(super) has_result: Vec<bool>,
    /// Results that are not here.
    pub(super) results_due: usize,
    /// Messages and reductions that are posted and not complete.
    pub(super) pending: usize,
    /// The position from which something is due next.
    pub(super) step: u32,
    /// Since when.
    pub(super) since: Time,
    /// Until when it is waited for.
    pub(super) until: Option<Time>,
    /// When something first came from each position, or it was given up.
    pub(super) heard: Vec<Option<Time>>,
    pub(super) watches: Vec<Watch>,
}

/// A reduction under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) chunk: usize,
    pub(super) begin: Time,
    /// When it takes too long.
    pub(super) until: Option<Time>,
    pub(super) was_late: bool,
}

/// One chunk of one slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub slice: u32,
    pub chunk: usize,
}

/// Something posted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Posting {
    /// Of a slice, to a peer; the place is free when it is done.
    Send(u32, usize, Option<Place>),
    Combine(Part),
    /// From a peer.
    Arrival(Part, usize, Arrival),
    /// For a part of this call, or for one that is over.
    Skip(Option<Part>),
}

/// What a peer sends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrival {
    Piece(Interval, Place),
    Late(Interval),
    Result,
}

/// What is kept from one late-merge call to the next.
#[derive(Debug)]
pub struct LateMergeState {
    /// How they go.
    pub policy: Policy,
    /// The channel of `SKIP`.
    pub signal_channel: usize,
    /// Where pieces land.
    pub places: Places,
    /// How long things take.
    pub estimates: Estimates,
    /// The bookkeeping of the last call, for the next one.
    spare: Option<Box<LateRing>>,
}

impl LateMergeState {
    /// Whether a call like `job` among `world_size` ranks is one of these.
    pub fn serves(job: &Job, world_size: usize) -> bool {
        let is_ring = matches!(
            job.collective,
            Collective::AllReduce | Collective::ReduceScatter
        ) && (job.way.algorithm, job.way.access)
            == (Algorithm::Ring, Access::Messages);
        // Between two ranks there is no way around either.
        is_ring && world_size > 2
    }

    /// The executor of `operation`, at its beginning.
    pub fn ring(
        &mut self,
        operation: &Operation,
        rank: usize,
        world_size: usize,
    ) -> Result<Box<LateRing>> {
        if world_size > RANKS_MAX {
            return Err(Error::Unsupported(format!(
                "a straggler policy for {world_size} ranks; {RANKS_MAX} at most"
            )));
        }
        let mut ring = self.spare.take().unwrap_or_default();
        ring.reset(operation, rank, world_size, self.policy.target);
        Ok(ring)
    }

    /// Keeps the executor of a call that is done.
    pub fn keep(&mut self, ring: Box<LateRing>) {
        self.spare = Some(ring);
    }

    /// Nothing known yet.
    pub fn new(policy: Policy, signal_channel: usize) -> LateMergeState {
        LateMergeState {
            policy,
            signal_channel,
            places: Places::default(),
            estimates: Estimates::new(policy.timers),
            spare: None,
        }
    }
}

/// The stream of a peer's pieces, results and `LATE`.
pub(super) fn data_stream(peer: usize) -> Stream {
    Stream {
        peer,
        channel: DATA_CHANNEL,
    }
}

pub(super) fn later(time: Time, ps: u64) -> Time {
    Time(time.0 + u128::from(ps))
}
