//! What a schedule is asked for, and what it is: the steps of one rank.

#![forbid(unsafe_code)]

use super::action::{Action, Buffer, Span, Step};
use super::groups::Groups;
use crate::types::{Access, Algorithm, Assignment, Collective, Method};

/// What a schedule is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// What is to be done.
    pub collective: Collective,
    /// How.
    pub algorithm: Algorithm,
    /// How a rank reaches its peers' data.
    pub access: Access,
    /// Which rank does which part.
    pub assignment: Assignment,
    /// How many ranks.
    pub world_size: u32,
    /// Which of them this schedule is for.
    pub rank: u32,
    /// The root, or for `Send` and `Recv` the peer, for `Stragglar` the late rank; 0 where none of
    /// them means anything.
    pub root: u32,
    /// How many domains of equal size the ranks sit in, in rank order; 1 where that is not so or
    /// not known.
    pub domains: u32,
    /// The ranks that share a host.
    pub hosts: Groups,
}

/// How the engine cuts `Input` and `Output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// A vector: slices are contiguous parts of the whole, and each slice is divided evenly into
    /// this many chunks. So a span of several chunks is contiguous. `all_reduce`, `reduce`,
    /// `broadcast`, `send`, `recv`, `sendrecv`.
    Vector(u32),
    /// This many blocks that belong to ranks; a chunk is a block, a slice is a part of every block.
    /// Spans of several blocks are contiguous only when there is one slice. Everything else.
    Blocks(u32),
}

impl Cut {
    /// The number of chunks.
    pub fn chunks(self) -> u32 {
        match self {
            Cut::Vector(n) | Cut::Blocks(n) => n,
        }
    }
}

/// What one rank does in a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What it was made for.
    pub spec: Spec,
    /// The chunks of `Input`.
    pub input: Cut,
    /// The chunks of `Output`.
    pub output: Cut,
    /// Whether `Scratch` is used.
    pub scratch: bool,
    /// Whether chunks of `Output` are published behind those of `Input` and not in their places.
    pub apart: bool,
    /// Whether messages and copies may be of several blocks, which are contiguous only where the
    /// engine cuts one slice: the same on every rank, though not every rank need have such a step.
    pub needs_one_slice: bool,
    /// The number of rounds: the same on every rank.
    pub rounds: u32,
    /// The steps of each channel, by ascending round. Channels are independent.
    pub channels: Vec<Vec<Step>>,
}

impl Spec {
    /// Rank 0 of a call with root 0, all ranks in one domain.
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
            domains: 1,
            hosts: Groups::ONE,
        }
    }

    /// The same for another rank.
    pub fn of_rank(&self, rank: u32) -> Spec {
        Spec {
            rank,
            ..self.clone()
        }
    }

    /// Its name.
    pub const fn method(&self) -> Method {
        Method::new(self.algorithm, self.access, self.assignment)
    }
}

impl Schedule {
    /// Whether this rank's caller gives that buffer (`Scratch`: whether the schedule says that it
    /// is used).
    pub fn has(&self, buffer: Buffer) -> bool {
        let at_root = self.spec.rank == self.spec.root;
        match (buffer, self.spec.collective) {
            (Buffer::Input, Collective::Broadcast | Collective::Scatter) => at_root,
            (Buffer::Output, Collective::Reduce | Collective::Gather) => at_root,
            (Buffer::Input, Collective::Recv) => false,
            (Buffer::Output, Collective::Send | Collective::Barrier) => false,
            (Buffer::Scratch, _) => self.scratch,
            _ => true,
        }
    }

    /// How a buffer is cut.
    pub fn cut(&self, buffer: Buffer) -> Cut {
        match buffer {
            Buffer::Output => self.output,
            Buffer::Input => self.input,
            Buffer::Scratch if self.output.chunks() > self.input.chunks() => self.output,
            Buffer::Scratch => self.input,
        }
    }

    /// Whether a message, a copy or a reduction is about several blocks at once.
    pub fn spans_blocks(&self, action: &Action) -> bool {
        let is_blocks =
            |span: Span| matches!(self.cut(span.buffer), Cut::Blocks(_)) && span.len > 1;
        action.is_asynchronous(Access::Messages) && action.spans().any(is_blocks)
    }

    /// Whether the ranks read and write each other's buffers in place.
    pub fn exposes(&self) -> bool {
        let exposes = |step: &Step| matches!(step.action, Action::Expose { .. });
        self.channels.iter().flatten().any(exposes)
    }

    /// The same work on several channels: the vector is divided into as many parts, each of which
    /// is cut into the same chunks as the whole was and handled by a channel of its own.
    ///
    /// What has no vector to divide stays as it is: schedules over blocks, the barrier, and those
    /// over published memory, whose phases are counted once for all channels.
    pub fn striped(self, channels: u32) -> Schedule {
        let divisible = matches!(self.input, Cut::Vector(_))
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
            input: Cut::Vector(self.input.chunks() * channels),
            output: Cut::Vector(self.output.chunks() * channels),
            ..self
        }
    }
}
