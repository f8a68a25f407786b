//! Pushes that ranks share block by block: any running rank takes the next one.
//!
//! Every rank has a home share of the vector. It first claims the blocks of that, which are in its
//! core's cache, then those that others have not claimed, its neighbours' first: they may share a
//! core. No rank is woken when a rank exposes its buffers, because the last to arrive finds all
//! others there. The last block to be done wakes all.

use std::ops::Range;

use super::Channel;
use super::issue::Issue;
use super::push::Push;
use crate::engine::executor::{Context, windows};
use crate::error::Result;
use crate::schedule::Span;
use crate::transport::Windows;

/// The unit that one rank takes at a time: small enough that other ranks do not wait long for a
/// rank that loses its core meanwhile.
const BLOCK_BYTES_MAX: usize = 16 << 10;

/// Less is not worth a claim.
const BLOCK_BYTES_MIN: usize = 4 << 10;

/// The maximum that one attempt reads and stores: some 100 µs of work, after which a verdict is
/// seen.
const ATTEMPT_BYTES: usize = 4 << 20;

/// A vector cut into blocks that are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocks {
    bytes: usize,
    block_bytes: usize,
    ranks: usize,
}

impl Blocks {
    fn new(bytes: usize, ranks: usize) -> Blocks {
        let wanted = (bytes / ranks).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        let least = bytes.div_ceil(Windows::BLOCKS_MAX as usize);
        Blocks {
            bytes,
            block_bytes: wanted.max(least).next_multiple_of(64),
            ranks,
        }
    }

    fn count(self) -> u32 {
        let count = self.bytes.div_ceil(self.block_bytes);
        u32::try_from(count).expect("blocks are made large enough")
    }

    /// The numbers of the blocks that are a rank's.
    fn of(self, home: usize) -> Range<u32> {
        let until = |home: usize| (self.count() as usize * home / self.ranks) as u32;
        until(home)..until(home + 1)
    }

    fn range(self, block: u32) -> Range<usize> {
        let begin = block as usize * self.block_bytes;
        begin..self.bytes.min(begin + self.block_bytes)
    }
}

/// All ranks, this one first and then its neighbours, so that two of the same half, quarter and so
/// on come before others.
fn homes(own: usize, ranks: usize) -> impl Iterator<Item = usize> {
    let places = 0..ranks.next_power_of_two();
    places
        .map(move |place| own ^ place)
        .filter(move |home| *home < ranks)
}

impl Channel<'_> {
    /// Processes blocks of `push` that no other rank claims.
    pub(super) fn serve(&mut self, push: Push, slice: u32, context: &mut Context) -> Result<Issue> {
        if self.at.pushed == 0 && !self.is_agreed(slice, context)? {
            return Ok(Issue::Refused);
        }
        if Self::is_withdrawn(context)? {
            return Ok(Issue::Blocked);
        }
        let generation = self.operation.generation(slice);
        let cuts = [
            &self.operation.buffers.input_cut,
            &self.operation.buffers.output_cut,
        ];
        let from = cuts[0].range(push.from.first, push.from.len, slice);
        let into = cuts[1].range(push.into.first, push.into.len, slice);
        let blocks = Blocks::new(into.len(), context.world_size);
        let world_size = context.world_size as u32;
        let ends = push.sources.count(world_size) + push.targets.count(world_size);
        let mut left = ATTEMPT_BYTES;
        for home in homes(context.rank, context.world_size) {
            let of_home = blocks.of(home);
            let count = of_home.len() as u32;
            while let Some(number) =
                windows(&mut context.windows)?.claim_of(home, generation, count)
            {
                let part = blocks.range(of_home.start + number);
                let within =
                    |whole: &Range<usize>| whole.start + part.start..whole.start + part.end;
                self.push_piece(push, within(&from), within(&into), context)?;
                windows(&mut context.windows)?.complete(generation, blocks.count());
                left = left.saturating_sub(part.len() * ends as usize);
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

    /// Whether all blocks are done whose results go to `span`.
    pub(super) fn is_served(&self, span: Span, slice: u32, context: &mut Context) -> Result<bool> {
        let generation = self.operation.generation(slice);
        let into = self
            .operation
            .buffers
            .output_cut
            .range(span.first, span.len, slice);
        let count = Blocks::new(into.len(), context.world_size).count();
        let is_complete = windows(&mut context.windows)?.is_complete(generation, count);
        Ok(is_complete && !Self::is_withdrawn(context)?)
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
                let blocks = Blocks::new(bytes, ranks);
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
