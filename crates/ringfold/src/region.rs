//! Raw memory as an address and a length, with bounds-checked, copying access.

use std::ops::Range;

/// Size of a cache line on all supported machines; longer lines are touched twice.
const LINE_BYTES: usize = 64;

/// A run of bytes that other code owns.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: a region is an address; every access through it copies, and its maker vouches for the
// memory (see `new`).
unsafe impl Send for Region {}
// SAFETY: as above; a shared region offers the same copying access.
unsafe impl Sync for Region {}

impl Region {
    /// The empty region.
    pub const EMPTY: Region = Region {
        start: std::ptr::null_mut(),
        bytes: 0,
    };

    /// Makes the region of `bytes` bytes at `start`.
    ///
    /// # Safety
    /// * `start` is valid for reads and writes of `bytes` bytes until the last copy of this region
    ///   is no longer used (reads suffice if the region is only ever read).
    /// * No Rust reference to the memory is live while the region is used for writing.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Region {
        Region { start, bytes }
    }

    /// Returns the length in bytes.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Whether the region has no bytes.
    pub fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// Returns the address of the first byte.
    pub fn address(self) -> *mut u8 {
        self.start
    }

    /// Returns the bytes `range` of this region. Panics if the range is not inside the region.
    #[inline]
    pub fn part(self, range: Range<usize>) -> Region {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "part {range:?} of a region of {} bytes",
            self.bytes
        );
        // `wrapping_add` because an empty region has a null start.
        Region {
            start: self.start.wrapping_add(range.start),
            bytes: range.end - range.start,
        }
    }

    /// Whether both regions are the same bytes.
    pub fn is_same(self, other: Region) -> bool {
        self.start == other.start && self.bytes == other.bytes
    }

    /// Whether every byte of `other` belongs to this region.
    pub fn contains(self, other: Region) -> bool {
        let offset = (other.address() as usize).checked_sub(self.address() as usize);
        offset.is_some_and(|offset| offset <= self.bytes && other.bytes <= self.bytes - offset)
    }

    /// Whether any byte belongs to both regions.
    pub fn overlaps(self, other: Region) -> bool {
        let (start, other_start) = (self.start as usize, other.start as usize);
        start < other_start + other.bytes && other_start < start + self.bytes
    }

    /// Copies `source`, which has the same length and may overlap, into this region.
    pub fn copy_from(self, source: Region) {
        assert_eq!(
            self.bytes, source.bytes,
            "copy between regions of different lengths"
        );
        if self.start != source.start && self.bytes > 0 {
            // SAFETY: both regions are valid for their length (contract of `new`); `copy` allows
            // overlap.
            unsafe { std::ptr::copy(source.start, self.start, self.bytes) }
        }
    }

    /// Rewrites a byte in each cache line, so that the next core writes the region quickly: a line
    /// that its last reader has modified moves as it is, while a line that was only read must first
    /// be invalidated in all caches. No other thread writes the region meanwhile.
    #[doc(hidden)]
    pub fn touch(self) {
        for offset in (0..self.bytes).step_by(LINE_BYTES) {
            let place = self.start.wrapping_add(offset);
            // SAFETY: `offset` is below the length for which the region is valid (contract of
            // `new`).
            let byte = unsafe { place.read_volatile() };
            // SAFETY: as above.
            unsafe { place.write_volatile(byte) }
        }
    }

    /// Prefetches each cache line for later stores: a hint, which waits for nothing and changes
    /// nothing.
    #[inline]
    #[doc(hidden)]
    pub fn prefetch_for_writing(self) {
        for offset in (0..self.bytes).step_by(LINE_BYTES) {
            let place = self.start.wrapping_add(offset);
            // SAFETY: a hint: it faults nowhere and touches no register. Processors without it do
            // nothing.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags));
            }
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            unsafe {
                std::arch::asm!(
                    "prfm pstl1keep, [{}]", in(reg) place, options(nostack, preserves_flags)
                );
            }
        }
    }

    /// Copies `source` to the beginning of this region.
    #[inline]
    pub fn write(self, source: &[u8]) {
        assert!(source.len() <= self.bytes);
        // SAFETY: valid for `bytes` (contract of `new`), and `source` is no longer than that.
        unsafe { std::ptr::copy(source.as_ptr(), self.start, source.len()) }
    }

    /// Returns the `index`-th eight bytes as a number in the machine's byte order, with zeros past
    /// the end of this region.
    #[inline]
    #[doc(hidden)]
    pub fn word(self, index: usize) -> u64 {
        let rest = self.part(index * 8..self.bytes);
        if rest.bytes >= 8 {
            // SAFETY: eight bytes inside the region, which is valid for reads (contract of `new`).
            return unsafe { rest.start.cast::<u64>().read_unaligned() };
        }
        let mut bytes = [0; 8];
        rest.read(&mut bytes[..rest.bytes]);
        u64::from_ne_bytes(bytes)
    }

    /// Copies the beginning of this region into `target`.
    pub fn read(self, target: &mut [u8]) {
        assert!(target.len() <= self.bytes);
        // SAFETY: valid for `bytes` (contract of `new`), and `target` is no longer than that.
        unsafe { std::ptr::copy(self.start, target.as_mut_ptr(), target.len()) }
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::Owned;

    #[test]
    fn words_end_in_zeros() {
        let owned = Owned::zeroed(64);
        let bytes: Vec<u8> = (1..=64).collect();
        owned.region().write(&bytes);
        for length in 0..=17 {
            let region = owned.region().part(3..3 + length);
            for index in 0..length.div_ceil(8) {
                let mut due = [0; 8];
                let rest = &bytes[3 + index * 8..3 + length.min(index * 8 + 8)];
                due[..rest.len()].copy_from_slice(rest);
                assert_eq!(region.word(index).to_ne_bytes(), due, "{length}, {index}");
            }
        }
    }

    #[test]
    fn touching_changes_nothing() {
        for bytes in [0, 1, 63, 64, 65, 1000] {
            let content: Vec<u8> = (0..bytes).map(|at| (at * 7 + 3) as u8).collect();
            let memory = Owned::zeroed(bytes);
            let region = memory.region().part(0..bytes);
            region.write(&content);
            region.touch();
            let mut after = vec![0; bytes];
            region.read(&mut after);
            assert_eq!(after, content);
        }
    }
}
