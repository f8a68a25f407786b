//! The memory that the ranks of one host share: a sealed memfd, mapped by each of them, or heap
//! memory if the ranks are threads of one process.
//!
//! # Layout
//!
//! ```text
//! preamble (one page) | control blocks, one a rank | work counters, two a slot
//! | windows, one a rank | rings, one an ordered pair and channel
//! ```
//!
//! Every offset is computed from [`SegmentShape`], which all ranks derive from their own
//! configuration. The preamble repeats the shape, and a rank with a different one refuses to join.
//! Nothing that a peer writes is used as an offset or a length.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::doorbell::{DOORBELL_BYTES, Doorbell};
use super::flag;
use crate::error::{Error, Result};
use crate::memory::mapping::{Mapping, make_sealed, size_and_seals};
use crate::memory::{Owned, Region};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::transport::bell::{self, Bells};
use crate::transport::{ATTACHED_WORDS, HEADER_BYTES};

const PAGE_BYTES: usize = 4096;

/// Distance between words of different writers: two lines, because processors fetch lines in pairs.
pub const APART_BYTES: usize = 128;

/// Length of the head of a slot or cell, which is one line: stamp and header.
pub const HEAD_BYTES: usize = 64;

/// Bytes left in a cell's head behind the stamp and a message's header.
pub const INLINE_BYTES: usize = HEAD_BYTES - 8 - HEADER_BYTES;

/// `ringfld` and the layout's version.
const MAGIC: u64 = 0x0666_6c64_7269_6e67;

/// Bytes of a rank's control block: its doorbell, its finished generations and so on, each in lines
/// of its own.
const CONTROL_BYTES: usize = 6 * APART_BYTES;

/// The first line of a slot.
#[repr(C)]
#[derive(Debug)]
pub struct SlotHead {
    /// Generation of the slot, and the progress within it.
    pub stamp: AtomicU64,
    /// The call that the rank is in.
    pub call: [AtomicU64; 3],
    /// Attached words, which fill the line.
    pub attached: [AtomicU64; ATTACHED_WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SlotHead>() == HEAD_BYTES);

/// Bytes of a slot's work counters, by which the blocks of a generation are claimed and completed:
/// two words, in lines of their own.
const WORK_COUNTERS_BYTES: usize = 2 * APART_BYTES;

/// Division of the segment, equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentShape {
    /// Number of ranks that share the segment.
    pub ranks: usize,
    /// Number of slots of a window, a power of two.
    pub slots: usize,
    /// Bytes of a slot, a multiple of a page.
    pub slot_bytes: usize,
    /// Number of streams between two ranks in each direction.
    pub channels: usize,
    /// Number of cells of a ring.
    pub cells: usize,
    /// Bytes of a cell, a multiple of a line.
    pub cell_bytes: usize,
}

impl SegmentShape {
    /// Returns the shape for `ranks` ranks that may use about `rank_bytes` each.
    pub fn new(ranks: usize, channels: usize, rank_bytes: usize) -> SegmentShape {
        const SLOTS: usize = 8;
        const { assert!(SLOTS.is_power_of_two()) };
        const CELLS: usize = 8;
        const SLOT_BYTES_MAX: usize = 256 << 10;
        const CELL_BYTES_MAX: usize = 64 << 10;
        let peers = (ranks - 1).max(1);
        let slot = (rank_bytes / 2 / SLOTS).clamp(PAGE_BYTES, SLOT_BYTES_MAX);
        let cell = (rank_bytes / 2 / (peers * channels * CELLS)).clamp(1024, CELL_BYTES_MAX);
        SegmentShape {
            ranks,
            slots: SLOTS,
            slot_bytes: slot / PAGE_BYTES * PAGE_BYTES,
            channels,
            cells: CELLS,
            cell_bytes: cell / HEAD_BYTES * HEAD_BYTES,
        }
    }

    /// Returns the bytes of a slot: head, payload, and a copy of the head for ranks of other
    /// domains.
    fn slot_stride(&self) -> usize {
        HEAD_BYTES + self.slot_bytes + HEAD_BYTES
    }

    fn cell_stride(&self) -> usize {
        HEAD_BYTES + self.cell_bytes
    }

    fn window_bytes(&self) -> usize {
        (self.slots * self.slot_stride()).next_multiple_of(PAGE_BYTES)
    }

    fn ring_bytes(&self) -> usize {
        APART_BYTES + self.cells * self.cell_stride()
    }

    fn control_offset(&self, rank: usize) -> usize {
        PAGE_BYTES + rank * CONTROL_BYTES
    }

    fn work_counters_offset(&self, slot: usize) -> usize {
        self.control_offset(self.ranks) + slot * WORK_COUNTERS_BYTES
    }

