//! Where one-shot kernels meet: a part of each rank's staging memory, two of everything, for calls
//! with odd and even numbers.
//!
//! ```text
//! page:  flags of odd calls, a line a block | flags of even calls
//! rows:  the row of odd calls | the row of even calls
//! ```
//!
//! A flag is 64 bits: the call's number, and what it is. A line has one writer, the rank's device.

#![forbid(unsafe_code)]

use std::ops::Range;

/// The most ranks: a kernel has a load under way for each.
pub const RANKS_MAX: usize = 8;

/// The most blocks of a launch: their loads together keep a link busy.
pub const BLOCKS_MAX: usize = 8;

/// Bytes of a flag's place: two lines, because processors fetch them in pairs.
pub const LINE_BYTES: usize = 128;

/// Bytes of everything but rows.
const PAGE_BYTES: usize = 4096;

/// What a flag has.
const FLAG_BYTES: usize = size_of::<u64>();

/// How many sets of flags and rows there are. A rank begins call n when it has ended call n-1, for
/// which it saw the flags of all ranks; these had ended n-2 then. So it may fill again what it used
/// for n-2.
const SETS: usize = 2;

const _: () = assert!(SETS * BLOCKS_MAX * LINE_BYTES <= PAGE_BYTES);

/// How the part is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Bytes of a row, whole pages.
    row_bytes: usize,
}

impl Area {
    /// One for rows of `bytes` bytes.
    pub const fn new(bytes: usize) -> Area {
        Area {
            row_bytes: bytes.next_multiple_of(PAGE_BYTES),
        }
    }

    /// The bytes of all of it.
    pub fn bytes(self) -> usize {
        PAGE_BYTES + SETS * self.row_bytes
    }

    /// The flags of call `number`.
    pub fn flags(self, number: u32) -> Range<usize> {
        let bytes = BLOCKS_MAX * LINE_BYTES;
        let begin = set(number) * bytes;
        begin..begin + bytes
    }

    /// The flag of `block` in call `number`.
    pub fn flag(self, number: u32, block: usize) -> Range<usize> {
        let begin = self.flags(number).start + block * LINE_BYTES;
        begin..begin + FLAG_BYTES
    }

    /// The row of call `number`.
    pub fn row(self, number: u32) -> Range<usize> {
        let begin = PAGE_BYTES + set(number) * self.row_bytes;
        begin..begin + self.row_bytes
    }
}

fn set(number: u32) -> usize {
    number as usize % SETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_two_calls_lie_apart() {
        let area = Area::new(5000);
        let mut parts = vec![];
        for number in [7, 8] {
            parts.extend((0..BLOCKS_MAX).map(|block| area.flag(number, block)));
            parts.push(area.row(number));
        }
        parts.sort_by_key(|part| part.start);
        assert!(
            parts.windows(2).all(|pair| pair[0].end <= pair[1].start),
            "{parts:?}"
        );
        assert!(parts[parts.len() - 1].end <= area.bytes());
        assert_eq!(area.row(1), area.row(3));
        assert_eq!(area.bytes(), 4096 + 2 * 8192);
    }
}
