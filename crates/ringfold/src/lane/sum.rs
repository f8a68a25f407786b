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
use crate::reduce::{Factor, Parallel, ReductionKernel, Store};
use crate::types::{DType, Op};

/// How elements are combined.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    kernel: ReductionKernel,
    /// The factor of results.
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

    /// Combines `share` of the slots that `slot` finds by their ranks, by `parallel`; `own` is this
    /// rank's place of sums.
    pub fn combine(
        &self,
        share: &Share,
        own: Region,
        slot: impl Fn(usize) -> Region,
        parallel: &mut Parallel,
    ) -> Result<()> {
        let source = |rank| slot(rank).part(share.at.clone());
        let sources: Vec<Region> = (0..self.world_size).map(source).collect();
        let own = || own.part(0..share.at.len());
        let (target, store) = ([share.into.map_or_else(own, source)], Store::Cached);
        let mut parts = Vec::with_capacity(sources.len());
        parallel.spread(
            &self.kernel,
            &target,
            &sources,
            (self.factor, store),
            &mut parts,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;
    use crate::random::SplitMix64;

    /// Enough bytes for helpers, and no whole rows.
    const SLOT_BYTES: usize = (1 << 18) + 24;

    fn slots(random: &mut SplitMix64, ranks: usize) -> Vec<Owned> {
        let slot = |_| {
            let content: Vec<u8> = (0..SLOT_BYTES / 8)
                .flat_map(|_| random.next_u64().to_ne_bytes())
                .collect();
            let slot = Owned::zeroed(SLOT_BYTES);
            slot.region().write(&content);
            slot
        };
        (0..ranks).map(slot).collect()
    }

    fn bytes(memory: &Owned) -> Vec<u8> {
        let mut bytes = vec![0; memory.region().bytes()];
        memory.region().read(&mut bytes);
        bytes
    }

    #[test]
    fn a_share_is_a_fold_whoever_has_it_and_however_many_threads_combine() {
        let mut random = SplitMix64::stream(39, 1);
        let mut helped = Parallel::new(3, 0);
        helped.begin_call(SLOT_BYTES);
        helped.begin_flight(3);
        let types = [DType::F32, DType::BF16, DType::F16, DType::I64, DType::U8];
        let ops = [Op::Sum, Op::Avg, Op::Max, Op::Prod];
        for ranks in 1..=8 {
            let (dtype, op) = (types[ranks % types.len()], ops[ranks % ops.len()]);
            let sum = Sum::new(op, dtype, ranks).expect("an operation of the type");
            let at = 64 * (ranks - 1)..SLOT_BYTES - 64;
            for into in [None, Some(ranks - 1)] {
                let slots = slots(&mut random, ranks);
                let share = Share {
                    at: at.clone(),
                    into,
                };
                let before: Vec<Vec<u8>> = slots.iter().map(bytes).collect();
                let sources: Vec<Region> = slots
                    .iter()
                    .map(|slot| slot.region().part(at.clone()))
                    .collect();
                let due = Owned::zeroed(at.len());
                sum.kernel.fold(due.region(), &sources);
                if let Some(factor) = sum.factor {
                    let scaled = crate::reduce::scale(dtype, due.region(), due.region(), factor);
                    scaled.expect("a factor of the type");
                }
                let own = Owned::zeroed(SLOT_BYTES);
                let slot = |rank: usize| slots[rank].region();
                let combined = sum.combine(&share, own.region(), slot, &mut helped);
                combined.expect("a factor of the type");
                let found = match into {
                    Some(rank) => bytes(&slots[rank])[at.clone()].to_vec(),
                    None => bytes(&own)[..at.len()].to_vec(),
                };
                assert!(
                    found == bytes(&due),
                    "{ranks} ranks, {dtype} {op}, into {into:?}"
                );
                for (rank, slot) in slots
                    .iter()
                    .enumerate()
                    .filter(|(rank, _)| into != Some(*rank))
                {
                    assert!(
                        bytes(slot) == before[rank],
                        "the slot of rank {rank} is read"
                    );
                }
            }
        }
        helped.end_flight();
    }
}
