//! The combination of elements where they stand: in the slots of all ranks.
//!
//! A rank's share of a slice has the same place in all slots. The rank reads it from each of them,
//! in the order of the canonical tree, and stores the result over one of the sources, whose lines
//! were just read. So of n ranks each moves 1 + 1/n bytes for a byte of a slice. Of a short call
//! each rank combines by itself what it gets, into a place of its own. The bits are those of calls
//! on the host.

#![forbid(unsafe_code)]

use super::cut::Share;
use crate::error::Result;
use crate::memory::Region;
use crate::reduce::{Factor, ReductionKernel, Store};
use crate::types::{DType, Op};

/// How elements are combined.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    kernel: ReductionKernel,
    /// By which results are scaled.
    factor: Option<Factor>,
    world_size: usize,
}

impl Sum {
    /// The combination of `world_size` ranks' elements. An error if the type has no such operation.
    pub fn new(op: Op, dtype: DType, world_size: usize) -> Result<Sum> {
        Ok(Sum {
            kernel: ReductionKernel::new(op, dtype)?,
            factor: (op == Op::Avg).then(|| Factor::average(dtype, world_size)),
            world_size,
        })
    }

    /// Combines `share` of the slots that `slot` finds by their ranks; `own` is this rank's place
    /// of sums.
    pub fn combine(
        &self,
        share: &Share,
        own: Region,
        slot: impl Fn(usize) -> Region,
    ) -> Result<()> {
        let source = |rank| slot(rank).part(share.at.clone());
        let sources: Vec<Region> = (0..self.world_size).map(source).collect();
        let own = || own.part(0..share.at.len());
        let (target, store) = ([share.into.map_or_else(own, source)], Store::Cached);
        let mut parts = Vec::with_capacity(sources.len());
        self.kernel
            .spread(&target, &sources, self.factor, store, &mut parts)
    }
}
