//! Mapped memory as numbers that this process writes and any other may read at any moment.

use std::sync::atomic::{AtomicU64, Ordering};

use super::mapping::Mapping;

/// Numbers of eight bytes in mapped memory.
///
/// One thread at a time writes, under its owner's lock; readers may see one number's new value
/// before another's. So every access is relaxed, unless the call site says otherwise.
#[derive(Debug)]
pub struct MappedWords {
    mapping: Mapping,
    count: usize,
}

impl MappedWords {
    /// Views a whole mapping as numbers.
    pub fn new(mapping: Mapping) -> MappedWords {
        let region = mapping.region();
        assert!(
            region
                .address()
                .addr()
                .is_multiple_of(align_of::<AtomicU64>())
        );
        let count = region.bytes() / size_of::<AtomicU64>();
        MappedWords { mapping, count }
    }

    /// Returns a number. Panics if `index` is past the end.
    #[inline]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count);
        let first = self.mapping.region().address().cast::<AtomicU64>();
        let word = first.wrapping_add(index);
        // SAFETY: inside the mapping, which lives as long as this value, aligned (see `new`), and
        // used as atomics only.
        unsafe { &*word }
    }

    /// Sets a number.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Adds to a number. A single writer needs no locked instruction.
    #[inline]
    pub fn add(&self, index: usize, more: u64) {
        let word = self.word(index);
        let sum = word.load(Ordering::Relaxed).wrapping_add(more);
        word.store(sum, Ordering::Relaxed);
    }

    /// Stores a text in `words` numbers from `first` on, 8 bytes in each: padded with zeros, or
    /// cut.
    pub fn set_text(&self, first: usize, words: usize, text: &str) {
        let mut pieces = text.as_bytes().chunks(8).take(words);
        for index in first..first + words {
            let mut bytes = [0; 8];
            if let Some(piece) = pieces.next() {
                bytes[..piece.len()].copy_from_slice(piece);
            }
            self.set(index, u64::from_ne_bytes(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_and_ends_in_zeros() {
        let words = MappedWords::new(Mapping::anonymous(64).unwrap());
        words.set_text(0, 3, "seventeen letters and more");
        words.set_text(1, 2, "short");
        words.add(3, 5);
        words.add(3, 6);
        let text = |index: usize| words.word(index).load(Ordering::Relaxed).to_ne_bytes();
        assert_eq!(&text(0), b"seventee");
        assert_eq!(&text(1), b"short\0\0\0");
        assert_eq!((text(2), text(3)), ([0; 8], 11u64.to_ne_bytes()));
    }

    #[test]
    #[should_panic(expected = "index < self.count")]
    fn there_are_no_words_behind_the_mapping() {
        MappedWords::new(Mapping::anonymous(64).unwrap()).set(8, 1);
    }
}