    fn window_offset(&self, rank: usize) -> usize {
        self.work_counters_offset(self.slots)
            .next_multiple_of(PAGE_BYTES)
            + rank * self.window_bytes()
    }

    fn ring_offset(&self, id: RingId) -> usize {
        let RingId { from, to, channel } = id;
        let index = (from * self.ranks + to) * self.channels + channel;
        self.window_offset(self.ranks) + index * self.ring_bytes().next_multiple_of(APART_BYTES)
    }

    fn total_bytes(&self) -> usize {
        let behind = RingId {
            from: self.ranks,
            to: 0,
            channel: 0,
        };
        self.ring_offset(behind).next_multiple_of(PAGE_BYTES)
    }

    fn words(&self) -> [u64; 7] {
        let [sizes, cells] = [
            [self.ranks, self.slots, self.slot_bytes],
            [self.channels, self.cells, self.cell_bytes],
        ]
        .map(|sizes| sizes.map(|size| size as u64));
        [
            MAGIC, sizes[0], sizes[1], sizes[2], cells[0], cells[1], cells[2],
        ]
    }
}

/// The ring of a sender, a receiver and a channel.
#[derive(Clone, Copy, Debug)]
pub struct RingId {
    /// Rank that sends.
    pub from: usize,
    /// Rank that receives.
    pub to: usize,
    /// Channel of the messages.
    pub channel: usize,
}

/// The memory that the ranks of a host share.
#[derive(Debug)]
pub struct Segment {
    /// Owner of `map`, which is the whole memory.
    memory: SegmentMemory,
    map: Region,
    shape: SegmentShape,
    windows: Strides,
    bells: Bells,
}

/// Location of a segment.
#[derive(Debug)]
enum SegmentMemory {
    /// A file that other processes have mapped, too.
    Mapped(Mapping),
    /// The heap, for ranks that are threads of this process.
    Heap { _owned: Owned },
}

/// Offset and strides of the slots, computed once because each call looks up several slots.
#[derive(Clone, Copy, Debug)]
struct Strides {
    first: usize,
    rank: usize,
    slot: usize,
}

impl Segment {
    /// Creates the memory, on the one rank that passes the descriptor to the others. Ranks that
    /// sleep on descriptors have `bells`.
    pub fn create(shape: SegmentShape, bells: Bells) -> Result<(Arc<Segment>, OwnedFd)> {
        let bytes = shape.total_bytes();
        let refused = |error: std::io::Error| {
            Error::system(
                format!("cannot create {bytes} bytes of shared memory"),
                error,
            )
        };
        // Sealed, so that no peer can truncate the memory.
        let fd = make_sealed("ringfold", bytes).map_err(refused)?;
        let segment = Segment::map(&fd, shape, bells)?;
        for (index, word) in shape.words().into_iter().enumerate() {
            // Pairs with the loads in `open`, ordered by the descriptor's passing in between.
            segment.atomic64(index * 8).store(word, Ordering::Release);
        }
        Ok((Arc::new(segment), fd))
    }

    /// Creates memory of this process alone, for ranks that are its threads.
    pub fn unshared(shape: SegmentShape) -> Arc<Segment> {
        let memory = Owned::zeroed(shape.total_bytes());
        let map = memory.region();
        Arc::new(Segment::divided(
            SegmentMemory::Heap { _owned: memory },
            map,
            shape,
            Bells::default(),
        ))
    }

    /// Checks and maps the memory of a descriptor received from a peer.
    pub fn open(fd: OwnedFd, shape: SegmentShape, bells: Bells) -> Result<Arc<Segment>> {
        let (size, is_sealed) = size_and_seals(&fd)
            .map_err(|error| Error::system("cannot check the shared memory", error))?;
        if !is_sealed || size != shape.total_bytes() as u64 {
            return Err(Error::Bootstrap(format!(
                "the shared memory has {} bytes instead of {} sealed bytes; set RINGFOLD_SHM_BYTES \
                 and RINGFOLD_MAX_CHANNELS equally on all ranks",
                size,
                shape.total_bytes()
            )));
        }
        if ![0, shape.ranks].contains(&bells.count()) {
            return Err(Error::Bootstrap(format!(
                "received {} event counters with the shared memory of {} ranks; use one version on \
                 all ranks",
                bells.count(),
                shape.ranks
            )));
        }
        let segment = Segment::map(&fd, shape, bells)?;
        let words: Vec<u64> = (0..7)
            .map(|index| segment.atomic64(index * 8).load(Ordering::Acquire))
            .collect();
        if words != shape.words() {
            return Err(Error::Bootstrap(
                "the shared memory has a different layout; use one version on all ranks".into(),
            ));
        }
        Ok(Arc::new(segment))
    }

