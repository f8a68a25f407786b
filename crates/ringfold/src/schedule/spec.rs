//! The request for a schedule, and the schedule itself: the steps of one rank.

#![forbid(unsafe_code)]

use super::action::{Action, Buffer, Span, Step};
use super::groups::Groups;
use crate::types::{Access, Algorithm, Assignment, Collective, Method};

/// The request for a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The collective to perform.
    pub collective: Collective,
    /// The algorithm that performs the collective.
    pub algorithm: Algorithm,
    /// The access to peers' data: by messages, staged or in registered buffers.
    pub access: Access,
    /// The assignment of parts of the work to ranks.
    pub assignment: Assignment,
    /// Number of ranks.
    pub world_size: u32,
    /// The rank that the schedule is for.
    pub rank: u32,
    /// The root, or the peer of `Send` and `Recv`, or the late rank of `Stragglar`; otherwise 0.
    pub root: u32,
    /// The ranks that share a host.
    pub hosts: Groups,
    /// Whether values are combined in the order of the canonical tree also where another order is
    /// faster: within the hosts of two levels.
    pub is_reproducible: bool,
    /// Whether `Scratch` holds elements of `F32` instead of shorter floats, so that partial results
    /// are not rounded.
    pub is_wide: bool,
}

/// The division of `Input` and `Output` by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferCut {
    /// A vector of this many chunks. Slices are contiguous parts of the whole, and each slice is
    /// divided evenly into the chunks, so a span of several chunks is contiguous. For `all_reduce`,
    /// `reduce`, `broadcast`, `send`, `recv`, `sendrecv`.
    Vector(u32),
    /// This many blocks that belong to ranks: a chunk is a block, a slice is a part of every block.
    /// Spans of several blocks are contiguous only if there is one slice. For the other
    /// collectives.
    Blocks(u32),
}

impl BufferCut {
    /// Returns the number of chunks.
    pub fn chunks(self) -> u32 {
        match self {
            BufferCut::Vector(n) | BufferCut::Blocks(n) => n,
        }
    }
}

/// The steps of one rank in a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The request that the schedule was made for.
    pub spec: Spec,
    /// The chunks of `Input`.
    pub input: BufferCut,
    /// The chunks of `Output`.
    pub output: BufferCut,
    /// Whether `Scratch` is used.
    pub scratch: bool,
    /// Number of places of `Leaves`.
    pub leaves: u32,
    /// Whether messages and copies may span several blocks, which are contiguous only if the engine
    /// cuts one slice. The same on every rank, though not every rank need have such a step.
    pub needs_one_slice: bool,
    /// Number of rounds, the same on every rank.
    pub rounds: u32,
    /// The steps of each channel, by ascending round. Channels are independent.
    pub channels: Vec<Vec<Step>>,
}

impl Spec {
    /// Creates a request for rank 0 of a call with root 0, all ranks on one host.
    pub fn new(
        collective: Collective,
        method: impl Into<Method>,
        access: Access,
        world_size: u32,
    ) -> Spec {
        let method = method.into();
        Spec {
            collective,
            algorithm: method.algorithm(),
            access,
            assignment: method.assignment(),
            world_size,
            rank: 0,
            root: 0,
            hosts: Groups::ONE,
            is_reproducible: false,
            is_wide: false,
        }
    }

    /// Returns the same request for another rank.
    pub fn of_rank(&self, rank: u32) -> Spec {
        Spec {
            rank,
            ..self.clone()
        }
    }

    /// Returns the method: the algorithm with its access and assignment.
    pub const fn method(&self) -> Method {
        Method::new(self.algorithm, self.access, self.assignment)
    }
}

impl Schedule {
    /// Whether this rank's caller provides the buffer; for `Scratch`, whether the schedule uses it.
    pub fn has(&self, buffer: Buffer) -> bool {
        let at_root = self.spec.rank == self.spec.root;
        match (buffer, self.spec.collective) {
            (Buffer::Input, Collective::Broadcast | Collective::Scatter) => at_root,
            (Buffer::Output, Collective::Reduce | Collective::Gather) => at_root,
            (Buffer::Input, Collective::Recv) => false,
            (Buffer::Output, Collective::Send | Collective::Barrier) => false,
            (Buffer::Scratch, _) => self.scratch,
            (Buffer::Leaves, _) => self.leaves > 0,
            _ => true,
        }
    }

    /// Returns the division of a buffer.
    pub fn cut(&self, buffer: Buffer) -> BufferCut {
        match buffer {
            Buffer::Output => self.output,
            Buffer::Input => self.input,
            Buffer::Leaves => BufferCut::Vector(self.leaves),
            Buffer::Scratch if self.output.chunks() > self.input.chunks() => self.output,
            Buffer::Scratch => self.input,
        }
    }

    /// Whether a message, copy or reduction spans several blocks.
    pub fn spans_blocks(&self, action: &Action) -> bool {
        let is_blocks =
            |span: Span| matches!(self.cut(span.buffer), BufferCut::Blocks(_)) && span.len > 1;
        action.is_asynchronous(Access::Messages) && action.spans().any(is_blocks)
    }

    /// Whether the ranks read and write each other's buffers in place.
    pub fn exposes(&self) -> bool {
        let exposes = |step: &Step| matches!(step.action, Action::Expose { .. });
        self.channels.iter().flatten().any(exposes)
    }

    /// Divides the work among several channels: the vector into as many parts, each of which is cut
    /// into as many chunks as the whole was and handled by a channel of its own.
    ///
    /// Returns schedules without a vector to divide unchanged: those over blocks, the barrier, and
    /// those over published memory, whose phases are counted once for all channels.
    pub fn striped(self, channels: u32) -> Schedule {
        let divisible = matches!(self.input, BufferCut::Vector(_))
            && self.spec.access == Access::Messages
            && self.spec.collective != Collective::Barrier;
        let [steps] = self.channels.as_slice() else {
            return self;
        };
        if !divisible || channels <= 1 {
            return self;
        }
        let part = |channel: u32| {
            let moved = |span: Span| Span {
                first: span.first + channel * self.cut(span.buffer).chunks(),
                ..span
            };
            let step = |step: &Step| Step {
                action: step.action.with_spans(moved),
                ..*step
            };
            steps.iter().map(step).collect()
        };
        Schedule {
            channels: (0..channels).map(part).collect(),
            input: BufferCut::Vector(self.input.chunks() * channels),
            output: BufferCut::Vector(self.output.chunks() * channels),
            leaves: self.leaves * channels,
            ..self
        }
    }
}
