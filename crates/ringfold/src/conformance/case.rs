//! The parameters of a call of the suite.

use crate::call::Way;
use crate::communicator::{Counts, Request};
use crate::schedule::{Weights, ll_bytes_max};
use crate::types::{Access, Assignment, Collective, DType, Method, Op, Protocol};

/// The parameters of one call of all ranks.
#[derive(Clone, Debug)]
pub struct Case {
    pub collective: Collective,
    pub algorithm: Method,
    pub access: Access,
    /// The protocol; `None` chooses at random among those that can carry the call.
    pub protocol: Option<Protocol>,
    pub dtype: DType,
    pub op: Op,
    pub root: usize,
    pub counts: Counts,
    pub in_place: bool,
    pub slice_bytes: usize,
    pub channels: usize,
    pub registered: Option<Assignment>,
    pub weights: Option<Weights>,
    pub is_reproducible: bool,
}

impl Case {
    /// Returns an out-of-place call on `f32` elements, with a sum if the collective reduces.
    pub fn new(collective: Collective, algorithm: Method, access: Access, count: u64) -> Case {
        Case {
            collective,
            algorithm,
            access,
            protocol: None,
            dtype: DType::F32,
            op: Op::Sum,
            root: 0,
            counts: Counts::Even(count),
            in_place: false,
            slice_bytes: 1 << 10,
            channels: 1,
            registered: None,
            weights: None,
            is_reproducible: false,
        }
    }
}

impl Case {
    /// Returns the way of the call; `is_inline` applies unless its access is registered.
    pub fn way(&self, is_inline: bool) -> Way {
        Way {
            algorithm: self.algorithm.algorithm(),
            access: self.access,
            assignment: self.algorithm.assignment(),
            is_inline: is_inline && self.access != Access::Registered,
            slice_bytes: self.slice_bytes,
            channels: self.channels,
            registered: self.registered,
            reads: false,
            non_temporal_stores: true,
            is_weighted: self.weights.is_some(),
            is_reproducible: self.is_reproducible,
        }
    }
}

/// Returns whether `ll` can carry `request`.
pub fn goes_by_ll(case: &Case, request: &Request, world_size: usize) -> bool {
    let most = ll_bytes_max(case.collective, case.algorithm, world_size);
    let is_even = !request.is_uneven() && case.weights.is_none();
    let is_plain = is_even && case.access == Access::Staged;
    is_plain && most.is_some_and(|most| request.bytes(world_size) <= most)
}