    fn map(fd: impl AsFd, shape: SegmentShape, bells: Bells) -> Result<Segment> {
        let bytes = shape.total_bytes();
        let mapping = Mapping::new(fd, bytes).map_err(|error| {
            Error::system(format!("cannot map {bytes} bytes of shared memory"), error)
        })?;
        mapping.advise_huge_pages();
        let map = mapping.region();
        let memory = SegmentMemory::Mapped(mapping);
        Ok(Segment::divided(memory, map, shape, bells))
    }

    fn divided(memory: SegmentMemory, map: Region, shape: SegmentShape, bells: Bells) -> Segment {
        let windows = Strides {
            first: shape.window_offset(0),
            rank: shape.window_bytes(),
            slot: shape.slot_stride(),
        };
        Segment {
            memory,
            map,
            shape,
            windows,
            bells,
        }
    }

    /// Returns the division of the segment.
    pub fn shape(&self) -> &SegmentShape {
        &self.shape
    }

    /// Makes the pages of all windows present, `rank`'s own first, so that the first call finds
    /// them.
    pub fn populate(&self, rank: usize) {
        let SegmentMemory::Mapped(mapping) = &self.memory else {
            return;
        };
        let own = self.shape.window_offset(rank);
        let all = self.shape.window_offset(0);
        let window_bytes = self.shape.window_bytes();
        for (offset, bytes) in [(own, window_bytes), (all, self.shape.ranks * window_bytes)] {
            let part = self.map.part(offset..offset + bytes);
            if let Err(error) = mapping.populate(part) {
                // Unsupported by kernels before 5.14: only the first call is slower.
                log::debug!(
                    target: "ringfold::transport",
                    "shared memory was not populated: {error}"
                );
            }
        }
    }

    /// Returns a rank's doorbell.
    #[inline]
    pub fn doorbell(&self, rank: usize) -> &Doorbell {
        let word = self.word(self.shape.control_offset(rank), DOORBELL_BYTES);
        // SAFETY: in bounds, at the beginning of a line, and made of atomics, which any process may
        // write at any time.
        unsafe { &*word.address().cast::<Doorbell>() }
    }

    /// Wakes a rank if it sleeps. The change to be seen must precede the call, by a store of any
    /// ordering.
    #[inline]
    pub fn ring(&self, rank: usize) {
        if self.doorbell(rank).ring()
            && let Some(bell) = self.bells.of(rank)
        {
            bell::ring(bell);
        }
    }

    /// Returns the bells of the segment's ranks.
    pub fn bells(&self) -> &Bells {
        &self.bells
    }

    /// Returns the counter of the generations that a rank has finished.
    #[inline]
    pub fn finished(&self, rank: usize) -> &AtomicU64 {
        self.atomic64(self.shape.control_offset(rank) + APART_BYTES)
    }

    /// Returns the generation of a rank's claimed and incomplete block, plus one; or 0.
    pub fn open_claim(&self, rank: usize) -> &AtomicU64 {
        self.atomic64(self.shape.control_offset(rank) + 3 * APART_BYTES)
    }

    /// Returns the number of a rank's own claimed blocks, a counter that all ranks write.
    pub fn blocks_claimed(&self, rank: usize) -> &AtomicU64 {
        self.atomic64(self.shape.control_offset(rank) + 4 * APART_BYTES)
    }

    /// Returns a word by which a rank describes its process (`reading`).
    pub fn process_word(&self, rank: usize, index: usize) -> &AtomicU64 {
        self.atomic64(self.shape.control_offset(rank) + 5 * APART_BYTES + 8 * index)
    }

    /// Returns the numbers of a slot's claimed and complete blocks, counters that all ranks write.
    pub fn work_counters(&self, slot: usize) -> [&AtomicU64; 2] {
        let offset = self.shape.work_counters_offset(slot);
        [self.atomic64(offset), self.atomic64(offset + APART_BYTES)]
    }

    /// Announces that `rank` closes its communicator.
    pub fn depart(&self, rank: usize) {
        // Pairs with the Acquire load in `has_departed`: `rank`'s last messages precede this store.
        self.departed(rank).store(1, Ordering::Release);
    }

    /// Whether `rank` has closed its communicator. If so, everything that it sent is visible.
    pub fn has_departed(&self, rank: usize) -> bool {
        // Pairs with the Release store in `depart`.
        self.departed(rank).load(Ordering::Acquire) != 0
    }

