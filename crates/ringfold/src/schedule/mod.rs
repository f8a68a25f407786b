//! Schedules: what each rank does in a collective, as data.
//!
//! A generator (one file an algorithm) is a pure function from a [`Spec`] to this rank's
//! [`Schedule`]: steps over chunks. It does no I/O and reads no clock and no variable. The engine
//! runs schedules, the checker proves them, the cost model prices them, the simulator times them
//! and the printer shows them.
//!
//! # Model
//!
//! The buffers `Input`, `Output` and `Scratch` are cut into chunks by the engine; a schedule only
//! counts them. The engine runs the whole schedule once for each *slice* (an independent part of
//! every chunk) and overlaps slices. Steps carry the *round* in which they take place; a send and
//! its receive have the same round. Within a round, receives stand before sends, so that no
//! receive waits behind its rank's own send.
//!
//! # Invariants (proved by [`check`])
//!
//! * On each ordered pair of ranks, the k-th send matches the k-th receive: same round, same number
//!   of elements.
//! * Steps are issued in order; a send, receive or receive-and-reduce may complete later, over
//!   messages a copy or reduction, too. A step waits for earlier steps that touch the same chunks
//!   (read-write, write-read, write-write), and for nothing else. Under these rules nothing
//!   deadlocks, even if a send completes only when its receive was posted.
//! * Every contribution arrives exactly once where it must; reducing ranks end with the same
//!   expression, so the same bits.
//! * `Input` is never written, unless it is the same memory as `Output` (in place): then both are
//!   one buffer.

#![forbid(unsafe_code)]

pub mod check;
pub mod dependence;
pub mod print;

mod build;
mod catalogue;
mod claim;
mod direct;
mod flat;
mod halving;
mod hierarchical;
mod one_shot;
mod point;
mod protocols;
mod push;
mod rabenseifner;
mod recursive_doubling;
mod ring;
pub mod rounds;
mod serve;
pub mod stragglar;
mod tree;
mod weights;

pub use protocols::{LL_SHARED_BYTES, ll_bytes_max};
pub use weights::{Weighting, Weights};

use crate::error::Result;
pub use crate::types::{Access, Assignment};
use crate::types::{Algorithm, Collective, Method};

/// The buffers a step may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// What the caller gave to read.
    Input,
    /// What the caller gave to fill.
    Output,
    /// The engine's own memory, undefined at the start, cut like `Input`.
    Scratch,
}

/// `len` consecutive chunks of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Which buffer.
    pub buffer: Buffer,
    /// The first chunk.
    pub first: u32,
    /// How many chunks; never 0, except in a publication that says only that a phase is reached.
    pub len: u32,
}

/// Whom an `Await` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peers {
    /// All ranks but this one.
    Others,
    /// One rank.
    One(u32),
}

/// Whose exposed memory a `Push` or a `Serve` reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ranks {
    /// That of all ranks, this one among them.
    All,
    /// That of one rank, which may be this one.
    One(u32),
}

/// Ranks at equal distances: `first`, `first + step` and so on, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Members {
    /// The lowest of them.
    pub first: u32,
    /// From one to the next.
    pub step: u32,
    /// How many.
    pub count: u32,
}

impl Members {
    /// All ranks of a world.
    pub fn all(world_size: u32) -> Members {
        Members {
            first: 0,
            step: 1,
            count: world_size,
        }
    }

    /// Their ranks, ascending.
    pub fn ranks(self) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |number| self.first + number * self.step)
    }

    /// All but `rank`, which is one of them, starting with the next.
    pub(crate) fn others(self, rank: u32) -> impl Iterator<Item = u32> {
        let own = (rank - self.first) / self.step;
        (1..self.count).map(move |by| self.first + (own + by) % self.count * self.step)
    }
}

