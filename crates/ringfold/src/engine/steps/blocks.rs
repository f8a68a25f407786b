//! Work that ranks share block by block: any running rank claims the next block. The rank that
//! completes the last block wakes all.
//!
//! In staged memory, the blocks of a slice are claimed in order. In registered buffers, every rank
//! has a home share of the vector. A rank first claims the blocks of its own share, which are in
//! its core's cache, then unclaimed blocks of others, its neighbours' first: they may share a core.

use std::ops::Range;

use super::channel::{Channel, Issue};
use super::registered::{ATTEMPT_BYTES, Ends};
use crate::engine::context::windows;
use crate::error::Result;
use crate::schedule::{Access, Buffer, Combine, Span};
use crate::transport::Windows;

/// Number of bytes that one rank claims at a time: large enough that a claim costs little, small
/// enough that other ranks do not wait long for a rank that loses its core meanwhile.
const BLOCK_BYTES_MAX: usize = 16 << 10;

/// Minimum size of a block; less is not worth a claim.
const BLOCK_BYTES_MIN: usize = 4 << 10;

/// A vector cut into blocks to be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClaimableBlocks {
    bytes: usize,
    block_bytes: usize,
    ranks: usize,
}

impl ClaimableBlocks {
    fn new(bytes: usize, ranks: usize) -> ClaimableBlocks {
        let wanted = (bytes / ranks).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        let least = bytes.div_ceil(Windows::BLOCKS_MAX as usize);
        ClaimableBlocks {
            bytes,
            block_bytes: wanted.max(least).next_multiple_of(64),
            ranks,
        }
    }

    fn count(self) -> u32 {
        let count = self.bytes.div_ceil(self.block_bytes);
        u32::try_from(count).expect("blocks are made large enough")
    }

    /// Returns the numbers of the blocks in a rank's home share.
    fn of(self, home: usize) -> Range<u32> {
        let until = |home: usize| (self.count() as usize * home / self.ranks) as u32;
        until(home)..until(home + 1)
    }

    fn range(self, block: u32) -> Range<usize> {
        let begin = block as usize * self.block_bytes;
        begin..self.bytes.min(begin + self.block_bytes)
    }
}

/// Returns all ranks: this one first, then its neighbours, so that ranks of the same half, quarter
/// and so on precede others.
fn homes(own: usize, ranks: usize) -> impl Iterator<Item = usize> {
    let places = 0..ranks.next_power_of_two();
    places
        .map(move |place| own ^ place)
        .filter(move |home| *home < ranks)
}

/// Returns the number of blocks of a published slice.
fn staged_blocks(bytes: usize) -> u32 {
    let blocks = bytes.div_ceil(BLOCK_BYTES_MAX);
    u32::try_from(blocks).expect("slices are cut to fit slots")
}

impl Channel<'_> {
    /// Reduces the published blocks that no other rank claims.
    pub(super) fn combine_staged(&mut self, combine: &Combine) -> Result<Issue> {
        let (operation, generation) = (self.operation, self.generation());
        let bytes = self.region(combine.from).bytes();
        let whole = self.slot_range(combine.from.buffer, combine.from.first, bytes);
        let blocks = staged_blocks(bytes);
        let windows = windows(&mut self.context.windows)?;
        while let Some(block) = windows.claim(generation, blocks) {
            let begin = whole.start + block as usize * BLOCK_BYTES_MAX;
            let range = begin..whole.end.min(begin + BLOCK_BYTES_MAX);
            let place = |rank: u32| windows.slot(rank as usize, generation, range.clone());
            let operands = &mut self.context.operands;
            operands.clear();
            operands.extend(combine.sources.ranks().map(place));
            let target = place(combine.targets.first);
            operation.kernel().fold(target, operands);
            windows.complete(generation, blocks);
        }
        Ok(Issue::Done)
    }

    /// Processes the blocks of registered buffers that no other rank claims.
    pub(super) fn serve(&mut self, combine: &Combine, ends: &Ends) -> Result<Issue> {
        let (generation, world_size) = (self.generation(), self.context.world_size);
        let blocks = ClaimableBlocks::new(ends.into.len(), world_size);
        let copies = combine.sources.count + combine.targets.count;
        let mut left = ATTEMPT_BYTES;
        for home in homes(self.context.rank, world_size) {
            let of_home = blocks.of(home);
            let count = of_home.len() as u32;
            while let Some(number) =
                windows(&mut self.context.windows)?.claim_of(home, generation, count)
            {
                let part = blocks.range(of_home.start + number);
                let bytes = part.len();
                self.push_part(combine, ends, part)?;
                windows(&mut self.context.windows)?.complete(generation, blocks.count());
                left = left.saturating_sub(bytes * copies as usize);
                if left == 0 {
                    // Not 0, so that the ranks' agreement is not queried again.
                    self.at.pushed = 1;
                    return Ok(Issue::Begun);
                }
            }
        }
        self.at.pushed = 0;
        Ok(Issue::Done)
    }

    /// Completes once all blocks of `into` are done; copies a staged result from rank 0's slot.
    pub(super) fn collect(&mut self, access: Access, into: Span) -> Result<Issue> {
        let generation = self.generation();
        let cut = &self.operation.buffers.output_cut;
        let bytes = cut.range(into.first, into.len, self.at.slice).len();
        let is_staged = access == Access::Staged;
        let count = match is_staged {
            true => staged_blocks(bytes),
            false => ClaimableBlocks::new(bytes, self.context.world_size).count(),
        };
        let range = self.slot_range(Buffer::Input, into.first, bytes);
        let windows = windows(&mut self.context.windows)?;
        if !windows.is_complete(generation, count) {
            return Ok(Issue::Blocked);
        }
        if is_staged {
            let target = self.operation.region(into, self.at.slice);
            target.copy_from(windows.slot(0, generation, range));
        } else if self.is_withdrawn()? {
            return Ok(Issue::Blocked);
        }
        Ok(Issue::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_a_vector_of_any_size_and_are_never_too_many() {
        let most = BLOCK_BYTES_MAX * Windows::BLOCKS_MAX as usize;
        for ranks in [2, 3, 8, 100] {
            for bytes in [
                0,
                1,
                4097,
                16385,
                100_001,
                most - 1,
                most + 1,
                3 * most + 7,
                1 << 40,
            ] {
                let blocks = ClaimableBlocks::new(bytes, ranks);
                assert!(blocks.count() <= Windows::BLOCKS_MAX, "{bytes}");
                assert!(blocks.block_bytes.is_multiple_of(64));
                let mut end = 0;
                for block in (0..ranks).flat_map(|home| blocks.of(home)) {
                    let range = blocks.range(block);
                    assert!(range.start == end && !range.is_empty(), "{bytes}: {block}");
                    end = range.end;
                }
                assert_eq!(end, bytes);
            }
        }
    }

    #[test]
    fn every_rank_visits_all_homes_its_own_and_its_neighbours_first() {
        assert_eq!(homes(1, 4).collect::<Vec<_>>(), [1, 0, 3, 2]);
        for ranks in [2, 3, 5, 8, 13] {
            for own in 0..ranks {
                let mut visited: Vec<_> = homes(own, ranks).collect();
                assert_eq!(visited[0], own);
                visited.sort_unstable();
                assert!(visited.iter().copied().eq(0..ranks));
            }
        }
    }
}
