//! Heap memory that is accessed through regions: staging and mailboxes.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

use rustix::mm::{Advice, madvise};

use crate::region::Region;

/// The alignment of owned memory: a cache line, so that no two owners share one.
const ALIGN_BYTES: usize = 64;

/// The size of a huge page on most machines; the kernel handles other sizes.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Heap memory, zeroed at first, freed on drop.
#[derive(Debug)]
pub struct Owned {
    region: Region,
}

impl Owned {
    /// Allocates `bytes` bytes of zeros.
    pub fn zeroed(bytes: usize) -> Owned {
        if bytes == 0 {
            return Owned {
                region: Region::EMPTY,
            };
        }
        let layout = Owned::layout(bytes);
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: just allocated with this length; no reference to it is ever made.
        let region = unsafe { Region::new(start, bytes) };
        advise_huge_pages(region);
        Owned { region }
    }

    /// Allocates a copy of `source`.
    pub fn copy_of(source: Region) -> Owned {
        let owned = Owned::zeroed(source.bytes());
        owned.region.copy_from(source);
        owned
    }

    /// Returns the memory as a region, which is not used after the owner is dropped.
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    fn layout(bytes: usize) -> Layout {
        // A length beyond the address space is a mistake of ours, not a state to handle.
        Layout::from_size_align(bytes, ALIGN_BYTES).expect("a length that fits into memory")
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.region.is_empty() {
            let layout = Owned::layout(self.region.bytes());
            // SAFETY: allocated in `zeroed` with the same layout, and freed only here.
            unsafe { dealloc(self.region.address(), layout) }
        }
    }
}

/// Requests huge pages for the whole huge pages in `region`. A hint: without huge pages, there are
/// only more TLB misses and page faults.
fn advise_huge_pages(region: Region) {
    let start = region.address().align_offset(HUGE_PAGE_BYTES);
    let bytes = region.bytes().saturating_sub(start) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if bytes > 0 {
        let part = region.part(start..start + bytes);
        // SAFETY: whole pages inside memory that was just allocated and is all ours; the advice
        // changes no contents.
        let _ = unsafe { madvise(part.address().cast(), bytes, Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_memory_is_zero_and_keeps_what_is_written() {
        let owned = Owned::zeroed(100);
        let mut bytes = [1; 100];
        owned.region().read(&mut bytes);
        assert_eq!(bytes, [0; 100]);
        owned.region().write(&[7; 100]);
        let copy = Owned::copy_of(owned.region().part(10..30));
        let mut copied = [0; 20];
        copy.region().read(&mut copied);
        assert_eq!(copied, [7; 20]);
    }
}
