//! Choice of the slot that a rank writes, and treatment of the lines that a reader has read.
//!
//! Reading lines that another core has just written costs little in published memory. Writing lines
//! that another core has read is slow: its copy is invalidated first, one line after the other, at
//! a tenth of the rate. A line that the other core has changed is transferred at once. So lines are
//! best written next by the rank that has read them, and second best by another rank once their
//! reader has changed them.
//!
//! Either is correct only if each part of a slot has one reader, which follows from the collective
//! and the algorithm of the call. Stamps and calls are always in a rank's own slot.

use std::ops::Range;

use super::Windows;
use crate::call::Call;
use crate::memory::Region;
use crate::types::{Algorithm, Collective};

/// Maximum payload that is prefetched ([`Windows::prefetch`]), which is better still. A core can
/// have some sixteen misses in progress, and needs them for other accesses, too.
pub const PREFETCHED_BYTES_MAX: usize = 1 << 10;

/// Use of a call's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotUse {
    /// Every rank writes into its own slot.
    Own,
    /// Every rank writes into its own slot, and the one reader of a part changes its lines.
    Touched,
    /// Two ranks that read each other's slots whole write into their own and the other's in turn:
    /// into the slot that they read at its last use.
    Traded,
}

impl SlotUse {
    /// Returns the use of `call`'s slots. All its ranks find the same places. If a rank's reads are
    /// divided among threads, each with a cache of its own, their lines are not touched.
    pub fn of(call: &Call, world_size: usize, is_divided: bool) -> SlotUse {
        match SlotUse::by_readers(call, world_size) {
            SlotUse::Touched if is_divided => SlotUse::Own,
            slot_use => slot_use,
        }
    }

    fn by_readers(call: &Call, world_size: usize) -> SlotUse {
        use Collective::{AllGather, AllReduce, AllToAll, Gather, Reduce, ReduceScatter, Scatter};
        let bytes = call.count.saturating_mul(call.dtype.size_bytes() as u64);
        if world_size == 2 && bytes <= PREFETCHED_BYTES_MAX as u64 {
            return SlotUse::Touched;
        }
        match (call.collective, call.algorithm) {
            // The reducing rank overwrites its input (`GiveBack`), or all ranks read everything.
            (AllReduce, Algorithm::OneShot) if world_size == 2 => SlotUse::Traded,
            (AllReduce, _) => SlotUse::Own,
            (AllGather | AllToAll | ReduceScatter, _) if world_size == 2 => SlotUse::Traded,
            (AllToAll | Gather | Reduce | ReduceScatter | Scatter, _) => SlotUse::Touched,
            _ if world_size == 2 => SlotUse::Touched,
            _ => SlotUse::Own,
        }
    }

    /// Returns the rank whose slot holds the data that `writer` publishes in `generation`, among
    /// `slots` slots a rank. All slots of one number are free together, so their last writer does
    /// not matter.
    fn holder(self, writer: usize, generation: u64, slots: usize) -> usize {
        match self {
            SlotUse::Own | SlotUse::Touched => writer,
            SlotUse::Traded => writer ^ (generation / slots as u64 % 2) as usize,
        }
    }

    /// Returns the location of the part that `writer` publishes as `range` of its slot. A traded
    /// slot has one part, always in one place.
    #[inline(always)]
    pub fn place(
        self,
        windows: &Windows,
        writer: usize,
        generation: u64,
        range: Range<usize>,
    ) -> Region {
        match self {
            SlotUse::Own | SlotUse::Touched => windows.slot(writer, generation, range),
            SlotUse::Traded => {
                let holder = self.holder(writer, generation, windows.slots());
                windows.slot(holder, generation, 0..range.len())
            }
        }
    }

    /// Prepares a fast next write of `read`. Called by its reader when done.
    #[inline(always)]
    pub fn done_reading(self, read: Region) {
        if self == SlotUse::Touched {
            read.touch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that reads a slot writes it at the slot's next use.
    #[test]
    fn traded_slots_are_written_by_their_last_reader() {
        const SLOTS: usize = 8;
        for generation in 0..5 * SLOTS as u64 {
            for rank in [0, 1] {
                let read = SlotUse::Traded.holder(1 - rank, generation, SLOTS);
                let written = SlotUse::Traded.holder(rank, generation + SLOTS as u64, SLOTS);
                assert_eq!(read, written);
                assert_ne!(read, SlotUse::Traded.holder(rank, generation, SLOTS));
            }
        }
    }
}
