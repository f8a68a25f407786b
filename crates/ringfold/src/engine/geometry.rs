//! The location of a schedule's chunks in memory: buffers cut into slices, slices into chunks.
//!
//! There are two cuts ([`BufferCut`]). A *vector* is first cut into slices, and each slice into
//! chunks, so that a span of several chunks is contiguous. *Blocks* belong to ranks, and a slice is
//! the same part of every block. All numbers here come from this rank's own call and from values
//! that all ranks agree on, never from a peer.
//!
//! A buffer that devices bring and take in parts ([`OwnSlots`](super::gate::OwnSlots)) is never
//! there as a whole: each part stands in a slot, its blocks one behind the other, and is cut into
//! slices itself.

use std::ops::Range;

use crate::schedule::{BufferCut, Weights};

/// Chunks of a vector begin at multiples of this many bytes, so that no two ranks write to one
/// cache line.
const CHUNK_ALIGN_BYTES: usize = 64;

/// The blocks of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockLayout {
    /// Blocks of this many elements each.
    Even(u64),
    /// The start of each block in elements, and the end of the last one.
    Offsets(Vec<u64>),
}

impl BlockLayout {
    /// Creates consecutive blocks with these counts.
    pub fn uneven(counts: &[u64]) -> BlockLayout {
        let mut offsets = vec![0];
        for count in counts {
            offsets.push(offsets[offsets.len() - 1] + count);
        }
        BlockLayout::Offsets(offsets)
    }

    /// Returns the number of elements of the longest block.
    pub fn longest(&self) -> u64 {
        match self {
            BlockLayout::Even(count) => *count,
            BlockLayout::Offsets(offsets) => {
                offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)
            }
        }
    }

    /// Returns the byte range of a block in its buffer.
    pub fn range_bytes(&self, block: u32, element_bytes: usize) -> Range<usize> {
        let range = self.range(block);
        range.start as usize * element_bytes..range.end as usize * element_bytes
    }

    /// Whether the blocks may differ in length.
    pub fn is_uneven(&self) -> bool {
        matches!(self, BlockLayout::Offsets(_))
    }

    /// Returns the counts, if they were given one by one.
    pub fn counts(&self) -> Option<impl Iterator<Item = u64> + '_> {
        match self {
            BlockLayout::Even(_) => None,
            BlockLayout::Offsets(offsets) => Some(offsets.windows(2).map(|ends| ends[1] - ends[0])),
        }
    }

    /// Returns the element range of a block in its buffer.
    pub fn range(&self, block: u32) -> Range<u64> {
        match self {
            BlockLayout::Even(count) => block as u64 * count..(block as u64 + 1) * count,
            BlockLayout::Offsets(offsets) => offsets[block as usize]..offsets[block as usize + 1],
        }
    }
}

/// The division of scratch memory into a part for each channel and slice in flight. Channels run
/// independently, and the chunks of a shorter last slice have other offsets than those of the
/// slices before. If channels shared a part, one would write where another still reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts {
    channels: u32,
    in_flight: u32,
    /// The bytes of a part: 0 in a call of one slice, where each chunk has its own place anyway.
    part_bytes: usize,
}

/// The parts of a buffer that stand in slots, one at a time.
#[derive(Clone, Copy, Debug)]
pub struct DeviceParts {
    /// Elements of a part of the vector, or of every block.
    pub elements: u64,
    /// Number of slices of a part.
    pub slices: u32,
}

/// The cut of one buffer.
#[derive(Clone, Debug)]
pub struct Geometry {
    cut: BufferCut,
    /// The blocks; a vector is `Even` with its whole length.
    blocks: BlockLayout,
    element_bytes: usize,
    /// Elements of a slice of the vector, or of every block.
    slice_elements: u64,
    slices: u32,
    /// The parts in which devices move the buffer, if they do.
    parts: Option<DeviceParts>,
    /// The relative lengths of a vector's chunks, if not all equal.
    weights: Option<Weights>,
}

