//! The tuner's question: the facts about a call from which its way is chosen.

#![forbid(unsafe_code)]

use super::Limits;
use crate::schedule::Order;
use crate::types::{Collective, DType, Method, Op, Protocol};

/// The demand of a call on the order in which values are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OrderDemand {
    /// Any order.
    #[default]
    Any,
    /// That of the canonical tree ([`Order`]).
    Canonical,
    /// That of the canonical tree, for floats of 16 bits, whose partial results need `F32`.
    CanonicalHalf,
    /// The same for floats of 8 bits.
    CanonicalQuarter,
}

impl OrderDemand {
    /// Returns the demand of a reproducible combination of elements.
    pub fn reproducible(op: Op, dtype: DType) -> OrderDemand {
        match (Order::Partials.is_canonical(op, dtype), dtype.size_bytes()) {
            (true, _) => OrderDemand::Canonical,
            (false, 1) => OrderDemand::CanonicalQuarter,
            (false, _) => OrderDemand::CanonicalHalf,
        }
    }

    /// Returns the length of a partial result as a multiple of that of a value.
    pub fn width(self) -> f64 {
        match self {
            OrderDemand::Any | OrderDemand::Canonical => 1.0,
            OrderDemand::CanonicalHalf => 2.0,
            OrderDemand::CanonicalQuarter => 4.0,
        }
    }

    /// Whether a method of this order meets the demand.
    pub fn admits(self, order: Order) -> bool {
        match self {
            OrderDemand::Any => true,
            OrderDemand::Canonical => order != Order::Other,
            OrderDemand::CanonicalHalf | OrderDemand::CanonicalQuarter => {
                matches!(order, Order::WidePartials | Order::Leaves)
            }
        }
    }
}

/// A call as the tuner, its rules and its plugins see it: facts about the call and its communicator
/// that are equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the vector, or of all blocks together; 0 if each pair has counts that no third rank
    /// knows.
    pub bytes: u64,
    /// The number of ranks.
    pub world_size: usize,
    /// The number of hosts.
    pub hosts: usize,
    /// The number of runs of consecutive ranks of one host: the number of hosts if the ranks of
    /// each are consecutive, more if ranks are dealt out.
    pub runs: usize,
    /// Number of domains of equal size (last-level caches, sockets) that hold the ranks in rank
    /// order; 1 if the ranks are placed otherwise.
    pub domains: usize,
    /// Bytes that one rank can publish in one slice, if all ranks are on one host.
    pub slot_bytes: Option<usize>,
    /// Whether the buffers are registered on all ranks, or may be, and all ranks share a host.
    pub is_registered: bool,
    /// Whether messages within one of several hosts may be lent from registered memory, which
    /// affects prices only.
    pub lends: bool,
    /// The least block that ranks read from the memory of a sender of their host, if they can.
    pub read_bytes_min: Option<u64>,
    /// Whether counts differ from rank to rank.
    pub is_uneven: bool,
    /// Whether each pair has counts that no third rank knows.
    pub is_pairwise: bool,
    /// Number of calls that are made together; 1 for a single one.
    pub group: u32,
    /// The algorithm that the caller requested.
    pub algorithm: Option<Method>,
    /// The protocol that the caller requested.
    pub protocol: Option<Protocol>,
    /// The demand on the order of a reduction.
    pub order: OrderDemand,
    /// Whether the hosts hold consecutive blocks of the ranks, see [`Groups::are_blocks`].
    ///
    /// [`Groups::are_blocks`]: crate::schedule::Groups::are_blocks
    pub are_blocks: bool,
    /// Whether the ranks' shares follow the communicator's ownership weights.
    pub is_weighted: bool,
    /// Whether the call is a ring that bypasses slow ranks.
    pub bypasses_stragglers: bool,
}

impl Question {
    /// Returns a single call with even counts in ordinary memory, of ranks of one host that share
    /// no memory.
    pub const fn new(collective: Collective, bytes: u64, world_size: usize) -> Question {
        Question {
            collective,
            bytes,
            world_size,
            hosts: 1,
            runs: 1,
            domains: 1,
            slot_bytes: None,
            is_registered: false,
            lends: false,
            read_bytes_min: None,
            is_uneven: false,
            is_pairwise: false,
            group: 1,
            algorithm: None,
            protocol: None,
            order: OrderDemand::Any,
            are_blocks: true,
            is_weighted: false,
            bypasses_stragglers: false,
        }
    }

    /// Returns the question for a communicator that has ownership weights, or whose rings bypass
    /// slow ranks. Weights apply to all-reduces by `direct`, the bypass to all-reduces and
    /// reduce-scatters by `ring` of three ranks or more: if the call requests that algorithm, or
    /// requests none and is large.
    pub fn with_policies(
        mut self,
        has_weights: bool,
        has_bypass: bool,
        limits: &Limits,
    ) -> Question {
        use Collective::{AllReduce, ReduceScatter};
        let is_large = self.bytes > limits.latency_bytes_max;
        let is_for = |method| {
            self.algorithm
                .map_or(is_large, |requested| requested == method)
        };
        // A ring that bypasses slow ranks has an order of its own.
        let has_bypass = has_bypass && self.order == OrderDemand::Any;
        self.is_weighted = has_weights && self.collective == AllReduce && is_for(Method::Direct);
        self.bypasses_stragglers = has_bypass
            && matches!(self.collective, AllReduce | ReduceScatter)
            && self.world_size > 2
            && is_for(Method::Ring);
        self
    }
}
