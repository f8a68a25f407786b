//! The words by which a device and this rank's CPU follow each other, in pinned memory.
//!
//! Each has one writer and a cache line of its own. They hold numbers of slices, and 32 bits
//! suffice because only differences count: a stream's wait compares as this does, in a circle.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use super::word::is_reached;
use super::word::{height, height_after_slots, raise};
use crate::memory::Region;

/// What a word says; `n` is the number of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// By the device: slices below this one stand in their slots.
    Arrived,
    /// By the device: slices below this one have been taken, so their results' places are free.
    Taken,
    /// By the CPU: this rank's shares of slices below this one are combined, in the direct bank.
    Combined,
    /// By the CPU: the results of slices below this one may be taken.
    Released,
    /// By the CPU: the slots of slices below this one may be filled again.
    Free,
    /// By the CPU: 1 from the time when slices are released that nothing completes. Kernels read
    /// it.
    Fault,
}

impl Word {
    /// Its bytes.
    pub fn place(self) -> Range<usize> {
        let begin = self as usize * PLACE_BYTES;
        begin..begin + size_of::<u32>()
    }
}

/// Bytes of a word's place: two lines, because processors fetch them in pairs.
const PLACE_BYTES: usize = 128;

/// Bytes of all words.
pub const WORDS_BYTES: usize = 8 * PLACE_BYTES;

/// The words of one bank of a rank's lane.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    region: Region,
}

impl Words {
    /// The words at the beginning of `region`, which begins a page and stays mapped.
    pub fn new(region: Region) -> Words {
        Words {
            region: region.part(0..WORDS_BYTES),
        }
    }

    /// Whether `word` has reached `value`. What its writer did before is then seen.
    pub fn has_reached(&self, word: Word, value: u32) -> bool {
        is_reached(self.load(word), value)
    }

    /// What `word` holds.
    pub fn load(&self, word: Word) -> u32 {
        height(self.atomic(word))
    }

    /// Whether a rank has said that slots may hold anything, which a read of slots before this may
    /// have found.
    pub fn has_fault(&self) -> bool {
        height_after_slots(self.atomic(Word::Fault)) != 0
    }

    /// Says that `word` has reached `value`: the CPU's words only.
    pub fn store(&self, word: Word, value: u32) {
        debug_assert!(!matches!(word, Word::Arrived | Word::Taken));
        raise(self.atomic(word), value);
    }

    fn atomic(&self, word: Word) -> &AtomicU32 {
        let place = self.region.part(word.place());
        // SAFETY: in bounds by `part`, aligned as it begins a line of a page, mapped as long as
        // `self` is used (contract of `new`), and an atomic, which a device may write.
        unsafe { &*place.address().cast::<AtomicU32>() }
    }
}

/// What a flag of 64 bits at the beginning of `place` holds, which is mapped and aligned to that. A
/// device raises it.
pub fn load_flag(place: Region) -> u64 {
    let place = place.part(0..size_of::<u64>());
    assert!(place.address().cast::<AtomicU64>().is_aligned(), "a flag");
    // SAFETY: in bounds by `part`, aligned as just checked, mapped by the contract, and an atomic,
    // which a device may write.
    let flag = unsafe { &*place.address().cast::<AtomicU64>() };
    // Partner: the device's release store, of the whole system.
    flag.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;

    #[test]
    fn words_lie_apart() {
        let memory = Owned::zeroed(WORDS_BYTES);
        let words = Words::new(memory.region());
        words.store(Word::Free, 7);
        words.store(Word::Released, 9);
        assert!(words.has_reached(Word::Free, 7) && !words.has_reached(Word::Free, 8));
        assert!(words.has_reached(Word::Released, 9) && !words.has_reached(Word::Arrived, 1));
        assert!(Word::Free.place().end <= WORDS_BYTES);
    }
}