    /// Returns the word that is not 0 once a rank has closed its communicator.
    fn departed(&self, rank: usize) -> &AtomicU32 {
        let word = self.word(self.shape.control_offset(rank) + 2 * APART_BYTES, 4);
        // SAFETY: in bounds, aligned, an atomic.
        unsafe { &*word.address().cast::<AtomicU32>() }
    }

    /// Announces that no call of `rank` will run again, so that peers that still read its
    /// registered memory see that its content may have changed.
    pub fn withdraw(&self, rank: usize) {
        flag::begin(self.withdrawn(rank), 1);
    }

    /// Whether `rank` has withdrawn. If not, everything read from its registered memory until now
    /// is the content from the call.
    pub fn has_withdrawn(&self, rank: usize) -> bool {
        flag::recheck(self.withdrawn(rank)) != 0
    }

    /// Returns the word that is not 0 once a rank has withdrawn.
    fn withdrawn(&self, rank: usize) -> &AtomicU64 {
        self.atomic64(self.shape.control_offset(rank) + 2 * APART_BYTES + 8)
    }

    /// Returns the line at the head of a slot.
    #[inline]
    pub fn slot_head(&self, rank: usize, slot: usize) -> &SlotHead {
        self.head_at(self.slot_offset(rank, slot))
    }

    /// Returns the line behind a slot's payload: a copy of the head, for ranks of other domains.
    #[inline]
    pub fn far_head(&self, rank: usize, slot: usize) -> &SlotHead {
        self.head_at(self.slot_offset(rank, slot) + HEAD_BYTES + self.shape.slot_bytes)
    }

    #[inline]
    fn head_at(&self, offset: usize) -> &SlotHead {
        let line = self.word(offset, HEAD_BYTES);
        // SAFETY: in bounds by `part`, aligned as the memory, windows and slots begin at lines, and
        // made of atomics, which any process may write at any time.
        unsafe { &*line.address().cast::<SlotHead>() }
    }

    /// Returns the head of a slot and the first `bytes` bytes of its payload, for hints.
    #[inline]
    pub fn slot_start(&self, rank: usize, slot: usize, bytes: usize) -> Region {
        let bytes = HEAD_BYTES + bytes.min(self.shape.slot_bytes);
        self.word(self.slot_offset(rank, slot), bytes)
    }

    /// Returns the payload of a slot.
    pub fn slot(&self, rank: usize, slot: usize) -> Region {
        let offset = self.slot_offset(rank, slot) + HEAD_BYTES;
        self.map.part(offset..offset + self.shape.slot_bytes)
    }

    /// Returns the number of cells that the receiver of a ring has emptied.
    pub fn ring_consumed(&self, id: RingId) -> &AtomicU64 {
        self.atomic64(self.shape.ring_offset(id))
    }

    /// Returns the stamp of a ring's cell.
    pub fn cell_stamp(&self, id: RingId, cell: usize) -> &AtomicU64 {
        self.atomic64(self.cell_offset(id, cell))
    }

    /// Returns the header of a ring's cell.
    pub fn cell_header(&self, id: RingId, cell: usize) -> Region {
        let offset = self.cell_offset(id, cell);
        self.map
            .part(offset + 8..offset + HEAD_BYTES - INLINE_BYTES)
    }

    /// Returns the memory behind a cell's header in the same line.
    pub fn cell_inline(&self, id: RingId, cell: usize) -> Region {
        let offset = self.cell_offset(id, cell) + HEAD_BYTES;
        self.map.part(offset - INLINE_BYTES..offset)
    }

    /// Returns the payload of a ring's cell.
    pub fn cell(&self, id: RingId, cell: usize) -> Region {
        let offset = self.cell_offset(id, cell) + HEAD_BYTES;
        self.map.part(offset..offset + self.shape.cell_bytes)
    }

    #[inline]
    fn slot_offset(&self, rank: usize, slot: usize) -> usize {
        let Strides {
            first,
            rank: of_rank,
            slot: of_slot,
        } = self.windows;
        first + rank * of_rank + slot * of_slot
    }

    fn cell_offset(&self, id: RingId, cell: usize) -> usize {
        self.shape.ring_offset(id) + APART_BYTES + cell * self.shape.cell_stride()
    }

    #[inline]
    fn word(&self, offset: usize, bytes: usize) -> Region {
        self.map.part(offset..offset + bytes)
    }

    #[inline]
    fn atomic64(&self, offset: usize) -> &AtomicU64 {
        let word = self.word(offset, 8);
        debug_assert!(offset.is_multiple_of(8));
        // SAFETY: in bounds by `part`, aligned as the memory begins at a line and offsets are
        // multiples of 8, and an atomic, which any process may write at any time.
        unsafe { &*word.address().cast::<AtomicU64>() }
    }
}