impl Geometry {
    /// Creates the geometry of a buffer; `blocks` is the whole vector's count, or the blocks.
    pub fn new(
        cut: BufferCut,
        blocks: BlockLayout,
        element_bytes: usize,
        slice_elements: u64,
        slices: u32,
    ) -> Geometry {
        Geometry {
            cut,
            blocks,
            element_bytes,
            slice_elements: slice_elements.max(1),
            slices,
            parts: None,
            weights: None,
        }
    }

    /// Sets the parts in which devices move the buffer.
    pub fn in_parts(self, parts: Option<DeviceParts>) -> Geometry {
        Geometry { parts, ..self }
    }

    /// Sets the relative lengths of a vector's chunks; each channel has as many chunks as there are
    /// weights.
    pub fn weighted(self, weights: Option<Weights>) -> Geometry {
        Geometry { weights, ..self }
    }

    /// Returns the number of elements of block `index`, in all slices.
    pub fn block_elements(&self, index: u32) -> u64 {
        let range = self.blocks.range(index);
        range.end - range.start
    }

    /// Returns the byte range of `len` chunks from `first` on, in `slice`: in the buffer, or in the
    /// slot of the slice's part.
    pub fn range(&self, first: u32, len: u32, slice: u32) -> Range<usize> {
        let elements = match self.cut {
            BufferCut::Vector(chunks) => {
                let slice_range = self.slice_of(0..self.blocks.longest(), slice);
                let before = self.part_start(0, slice);
                let start = self.chunk_start(&slice_range, first, chunks);
                start - before..self.chunk_start(&slice_range, first + len, chunks) - before
            }
            BufferCut::Blocks(_) if self.parts.is_some() => self.range_in_slot(first, len, slice),
            BufferCut::Blocks(_) if self.slices == 1 => {
                self.blocks.range(first).start..self.blocks.range(first + len.max(1) - 1).end
            }
            BufferCut::Blocks(_) => {
                assert!(len == 1, "a span of {len} blocks in several slices");
                self.slice_of(self.blocks.range(first), slice)
            }
        };
        elements.start as usize * self.element_bytes..elements.end as usize * self.element_bytes
    }

    /// Returns the element range of `len` blocks from `first` on in the slot of the part of
    /// `slice`.
    fn range_in_slot(&self, first: u32, len: u32, slice: u32) -> Range<u64> {
        let of_part = |block: u32| {
            let range = self.blocks.range(block);
            let begin = range.start + self.part_start(block, slice);
            let elements = self.parts.map_or(u64::MAX, |parts| parts.elements);
            range.end.saturating_sub(begin).min(elements)
        };
        let before: u64 = match &self.blocks {
            BlockLayout::Even(_) => u64::from(first) * of_part(first),
            BlockLayout::Offsets(_) => (0..first).map(of_part).sum(),
        };
        if self.parts.is_some_and(|parts| parts.slices == 1) {
            let all: u64 = (first..first + len).map(of_part).sum();
            return before..before + all;
        }
        assert!(len == 1, "a span of {len} blocks in several slices");
        let block = self.blocks.range(first);
        let within = self.slice_of(block.clone(), slice);
        let begin = block.start + self.part_start(first, slice);
        before + within.start.saturating_sub(begin)..before + within.end.saturating_sub(begin)
    }

    /// Returns the start of the part of `slice` within its block, or within the vector.
    fn part_start(&self, block: u32, slice: u32) -> u64 {
        let elements = match self.cut {
            BufferCut::Vector(_) => self.blocks.longest(),
            BufferCut::Blocks(_) => self.block_elements(block),
        };
        self.parts.map_or(0, |parts| {
            let part = u64::from(slice / parts.slices);
            part.saturating_mul(parts.elements).min(elements)
        })
    }

