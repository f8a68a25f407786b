//! Record of a simulation: the chain of parts that led to each event, and timelines.

use crate::types::named;

named! {
    /// Activity on which a part of a chain was spent.
    PathKind, "kind of part" {
        /// A rank had not begun its call.
        Start, "start";
        /// A processor's overhead for a message.
        Overhead, "overhead";
        /// A message waited for a port, for memory, or for its turn.
        Port, "port";
        /// A message left its sender, or entered its receiver.
        Transmit, "transmit";
        /// The latency of a wire.
        Wire, "wire";
        /// An arrived message or result waited until its rank used it.
        Wait, "wait";
        /// A job waited for a processor.
        Queue, "queue";
        /// A reduction.
        Reduce, "reduce";
        /// Additional time of a slow reduction.
        Slow, "slow";
        /// A copy.
        Copy, "copy";
        /// A copy from a device's memory.
        Bring, "bring";
        /// A copy to a device's memory.
        Take, "take";
    }
}

/// A part of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPart {
    /// Rank that spent the time: a message's sender, unless it waited at or entered its receiver.
    pub rank: usize,
    /// The other end of a message.
    pub peer: Option<usize>,
    /// The activity.
    pub kind: PathKind,
    /// Start time.
    pub begin_ps: u64,
    /// End time.
    pub end_ps: u64,
}

named! {
    /// A line of a timeline.
    TimelineLane, "lane" {
        /// The call as a whole.
        Call, "call";
        /// The port, sending.
        Transmit, "transmit";
        /// The port, receiving.
        Receive, "receive";
        /// Reductions.
        Reduce, "reduce";
        /// Additional time of slow reductions.
        Slow, "slow";
        /// Copies.
        Copy, "copy";
        /// Overheads of messages.
        Overhead, "overhead";
        /// A frozen process.
        Stall, "stall";
        /// The device, copying from its memory.
        Bring, "bring";
        /// The device, copying to its memory.
        Take, "take";
    }
}

/// An interval on a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// The rank.
    pub rank: usize,
    /// Line of the timeline.
    pub lane: TimelineLane,
    /// Start time.
    pub begin_ps: u64,
    /// End time.
    pub end_ps: u64,
    /// The other end of a message.
    pub peer: Option<usize>,
    /// Number of bytes involved.
    pub bytes: u64,
    /// Slice of the call.
    pub slice: u32,
}

/// The traffic from one rank to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkUse {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Number of messages.
    pub messages: u64,
    /// Payload bytes of the messages.
    pub bytes: u64,
    /// Time that the sender's port was busy with the messages.
    pub busy_ps: u64,
}

/// The empty chain, which ends at time 0.
pub(super) const ORIGIN: u32 = u32::MAX;

/// A stored part, which began when the part before it ended.
struct ChainPart {
    before: u32,
    rank: u32,
    /// The other end of a message; `u32::MAX` if there is none.
    peer: u32,
    kind: PathKind,
    end_ps: u64,
}

/// All parts and timelines of a simulation.
pub(in crate::simulate) struct Record {
    parts: Vec<ChainPart>,
    pub trace: Vec<TraceEvent>,
    traces: bool,
}

impl Record {
    pub fn new(traces: bool) -> Record {
        Record {
            parts: Vec::new(),
            trace: Vec::new(),
            traces,
        }
    }

    /// Returns the end time of a chain.
    pub fn end_ps(&self, part: u32) -> u64 {
        self.parts.get(part as usize).map_or(0, |part| part.end_ps)
    }

    /// Returns the chain that ends later.
    pub fn later(&self, one: u32, other: u32) -> u32 {
        match self.end_ps(one) >= self.end_ps(other) {
            true => one,
            false => other,
        }
    }

    /// Extends the chain `before` by a part until `end_ps`; returns `before` if the part would be
    /// empty.
    pub fn extend(
        &mut self,
        before: u32,
        kind: PathKind,
        (rank, peer): (u32, Option<u32>),
        end_ps: u64,
    ) -> u32 {
        if end_ps <= self.end_ps(before) {
            return before;
        }
        self.parts.push(ChainPart {
            before,
            rank,
            peer: peer.unwrap_or(u32::MAX),
            kind,
            end_ps,
        });
        self.parts.len() as u32 - 1
    }

    /// Returns the parts of a chain, from time 0 on.
    pub fn path(&self, mut part: u32) -> Vec<PathPart> {
        let mut path = Vec::new();
        while let Some(at) = self.parts.get(part as usize) {
            path.push(PathPart {
                rank: at.rank as usize,
                peer: (at.peer != u32::MAX).then_some(at.peer as usize),
                kind: at.kind,
                begin_ps: self.end_ps(at.before),
                end_ps: at.end_ps,
            });
            part = at.before;
        }
        path.reverse();
        path
    }

    /// Adds an interval to its timeline, if timelines are recorded.
    pub fn note(&mut self, event: TraceEvent) {
        if self.traces && event.end_ps > event.begin_ps {
            self.trace.push(event);
        }
    }
}
