//! The state of late-merge calls: of a call under way, and kept from one call to the next.

use std::collections::VecDeque;

use super::places::{PlaceNumber, Places};
use super::policy::LateMergePolicy;
use super::station::{Interval, Station, StationOrder};
use super::timers::Estimates;
use super::wire;
use crate::engine::job::Job;
use crate::engine::operation::PreparedOperation;
use crate::error::{Error, Result};
use crate::transport::{P2P_CHANNEL, StreamId, Time};
use crate::types::{Access, Algorithm, Collective};

/// Maximum number of ranks: headers have ten bits for a position.
pub const RANKS_MAX: usize = 1 << wire::POSITION_BITS;

/// The channel of all messages but `SKIP`.
const DATA_CHANNEL: usize = P2P_CHANNEL + 1;

/// A late-merge call under way.
#[derive(Debug, Default)]
pub struct LateRing {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) gathers: bool,
    pub(super) slices: u32,
    pub(super) begun: u32,
    /// Number of slices whose origin has sent its contribution.
    pub(super) started: u32,
    pub(super) retired: u32,
    /// The slices in flight, at `slice % flights.len()`.
    pub(super) flights: Vec<SliceInFlight>,
    /// Postings, by the number in their ticket.
    pub(super) postings: Vec<Option<Posting>>,
    pub(super) free: Vec<u32>,
    /// The numbers of completed postings, oldest first.
    pub(super) done: VecDeque<u32>,
    /// The ranks from which pieces can arrive.
    pub(super) peers: Vec<usize>,
    /// Whether a receive from each rank is posted.
    pub(super) is_arriving: Vec<bool>,
    /// Whether a receive of `SKIP` is posted.
    pub(super) is_skip_arriving: bool,
    pub(super) is_listening: bool,
    pub(super) orders: Vec<StationOrder>,
    pub(super) signals: u32,
}

/// One slice under way.
#[derive(Debug, Default)]
pub(super) struct SliceInFlight {
    /// The station of each chunk.
    pub(super) stations: Vec<Station>,
    pub(super) has_left: Vec<bool>,
    /// Number of stations that have not left.
    pub(super) open: usize,
    /// Whether the result of each chunk is here or arriving.
    pub(super) has_result: Vec<bool>,
    /// Number of results that are not here.
    pub(super) results_due: usize,
    /// Number of messages and reductions that are posted and not complete.
    pub(super) pending: usize,
    /// The position for which a message is due next.
    pub(super) step: u32,
    /// The time since which the next message has been due.
    pub(super) since: Time,
    /// The time until which the next message is waited for.
    pub(super) until: Option<Time>,
    /// The time at which a message first arrived for each position, or the wait for one ended.
    pub(super) heard: Vec<Option<Time>>,
    pub(super) watches: Vec<ReductionWatch>,
}

/// A reduction under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReductionWatch {
    pub(super) chunk: usize,
    pub(super) begin: Time,
    /// The time from which the reduction takes too long.
    pub(super) until: Option<Time>,
    pub(super) was_late: bool,
}

/// One chunk of one slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceChunk {
    pub slice: u32,
    pub chunk: usize,
}

/// A posted send, reduction or receive.
#[derive(Clone, Copy, Debug)]
pub(super) enum Posting {
    /// A send of a slice to a peer; the place is released when the send is complete.
    Send(u32, usize, Option<PlaceNumber>),
    Combine(SliceChunk),
    /// A message from a peer.
    Arrival(SliceChunk, usize, ArrivingMessage),
    /// A `SKIP` for a part of this call; `None` if its call is over.
    Skip(Option<SliceChunk>),
}

/// A peer's message.
#[derive(Clone, Copy, Debug)]
pub(super) enum ArrivingMessage {
    Piece(Interval, PlaceNumber),
    Late(Interval),
    Result,
}

/// State kept from one late-merge call to the next.
#[derive(Debug)]
pub struct LateMergeState {
    /// The policy of these calls.
    pub policy: LateMergePolicy,
    /// The channel of `SKIP`.
    pub signal_channel: usize,
    /// The receive buffers of pieces.
    pub places: Places,
    /// The usual durations of steps and reductions.
    pub estimates: Estimates,
    /// The executor of the last call, for reuse.
    spare: Option<Box<LateRing>>,
}

impl LateMergeState {
    /// Returns whether `job` is a late-merge call among `world_size` ranks.
    pub fn serves(job: &Job, world_size: usize) -> bool {
        let is_ring = matches!(
            job.collective,
            Collective::AllReduce | Collective::ReduceScatter
        ) && (job.way.algorithm, job.way.access)
            == (Algorithm::Ring, Access::Messages);
        // Neither of two ranks can be bypassed.
        is_ring && world_size > 2
    }

    /// Returns the executor of `operation`, at its beginning.
    pub fn ring(
        &mut self,
        operation: &PreparedOperation,
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

    /// Creates the state before the first call.
    pub fn new(policy: LateMergePolicy, signal_channel: usize) -> LateMergeState {
        LateMergeState {
            policy,
            signal_channel,
            places: Places::default(),
            estimates: Estimates::new(policy.timers),
            spare: None,
        }
    }
}

/// Returns the stream of a peer's pieces, results and `LATE`.
pub(super) fn data_stream(peer: usize) -> StreamId {
    StreamId {
        peer,
        channel: DATA_CHANNEL,
    }
}

pub(super) fn later(time: Time, ps: u64) -> Time {
    Time(time.0 + u128::from(ps))
}
