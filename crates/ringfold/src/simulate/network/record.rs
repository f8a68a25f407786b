//! What is noted while the simulation runs: the chain of parts behind everything, and timelines.

use crate::types::named;

named! {
    /// What a part of the chain behind an event was spent on.
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
        /// Something that had come waited until it was asked for.
        Wait, "wait";
        /// Something waited for a processor.
        Queue, "queue";
        /// A reduction.
        Reduce, "reduce";
        /// What a slow reduction took longer.
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
    /// Where it was spent: of a message at its sender, unless it waited or entered at its receiver.
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

named! {
    /// A line of a timeline.
    Lane, "lane" {
        /// The call as a whole.
        Call, "call";
        /// The port, sending.
        Transmit, "transmit";
        /// The port, receiving.
        Receive, "receive";
        /// Reductions.
        Reduce, "reduce";
        /// What slow reductions take longer.
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

/// The traffic from one rank to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// No part: time 0.
pub(super) const ORIGIN: u32 = u32::MAX;

/// A part as it is kept: it began when the part before it ended.
struct Part {
    before: u32,
    rank: u32,
    /// `u32::MAX` where there is none.
    peer: u32,
    kind: PathKind,
    end_ps: u64,
}

/// All that was noted.
pub(in crate::simulate) struct Record {
    parts: Vec<Part>,
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

    /// When a chain ends.
    pub fn end_ps(&self, part: u32) -> u64 {
        self.parts.get(part as usize).map_or(0, |part| part.end_ps)
    }

    /// Of two chains the one that ends later.
    pub fn later(&self, one: u32, other: u32) -> u32 {
        match self.end_ps(one) >= self.end_ps(other) {
            true => one,
            false => other,
        }
    }

    /// The chain `before` and a part that follows it until `end_ps`; nothing new if that is no
    /// time.
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
        self.parts.push(Part {
            before,
            rank,
            peer: peer.unwrap_or(u32::MAX),
            kind,
            end_ps,
        });
        self.parts.len() as u32 - 1
    }

    /// The parts of a chain, from time 0 on.
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

    /// Notes something on a timeline, if there are timelines.
    pub fn note(&mut self, event: TraceEvent) {
        if self.traces && event.end_ps > event.begin_ps {
            self.trace.push(event);
        }
    }
}