/// One thing that a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends the span to the peer. May complete later.
    Send { peer: u32, span: Span },
    /// Fills the span with the peer's next message. May complete later.
    Recv { peer: u32, span: Span },
    /// `into` = the peer's next message combined with `with`; `with` may equal `into`. May complete
    /// later.
    RecvReduce { peer: u32, with: Span, into: Span },
    /// `into` = `from`. Nothing if both are the same memory.
    Copy { from: Span, into: Span },
    /// `into` = `with` combined with `from`; `with` may equal `into`.
    Reduce { with: Span, from: Span, into: Span },
    /// Makes the span visible to the ranks of this host, at the place of its chunks, and says that
    /// `phase` is reached, and with it all phases before: the phases of a rank's publications
    /// strictly rise. Published chunks stay readable until every rank has finished the slice.
    Publish { span: Span, phase: u8 },
    /// Waits until the peers have reached `phase`.
    Await { peers: Peers, phase: u8 },
    /// `into` = chunks `first..first + into.len` as `peer` published them (chunk numbers of the
    /// peer's span).
    CopyFrom { peer: u32, first: u32, into: Span },
    /// `into` = the chunks of `among`, this rank among them, combined in rank order: the peers' as
    /// published under `own`'s chunk numbers, this rank's from `own` itself.
    ReduceFrom {
        among: Members,
        own: Span,
        into: Span,
    },
    /// Says where this rank's input and output lie, and that `phase` is reached, as `Publish` does:
    /// peers may read the one and read or write the other in place, until this rank has heard from
    /// them that they are done.
    Expose { phase: u8 },
    /// Reads `from` where the buffers of each of `sources` lie, combines it in rank order, and
    /// stores the result to `into` where the output of each of `targets` lies.
    Push {
        sources: Ranks,
        from: Span,
        targets: Ranks,
        into: Span,
    },
    /// Puts the span where each peer published the same chunks, which this rank alone has read, and
    /// says that `phase` is reached, as `Publish` does.
    GiveBack { span: Span, phase: u8 },
    /// `into` = the same chunks of what this rank published, as `peer` gave them back.
    TakeBack { peer: u32, into: Span },
    /// Chunks `first..first + len` as all ranks published them, combined in rank order in the place
    /// where rank 0 published them: block by block, each by whichever rank claims it. Every rank
    /// offers itself, and none reads what it was made of afterwards.
    Combine { first: u32, len: u32 },
    /// Waits until every block of these chunks is combined. `into` = what they are.
    Collect { into: Span },
    /// What `Push` does, block by block, each by whichever rank claims it. Every rank offers
    /// itself. The blocks are done when `AwaitServed` is over, and their memory is touched by
    /// others until then.
    Serve {
        sources: Ranks,
        from: Span,
        targets: Ranks,
        into: Span,
    },
    /// Waits until every block is served of which the results go to these chunks.
    AwaitServed { span: Span },
}

/// An action and its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The round, counted from 0; equal for a send and its receive.
    pub round: u32,
    /// What is done.
    pub action: Action,
}

impl Ranks {
    /// How many they are.
    pub fn count(self, world_size: u32) -> u32 {
        match self {
            Ranks::All => world_size,
            Ranks::One(_) => 1,
        }
    }

    /// Their numbers, in order.
    pub fn numbers(self, world_size: u32) -> std::ops::Range<u32> {
        match self {
            Ranks::All => 0..world_size,
            Ranks::One(rank) => rank..rank + 1,
        }
    }
}

/// What a schedule is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// The chunks of `Input` (and of `Scratch`).
    pub input: Cut,
    /// The chunks of `Output`.
    pub output: Cut,
    /// Whether `Scratch` is used.
    pub scratch: bool,
    /// Whether chunks of `Output` are published behind those of `Input` and not in their places.
    pub apart: bool,
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
        }
    }

    /// Its name.
    pub const fn method(&self) -> Method {
        Method::new(self.algorithm, self.access, self.assignment)
    }
}

impl Schedule {
    /// The schedule of `spec`'s rank. `Unsupported` when the algorithm does not serve the
    /// collective with this access.
    pub fn new(spec: Spec) -> Result<Schedule> {
        catalogue::generate(&spec)
    }

    /// What carries out a collective with this access, in the order of [`Method::ALL`].
    pub fn methods(collective: Collective, access: Access) -> &'static [Method] {
        catalogue::methods(collective, access)
    }

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

    /// Whether a message holds several blocks, which are contiguous only when the engine cuts one
    /// slice.
    pub fn needs_one_slice(&self) -> bool {
        let blocks = |span: Span| {
            let cut = match span.buffer {
                Buffer::Output => self.output,
                Buffer::Input | Buffer::Scratch => self.input,
            };
            matches!(cut, Cut::Blocks(_)) && span.len > 1
        };
        self.channels
            .iter()
            .flatten()
            .any(|step| step.action.is_message() && step.action.spans().any(blocks))
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
        match (
            self.input.chunks(),
            self.output.chunks(),
            self.channels.as_slice(),
        ) {
            (input, output, [steps]) if divisible && channels > 1 => {
                let part = |channel: u32| {
                    let moved = |span: Span| Span {
                        first: span.first
                            + channel
                                * if span.buffer == Buffer::Output {
                                    output
                                } else {
                                    input
                                },
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
                    input: Cut::Vector(input * channels),
                    output: Cut::Vector(output * channels),
                    ..self
                }
            }
            _ => self,
        }
    }
}
