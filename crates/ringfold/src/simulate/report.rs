//! What a simulation found: times, traffic, the critical path, broken promises.

use super::Scenario;
use crate::error::Error;
use crate::schedule::Medium;
use crate::types::Collective;

/// What came out of a [`Scenario`]. All times are picoseconds since the ranks began.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was simulated, with what the tuner chose filled in.
    pub scenario: Scenario,
    /// Over what.
    pub medium: Medium,
    /// When the last rank's call returned.
    pub finished_ps: u64,
    /// When the last of `chunks` was complete; `finished_ps` where nothing is reduced.
    pub results_ps: u64,
    /// When each rank had done its last reduction: in a ring and in a direct reduction that of the part that it owns.
    pub chunks: Vec<ChunkResult>,
    /// Each rank's part.
    pub ranks: Vec<RankReport>,
    /// What was sent from whom to whom, by sender and receiver.
    pub links: Vec<LinkUse>,
    /// What the end waited for, from its beginning on without gaps: each part ends where the next begins.
    pub critical_path: Vec<PathPart>,
    /// How much of the critical path was spent on each rank: reducing, copying, sending, being late. A wire's latency is
    /// nobody's.
    pub blame_ps: Vec<u64>,
    /// Things that happened.
    pub events: u64,
    /// Promises that were not kept. Empty is good.
    pub promises: Vec<BrokenPromise>,
    /// What each rank did when, if the scenario asked for it.
    pub trace: Vec<TraceEvent>,
}

/// When a result was complete on the rank that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkResult {
    /// Which chunk: its owner's number.
    pub chunk: u32,
    /// The rank.
    pub owner: usize,
    /// When.
    pub complete_ps: u64,
}

/// One rank's part in a simulation.
#[derive(Clone, Debug)]
pub struct RankReport {
    /// When its call returned, or when it died.
    pub finished_ps: u64,
    /// What its call returned; of a rank that died what the others are told of it.
    pub outcome: Result<(), Error>,
    /// Payload that it sent.
    pub sent_bytes: u64,
    /// Messages that it sent.
    pub sent_messages: u64,
    /// How long it reduced, slow reductions with their delay; those side by side count each.
    pub reduce_ps: u64,
    /// How much of its call it computed nothing at all.
    pub waited_ps: u64,
}

/// The traffic from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkUse {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Messages.
    pub messages: u64,
    /// Their payload.
    pub bytes: u64,
    /// How long the sender's port was busy with them.
    pub busy_ps: u64,
}

/// A part of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPart {
    /// Where it was spent; of a message the sender, but the receiver while the message waited there.
    pub rank: usize,
    /// The other end of a message.
    pub peer: Option<usize>,
    /// On what.
    pub kind: PathKind,
    /// When it began.
    pub begin_ps: u64,
    /// When it ended.
    pub end_ps: u64,
}

/// What a part of the critical path was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathKind {
    /// A rank had not begun its call.
    Start,
    /// A processor's overhead for a message.
    Overhead,
    /// A message waited for a port, for memory, or for its turn.
    Port,
    /// A message left its sender, or entered its receiver.
    Transmit,
    /// The latency of a wire.
    Wire,
    /// Something that had come waited until it was asked for.
    Wait,
    /// Something waited for a processor.
    Queue,
    /// A reduction.
    Reduce,
    /// What a slow reduction took longer.
    Slow,
    /// A copy.
    Copy,
}

impl PathKind {
    /// The word for tables.
    pub const fn name(self) -> &'static str {
        match self {
            PathKind::Start => "start",
            PathKind::Overhead => "overhead",
            PathKind::Port => "port",
            PathKind::Transmit => "transmit",
            PathKind::Wire => "wire",
            PathKind::Wait => "wait",
            PathKind::Queue => "queue",
            PathKind::Reduce => "reduce",
            PathKind::Slow => "slow",
            PathKind::Copy => "copy",
        }
    }
}

/// The promises that are checked after every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// Ok means the right result.
    Exact,
    /// Nobody waits for ever.
    NoDeadlock,
    /// A call ends by its deadline.
    Deadline,
    /// Every survivor of a death learns in time who died.
    Detection,
    /// The class of an error is the same on all ranks.
    SameClass,
    /// After an error a call's output is not touched any more.
    Untouched,
    /// What was posted is reported complete once.
    ExactlyOnce,
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenPromise {
    /// Which.
    pub promise: Promise,
    /// When that was seen.
    pub at_ps: u64,
    /// On which rank, if on one.
    pub rank: Option<usize>,
    /// In words.
    pub what: String,
}

/// A line of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// The call as a whole.
    Call,
    /// The port, sending.
    Transmit,
    /// The port, receiving.
    Receive,
    /// Reductions.
    Reduce,
    /// What slow reductions take longer.
    Slow,
    /// Copies.
    Copy,
    /// Overheads of messages.
    Overhead,
    /// A frozen process.
    Stall,
}

impl Lane {
    /// The word for timelines.
    pub const fn name(self) -> &'static str {
        match self {
            Lane::Call => "call",
            Lane::Transmit => "transmit",
            Lane::Receive => "receive",
            Lane::Reduce => "reduce",
            Lane::Slow => "slow",
            Lane::Copy => "copy",
            Lane::Overhead => "overhead",
            Lane::Stall => "stall",
        }
    }
}

/// Something on a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Whose.
    pub rank: usize,
    /// On which line.
    pub lane: Lane,
    /// When it began.
    pub begin_ps: u64,
    /// When it ended.
    pub end_ps: u64,
    /// The other end of a message.
    pub peer: Option<usize>,
    /// How many bytes it was about.
    pub bytes: u64,
    /// Which slice of the call.
    pub slice: u32,
}

impl Report {
    /// Bytes per second of the call as nccl-tests defines them.
    pub fn algbw_bytes_per_s(&self) -> f64 {
        match self.finished_ps {
            0 => 0.0,
            ps => self.scenario.bytes as f64 / (ps as f64 * 1e-12),
        }
    }

    /// `algbw` times what the collective moves over a rank's port at least, as nccl-tests defines it.
    pub fn busbw_bytes_per_s(&self) -> f64 {
        use Collective::{AllGather, AllReduce, AllToAll, Gather, ReduceScatter, Scatter};
        let n = self.scenario.ranks as f64;
        let factor = match self.scenario.collective {
            AllReduce => 2.0 * (n - 1.0) / n,
            AllGather | ReduceScatter | AllToAll | Gather | Scatter => (n - 1.0) / n,
            _ => 1.0,
        };
        self.algbw_bytes_per_s() * factor
    }

    /// Whether every rank returned Ok and every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.promises.is_empty() && self.ranks.iter().all(|rank| rank.outcome.is_ok())
    }
}
