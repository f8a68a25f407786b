//! How a vector that devices combine is cut: into slices, and each into a block for each rank.
//!
//! All blocks of a slice are as long as the longest, in whole vectors of the kernel, so that the
//! host moves equal blocks; the last ones may have fewer elements, or none. In a slot, in a result
//! and in the rows of device memory an element stands at its distance from the slice's beginning.

#![forbid(unsafe_code)]

use std::ops::Range;

use super::text::VECTOR_BYTES;
use crate::communicator::{CallOptions, Counts, Request};
use crate::lane::program::Half;
use crate::memory::Region;
use crate::types::Collective;

/// The cut of one call, on one rank.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    pub rank: usize,
    pub world_size: usize,
    element_bytes: usize,
    /// Elements in all, and of a slice.
    count: u64,
    slice_elements: u64,
}

impl Shares {
    /// The cut of `count` elements for slots of `slot_bytes` bytes; nothing if a slot does not hold
    /// a vector for each rank, or there were too many slices to number.
    pub fn new(
        count: u64,
        element_bytes: usize,
        rank: usize,
        world_size: usize,
        slot_bytes: usize,
    ) -> Option<Shares> {
        let vectors = slot_bytes / world_size / VECTOR_BYTES;
        let block = (vectors * VECTOR_BYTES / element_bytes) as u64;
        let shares = Shares {
            rank,
            world_size,
            element_bytes,
            count,
            slice_elements: block * world_size as u64,
        };
        // Each slice has two numbers.
        let is_numbered = |slices: u64| slices <= u64::from(u32::MAX / 2);
        (block > 0 && is_numbered(count.div_ceil(shares.slice_elements))).then_some(shares)
    }

    /// The same cut, as `rank` has it.
    pub fn of_rank(self, rank: usize) -> Shares {
        Shares { rank, ..self }
    }

    /// How many slices there are.
    pub fn slices(&self) -> u32 {
        self.count.div_ceil(self.slice_elements) as u32
    }

    /// The elements of `slice`.
    pub fn elements(&self, slice: u32) -> Range<u64> {
        let begin = u64::from(slice) * self.slice_elements;
        begin..self.count.min(begin + self.slice_elements)
    }

    /// The elements of each rank's block in `slice`, those that no rank has counted.
    pub fn block_elements(&self, slice: u32) -> u64 {
        let elements = self.elements(slice);
        let longest = (elements.end - elements.start).div_ceil(self.world_size as u64);
        longest.next_multiple_of((VECTOR_BYTES / self.element_bytes) as u64)
    }

    /// The bytes of such a block.
    pub fn block_bytes(&self, slice: u32) -> usize {
        self.block_elements(slice) as usize * self.element_bytes
    }

    /// The bytes of the vector that this rank combines in `slice`, and those of the other ranks.
    pub fn own(&self, slice: u32) -> Range<usize> {
        let all = self.bytes(slice);
        let block = self.block_bytes(slice);
        let begin = all.end.min(all.start + self.rank * block);
        begin..all.end.min(begin + block)
    }

    pub fn foreign(&self, slice: u32) -> impl Iterator<Item = Range<usize>> {
        let (all, own) = (self.bytes(slice), self.own(slice));
        let around = [all.start..own.start, own.end..all.end];
        around.into_iter().filter(|range| !range.is_empty())
    }

    /// The call on the host for `half` of the all-reduce `of`, without memory, and the bytes of its
    /// input and output.
    pub fn of_half<M>(&self, half: Half, of: &Request<M>) -> (Request, [usize; 2]) {
        let (Half::Scatter(slice) | Half::Gather(slice)) = half;
        let block = self.block_bytes(slice);
        let all = block * self.world_size;
        let (collective, given) = match half {
            Half::Scatter(_) => (Collective::AllToAll, all),
            Half::Gather(_) => (Collective::AllGather, block),
        };
        let elements = self.elements(slice);
        let counts = Counts::Even(self.block_elements(slice));
        let nothing = Region::EMPTY;
        let request = Request {
            op: of.op,
            options: CallOptions {
                timeout: of.options.timeout,
                ..CallOptions::default()
            },
            share: Some((elements.end - elements.start) as u32),
            ..Request::new(collective, of.dtype, counts, nothing, nothing)
        };
        (request, [given, all])
    }

    /// The bytes of the vector in `slice`.
    pub fn bytes(&self, slice: u32) -> Range<usize> {
        let elements = self.elements(slice);
        let bytes = |elements: u64| elements as usize * self.element_bytes;
        bytes(elements.start)..bytes(elements.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_vectors_and_cover_the_slice_once() {
        for world_size in [1, 2, 3, 5, 8] {
            for count in [1, 3, 4, 17, 1000, 4096] {
                let shares = |rank| Shares::new(count, 4, rank, world_size, 512).unwrap();
                for slice in 0..shares(0).slices() {
                    let block = shares(0).block_bytes(slice);
                    assert!(block.is_multiple_of(VECTOR_BYTES) && block * world_size <= 512);
                    let mut end = shares(0).bytes(slice).start;
                    for rank in 0..world_size {
                        let own = shares(rank).own(slice);
                        let foreign: usize =
                            shares(rank).foreign(slice).map(|range| range.len()).sum();
                        assert_eq!(own.len() + foreign, shares(rank).bytes(slice).len());
                        assert!(own.start == end && own.len() <= block);
                        end = own.end;
                    }
                    assert_eq!(end, shares(0).bytes(slice).end);
                }
                let last = shares(0).slices() - 1;
                assert_eq!(shares(0).bytes(last).end, count as usize * 4);
            }
        }
        assert!(Shares::new(1, 4, 0, 33, 512).is_none());
    }
}
