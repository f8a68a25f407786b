//! The order in which a method combines the values of the ranks.
//!
//! The order of the *canonical tree* is defined by the ranks alone: the tree of one rank is its
//! value; the tree of `n` ranks is the tree of the first `p` combined with the tree of the rest,
//! where `p` is the largest power of two below `n`. Methods that combine in this order give the
//! same bits, for any size of a call and any division of its data. A world whose ranks each give
//! the combination of an aligned block of a power of two values gives the bits of a world with one
//! value for each rank.
//!
//! This registry says which methods keep to the tree; [`check`](super::check) proves it.

#![forbid(unsafe_code)]

use super::groups::Groups;
use super::spec::Spec;
use crate::types::{Algorithm, Collective, DType, Op};

/// The order in which a method combines the values of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Another order than that of the canonical tree.
    Other,
    /// The canonical tree; ranks combine partial results of other ranks, which are rounded to the
    /// type of the elements.
    Partials,
    /// The canonical tree; ranks combine partial results of other ranks, which are kept in `F32` if
    /// they would be rounded otherwise ([`Spec::is_wide`]).
    WidePartials,
    /// The canonical tree; each result is combined at once, from the ranks' own values.
    Leaves,
}

impl Order {
    /// Returns the order of a method in a collective that reduces.
    pub fn new(collective: Collective, algorithm: Algorithm, ranks: RankLayout) -> Order {
        use Collective::{AllReduce, Reduce, ReduceScatter};
        let is_tree = match (algorithm, collective) {
            // Both orders of two values are the same.
            _ if ranks.world_size <= 2 => return Order::Leaves,
            (Algorithm::Direct | Algorithm::OneShot | Algorithm::Flat, _) => return Order::Leaves,
            (Algorithm::Tree, _) => true,
            (Algorithm::RecursiveDoubling, AllReduce) => is_paired(ranks.world_size),
            (Algorithm::Rabenseifner, AllReduce) => is_paired(ranks.world_size),
            _ if !ranks.are_blocks || !ranks.is_reproducible => false,
            (Algorithm::Hierarchical, AllReduce | ReduceScatter) if ranks.hosts > 1 => {
                return Order::WidePartials;
            }
            (Algorithm::Leader, Reduce) => true,
            (Algorithm::Leader | Algorithm::MultiLeader, AllReduce) => is_paired(ranks.hosts),
            (Algorithm::Leader | Algorithm::Hierarchical, AllReduce | Reduce | ReduceScatter) => {
                ranks.hosts <= 2
            }
            _ => false,
        };
        match is_tree {
            true => Order::Partials,
            false => Order::Other,
        }
    }

    /// Whether the results of an operation are those of the canonical tree.
    pub fn is_canonical(self, op: Op, dtype: DType) -> bool {
        match self {
            Order::Other => false,
            Order::Partials => !rounds(op, dtype),
            Order::WidePartials | Order::Leaves => true,
        }
    }
}

/// The ranks, as far as the order of a method depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankLayout {
    /// Number of ranks.
    pub world_size: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Whether the hosts hold consecutive blocks of the ranks, see [`Groups::are_blocks`].
    pub are_blocks: bool,
    /// Whether two levels are to keep the order, see [`Spec::is_reproducible`].
    pub is_reproducible: bool,
}

impl Spec {
    /// Keeps partial results of `op` wide, if the method needs that for the canonical tree.
    pub fn widen(&mut self, op: Op, dtype: DType) {
        self.is_wide =
            self.is_reproducible && rounds(op, dtype) && self.order() == Order::WidePartials;
    }

    /// Returns the order of the method, for a collective that reduces.
    pub fn order(&self) -> Order {
        let ranks = RankLayout {
            world_size: self.world_size,
            hosts: self.hosts.count(),
            are_blocks: self.hosts.are_blocks(self.world_size),
            is_reproducible: self.is_reproducible,
        };
        Order::new(self.collective, self.algorithm, ranks)
    }
}

impl Groups {
    /// Whether the groups are consecutive blocks of the ranks, all of the same size, a power of
    /// two, but for the last block, which may be smaller: the canonical tree of all ranks is then
    /// the tree of the groups' trees.
    pub fn are_blocks(&self, world_size: u32) -> bool {
        let members = self.members(world_size);
        let size = members[0].len() as u32;
        let is_block = |(number, ranks): (u32, &Vec<u32>)| {
            let first = number * size;
            let last = (first + size).min(world_size);
            ranks.iter().copied().eq(first..last)
        };
        members.len() == 1 || size.is_power_of_two() && (0..).zip(&members).all(is_block)
    }
}

/// Whether pairs at doubling distance, after ranks beyond a power of two have joined their
/// neighbours ([`halving`](super::halving)), are the pairs of the canonical tree.
fn is_paired(world_size: u32) -> bool {
    let mut core = 1 << world_size.ilog2();
    let mut extra = world_size - core;
    while extra > 0 {
        core /= 2;
        // The pairs must fill the first half of the core.
        if extra < core {
            return false;
        }
        extra -= core;
    }
    true
}

/// Whether partial results are rounded: those of short floats, which are accumulated in `F32`.
fn rounds(op: Op, dtype: DType) -> bool {
    let is_exact = matches!(op.combining(), Op::Min | Op::Max);
    dtype.is_float() && dtype.size_bytes() < 4 && !is_exact
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_equal_blocks_are_recognised() {
        let are_blocks = |of_ranks: &[u32]| Groups::new(of_ranks).are_blocks(of_ranks.len() as u32);
        for blocks in [
            vec![0, 0, 0],
            vec![0, 1, 2],
            vec![0, 0, 1, 1, 2],
            vec![0, 0, 0, 0, 1],
        ] {
            assert!(are_blocks(&blocks), "{blocks:?}");
        }
        for other in [
            vec![0, 1, 1],
            vec![0, 1, 0, 1],
            vec![0, 0, 0, 1, 1, 1],
            vec![0, 0, 1, 2, 2],
        ] {
            assert!(!are_blocks(&other), "{other:?}");
        }
    }
}
