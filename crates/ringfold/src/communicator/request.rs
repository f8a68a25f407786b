//! A call as its caller makes it.

#![forbid(unsafe_code)]

use std::time::Duration;

use crate::engine;
use crate::memory::Region;
use crate::types::{Collective, DType, Method, Op, Protocol};

/// The number of elements of a request.
///
/// `AllReduce`, `Broadcast`, `Reduce`, `Send`, `Recv`, `SendRecv`: the whole buffer. `AllGather`,
/// `Gather`: one rank's input (the output has `world_size` times that). `ReduceScatter`, `Scatter`:
/// one rank's output (the input has `world_size` times that). `AllToAll`: one block (both have
/// `world_size` blocks). `Barrier`: 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// The same count for every rank.
    Even(u64),
    /// One count per rank, for `AllGather`, `Gather` (each rank's input), `ReduceScatter`,
    /// `Scatter` (each rank's output): the same list on every rank.
    PerRank(Vec<u64>),
    /// This rank's counts to each rank, and from each rank, for `AllToAll` only.
    Pairwise {
        /// Elements for each rank, in rank order in the input.
        input: Vec<u64>,
        /// Elements from each rank, in rank order in the output.
        output: Vec<u64>,
    },
}

impl Counts {
    /// Returns a number for the variant.
    #[inline]
    pub(super) fn kind(&self) -> u64 {
        match self {
            Counts::Even(_) => 0,
            Counts::PerRank(_) => 1,
            Counts::Pairwise { .. } => 2,
        }
    }
}

/// The other rank of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// None, for a collective without a root.
    #[default]
    None,
    /// The root of a `Broadcast`, `Reduce`, `Gather` or `Scatter`.
    Root(usize),
    /// The receiver of a `Send`, or the sender of a `Recv`.
    Peer(usize),
    /// Any sender: a `Recv` takes the oldest message that has its tag.
    AnySource,
}

impl Target {
    /// Returns `rank` as the root or the peer of `collective`; `None` if `collective` has neither.
    #[inline]
    pub fn of(collective: Collective, rank: usize) -> Target {
        match collective {
            _ if collective.has_root() => Target::Root(rank),
            _ if collective.is_message() => Target::Peer(rank),
            _ => Target::None,
        }
    }
}

/// How one call is carried out, instead of the communicator's settings.
///
/// All ranks set the same algorithm, protocol and `reproducible`; each rank has its own deadline.
/// The default sets none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// The method, instead of the tuner's choice. With memory of a device, the method of the CPUs.
    pub algorithm: Option<Method>,
    /// The protocol, instead of the tuner's choice.
    pub protocol: Option<Protocol>,
    /// Whether the result is that of the canonical tree ([`Config::reproducible`]), also if the
    /// communicator's are not.
    ///
    /// [`Config::reproducible`]: crate::Config::reproducible
    pub reproducible: bool,
    /// The deadline, instead of the communicator's. With memory of a device, counted from the
    /// arrival of the data.
    pub timeout: Option<Duration>,
}

impl CallOptions {
    /// Whether a device may combine the elements: kernels combine in an order of their own.
    pub(crate) fn leave_reduction_open(&self) -> bool {
        self.algorithm.is_none() && !self.reproducible
    }
}

/// One untyped call: the basis of the typed methods, the bindings and `perf`. The memory is the
/// host's, or a device's in a [`DeviceRequest`](crate::DeviceRequest).
#[derive(Clone, Debug)]
pub struct Request<M = Region> {
    /// The collective.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DType,
    /// The operation that combines the elements; ignored if the collective does not reduce.
    pub op: Op,
    /// The root or the peer. Ignored by collectives that have neither.
    pub target: Target,
    /// The number by which a receive finds its message, for `Send` and `Recv`.
    pub tag: u32,
    /// The number of elements.
    pub counts: Counts,
    /// The input; empty on ranks that have none. The call is in place if its input is the same
    /// memory as (its part of) `output`.
    pub input: M,
    /// The output; empty on ranks that have none.
    pub output: M,
    /// The settings of this call.
    pub options: CallOptions,
    /// Number of calls that are made together, which the tuner takes into account; the same on all
    /// ranks. 1 for a single call.
    pub group: u32,
    /// Digest of all counts of the longer call of which this call is a slice. Ranks compare it. For
    /// lanes.
    #[doc(hidden)]
    pub whole: Option<u32>,
}

impl<M> Request<M> {
    /// Creates a request with defaults: `Sum`, no root or peer, tag 0, the tuner's choice of the
    /// method, the communicator's deadline.
    pub fn new(
        collective: Collective,
        dtype: DType,
        counts: Counts,
        input: M,
        output: M,
    ) -> Request<M> {
        Request {
            collective,
            dtype,
            op: Op::Sum,
            target: Target::None,
            tag: 0,
            counts,
            input,
            output,
            options: CallOptions::default(),
            group: 1,
            whole: None,
        }
    }
}

impl<M> Request<M> {
    /// Returns the root or the peer as a job has it.
    #[inline(always)]
    pub(crate) fn root(&self) -> usize {
        match self.target {
            Target::None => 0,
            Target::Root(rank) | Target::Peer(rank) => rank,
            Target::AnySource => engine::ANY_SOURCE,
        }
    }
}

impl Request {
    /// Returns the bytes that the tuner counts: the vector's, or one block's times the number of
    /// ranks. 0 if each pair has its own counts, because no rank knows them all. The maximum if the
    /// counts are absurd.
    #[inline]
    pub(crate) fn bytes(&self, world_size: usize) -> u64 {
        // Not checked yet: `check` refuses counts that saturate.
        let elements = match &self.counts {
            Counts::Even(count) if is_vector(self.collective) => *count,
            Counts::Even(count) => count.saturating_mul(world_size as u64),
            Counts::PerRank(counts) => counts.iter().copied().fold(0, u64::saturating_add),
            Counts::Pairwise { .. } => 0,
        };
        elements.saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// Whether counts differ from rank to rank.
    pub(crate) fn is_uneven(&self) -> bool {
        !matches!(self.counts, Counts::Even(_))
    }
}

pub(super) fn is_vector(collective: Collective) -> bool {
    use Collective::{AllReduce, Barrier, Broadcast, Recv, Reduce, Send, SendRecv};
    matches!(
        collective,
        AllReduce | Broadcast | Reduce | Send | Recv | SendRecv | Barrier
    )
}