    /// Returns the byte offset of chunk `first` in a published slot: a vector's slice is laid out
    /// as in memory, blocks are at equal distances.
    pub fn slot_offset(&self, first: u32, slice: u32) -> usize {
        match self.cut {
            BufferCut::Vector(chunks) => {
                let slice_range = self.slice_of(0..self.blocks.longest(), slice);
                (self.chunk_start(&slice_range, first, chunks) - slice_range.start) as usize
                    * self.element_bytes
            }
            BufferCut::Blocks(_) => {
                first as usize * self.slice_elements as usize * self.element_bytes
            }
        }
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> u32 {
        self.cut.chunks()
    }

    /// Returns an upper bound of the size of a chunk in any slice, a multiple of
    /// [`CHUNK_ALIGN_BYTES`].
    pub fn longest_chunk_bytes(&self) -> usize {
        let bytes = match self.cut {
            BufferCut::Blocks(_) => self.slice_elements as usize * self.element_bytes,
            BufferCut::Vector(chunks) => self
                .slices_of_each_length()
                .flat_map(|slice| (0..chunks).map(move |chunk| self.range(chunk, 1, slice).len()))
                .max()
                .unwrap_or(0),
        };
        bytes.next_multiple_of(CHUNK_ALIGN_BYTES)
    }

    /// Divides scratch memory among `in_flight` slices of `channels` channels, which have equal
    /// numbers of chunks.
    pub fn scratch_parts(&self, channels: u32, in_flight: u32) -> Parts {
        let part_bytes = match (self.cut, self.slices) {
            (_, 1) => 0,
            (BufferCut::Blocks(_), _) => self.slice_bytes(),
            (BufferCut::Vector(chunks), _) => {
                let each = chunks / channels;
                let bytes = |slice| {
                    let of_channel = move |channel| self.range(channel * each, each, slice).len();
                    (0..channels).map(of_channel).max()
                };
                let longest = self.slices_of_each_length().filter_map(bytes).max();
                longest.unwrap_or(0).next_multiple_of(CHUNK_ALIGN_BYTES)
            }
        };
        Parts {
            channels,
            in_flight: in_flight.min(self.slices),
            part_bytes,
        }
    }

    /// Returns slices among which each length of a slice occurs: all parts but the last have the
    /// lengths of the first, and so have the slices of a part.
    fn slices_of_each_length(&self) -> impl Iterator<Item = u32> {
        let of_part = self.parts.map_or(1, |parts| parts.slices);
        (0..of_part).chain(self.slices - of_part..self.slices)
    }

    /// Returns the size of the scratch memory in bytes.
    pub fn scratch_bytes(&self, parts: &Parts) -> usize {
        match self.slices {
            1 => self.range(0, self.chunks(), 0).end,
            _ => parts.part_bytes * (parts.channels * parts.in_flight) as usize,
        }
    }

    /// Returns the range of `len` chunks from `first` on, all of one channel, in scratch memory. In
    /// a call of one slice, the layout is the buffer's, so blocks are adjacent whatever their
    /// length.
    pub fn scratch_range(&self, first: u32, len: u32, slice: u32, parts: &Parts) -> Range<usize> {
        let range = self.range(first, len, slice);
        if self.slices == 1 {
            return range;
        }
        let each = self.chunks() / parts.channels;
        let channel = first / each;
        let part = slice % parts.in_flight * parts.channels + channel;
        let before = match self.parts {
            // Blocks that may be moved together are adjacent.
            Some(DeviceParts { slices: 1, .. }) => {
                range.start - self.range(channel * each, 1, slice).start
            }
            _ => self.slot_offset(first, slice) - self.slot_offset(channel * each, slice),
        };
        let begin = part as usize * parts.part_bytes + before;
        begin..begin + range.len()
    }

    /// Returns the size in bytes of a slice with all its chunks, as laid out in a slot.
    pub fn slice_bytes(&self) -> usize {
        match self.cut {
            BufferCut::Vector(_) => self.slice_elements as usize * self.element_bytes,
            BufferCut::Blocks(blocks) => {
                blocks as usize * self.slice_elements as usize * self.element_bytes
            }
        }
    }

    /// Returns the part of `whole` that belongs to `slice`; empty past the end of `whole`.
    fn slice_of(&self, whole: Range<u64>, slice: u32) -> Range<u64> {
        let sub = |whole: &Range<u64>, number: u32, elements: u64| {
            let before = u64::from(number).saturating_mul(elements);
            let start = whole.start.saturating_add(before).min(whole.end);
            start..start.saturating_add(elements).min(whole.end)
        };
        match self.parts {
            None => sub(&whole, slice, self.slice_elements),
            Some(DeviceParts { elements, slices }) => {
                let part = sub(&whole, slice / slices, elements);
                sub(&part, slice % slices, self.slice_elements)
            }
        }
    }

    /// Returns the start of chunk `index`, or the end of the last chunk for `index == chunks`.
    fn chunk_start(&self, slice: &Range<u64>, index: u32, chunks: u32) -> u64 {
        let unit = (CHUNK_ALIGN_BYTES / self.element_bytes) as u64;
        let whole = slice.end - slice.start;
        let before = match &self.weights {
            None => index as u64 * whole.div_ceil(chunks as u64).next_multiple_of(unit),
            Some(weights) => weights.start(whole, index, chunks).next_multiple_of(unit),
        };
        (slice.start + before).min(slice.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_vector_cover_it_once() {
        for count in [0u64, 1, 7, 64, 1000, 4097] {
            for chunks in [1, 2, 3, 7, 16] {
                let slices = count.div_ceil(256).max(1) as u32;
                let geometry = Geometry::new(
                    BufferCut::Vector(chunks),
                    BlockLayout::Even(count),
                    4,
                    256,
                    slices,
                );
                let mut next = 0;
                for slice in 0..slices {
                    for chunk in 0..chunks {
                        let range = geometry.range(chunk, 1, slice);
                        assert_eq!(range.start, next);
                        next = range.end;
                    }
                }
                assert_eq!(next as u64, count * 4);
            }
        }
    }

    #[test]
    fn weighted_chunks_of_a_vector_cover_it_once() {
        for (each, channels) in [
            (vec![1, 1, 1, 0], 1),
            (vec![0, 5, 0], 1),
            (vec![3, 0, 1], 2),
        ] {
            let chunks = each.len() as u32 * channels;
            let weights = Weights::new(&each, 1).unwrap();
            for count in [0u64, 1, 63, 1000, 4097] {
                let slices = count.div_ceil(256).max(1) as u32;
                let cut = BufferCut::Vector(chunks);
                let geometry = Geometry::new(cut, BlockLayout::Even(count), 4, 256, slices)
                    .weighted(Some(weights.clone()));
                let mut next = 0;
                for (slice, chunk) in (0..slices).flat_map(|s| (0..chunks).map(move |c| (s, c))) {
                    let range = geometry.range(chunk, 1, slice);
                    assert_eq!(range.start, next);
                    let weight = each[chunk as usize % each.len()];
                    assert!(weight > 0 || range.is_empty());
                    next = range.end;
                }
                assert_eq!(next as u64, count * 4);
            }
        }
    }

    #[test]
    fn slices_of_uneven_blocks_cover_each_block_once() {
        let counts = [5u64, 0, 300, 17];
        let geometry = Geometry::new(
            BufferCut::Blocks(4),
            BlockLayout::uneven(&counts),
            2,
            100,
            3,
        );
        for (block, count) in counts.iter().enumerate() {
            let bytes: usize = (0..3)
                .map(|slice| geometry.range(block as u32, 1, slice).len())
                .sum();
            assert_eq!(bytes as u64, count * 2);
        }
    }

    #[test]
    fn a_span_of_blocks_is_contiguous_in_one_slice() {
        let geometry = Geometry::new(BufferCut::Blocks(4), BlockLayout::Even(10), 8, 10, 1);
        assert_eq!(geometry.range(1, 2, 0), 80..240);
    }

    /// Checks that the chunks of a channel's slice are consecutive in scratch memory, and apart
    /// from those of other channels and of other slices in flight.
    fn check_scratch(geometry: &Geometry, channels: u32, in_flight: u32) {
        let parts = geometry.scratch_parts(channels, in_flight);
        let each = geometry.chunks() / channels;
        let of_slice = |slice| (0..channels).map(move |channel| (slice, channel));
        let mut used: Vec<(Range<usize>, (u32, u32))> = Vec::new();
        for (slice, channel) in (0..geometry.slices).flat_map(of_slice) {
            let first = channel * each;
            let chunk = |i: u32| geometry.scratch_range(first + i, 1, slice, &parts);
            for i in 0..each {
                assert_eq!(chunk(i).len(), geometry.range(first + i, 1, slice).len());
                assert!(i == 0 || chunk(i).start == chunk(i - 1).end);
            }
            let all = geometry.scratch_range(first, each, slice, &parts);
            assert_eq!(all, chunk(0).start..chunk(each - 1).end);
            assert!(all.end <= geometry.scratch_bytes(&parts));
            used.push((all, (channel, slice % in_flight)));
        }
        for (one, owner) in &used {
            for (other, _) in used.iter().filter(|(_, other)| other != owner) {
                let is_apart = one.end <= other.start || other.end <= one.start;
                assert!(is_apart || one.is_empty() || other.is_empty());
            }
        }
    }

    #[test]
    fn channels_and_slices_in_flight_share_no_scratch_memory() {
        for (count, each, channels, slice_elements) in [
            (2500u64, 7, 2, 128),
            (2500, 1, 2, 256),
            (1200, 3, 3, 112),
            (999, 2, 5, 40),
            (250, 4, 2, 250),
        ] {
            let slices = count.div_ceil(slice_elements) as u32;
            let cut = BufferCut::Vector(each * channels);
            let even = Geometry::new(cut, BlockLayout::Even(count), 8, slice_elements, slices);
            let weights: Vec<u32> = (0..each).map(|chunk| (chunk + 1) % 3 + each % 2).collect();
            let weights = Weights::new(&weights, 1).unwrap();
            for geometry in [even.clone(), even.weighted(Some(weights))] {
                for in_flight in [1, 4, 8] {
                    check_scratch(&geometry, channels, in_flight);
                }
            }
        }
    }

    #[test]
    fn buffers_past_32_bits_are_cut_like_small_ones() {
        const COUNT: u64 = (1 << 40) + 17;
        const SLICE: u64 = 1 << 20;
        let slices = COUNT.div_ceil(SLICE) as u32;
        let vector = Geometry::new(
            BufferCut::Vector(3),
            BlockLayout::Even(COUNT),
            8,
            SLICE,
            slices,
        );
        for slice in [0, 1, slices / 2, slices - 2] {
            let begin = slice as usize * SLICE as usize * 8;
            assert_eq!(vector.range(0, 3, slice), begin..begin + SLICE as usize * 8);
        }
        assert_eq!(vector.range(0, 3, slices - 1).len(), 17 * 8);
        assert_eq!(vector.range(2, 1, slices - 1).end as u64, COUNT * 8);
        let counts = [COUNT, 3, COUNT];
        for blocks in [BlockLayout::Even(COUNT), BlockLayout::uneven(&counts)] {
            let start = match blocks {
                BlockLayout::Even(_) => 2 * COUNT,
                BlockLayout::Offsets(_) => COUNT + 3,
            };
            let cut = Geometry::new(BufferCut::Blocks(3), blocks, 8, SLICE, slices);
            let range = cut.range(2, 1, slices - 1);
            let begin = start + (slices as u64 - 1) * SLICE;
            assert_eq!(range, begin as usize * 8..(start + COUNT) as usize * 8);
            assert_eq!(cut.slot_offset(2, slices - 1), 2 * SLICE as usize * 8);
        }
    }
}
