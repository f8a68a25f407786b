//! Regular and non-temporal stores of results, and copies to several targets.
//!
//! Stores may be *streamed* past the caches: a line that is not read soon need not be fetched
//! before it is overwritten.

use crate::memory::Region;

/// Bytes that go through the first-level cache together: large enough to hide the start of each
/// loop, small enough to stay in the cache with the sources.
pub(super) const BLOCK_BYTES: usize = 4096;

/// Alignment of streamed stores: a cache line, so that the stores fill whole lines.
pub(super) const LINE_BYTES: usize = 64;

/// The kind of stores that write results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Regular stores: the lines stay in the cache.
    Cached,
    /// Non-temporal stores, if the CPU has them and the target begins at a line. Slow for cached
    /// lines, such as those of data that was just read.
    Streamed,
}

/// Copies `source` to all `targets`, each of which is `source` itself or does not overlap it.
pub fn spread_copy(targets: &[Region], source: Region, store: Store) {
    let bytes = source.bytes();
    for start in (0..bytes).step_by(BLOCK_BYTES) {
        let range = start..bytes.min(start + BLOCK_BYTES);
        for target in targets {
            put(
                target.part(range.clone()),
                source.part(range.clone()),
                store,
            );
        }
    }
    fence_stores(store);
}

/// Stores `from` to `into`.
pub(super) fn put(into: Region, from: Region, store: Store) {
    let is_aligned = into.address().addr().is_multiple_of(LINE_BYTES);
    if store == Store::Cached || !is_aligned || into.is_same(from) {
        into.copy_from(from);
        return;
    }
    let lines = into.bytes() / LINE_BYTES * LINE_BYTES;
    // SAFETY: both have `lines` bytes, whole lines, and the target begins at a line.
    unsafe { stream(into.address(), from.address(), lines) };
    into.part(lines..into.bytes())
        .copy_from(from.part(lines..from.bytes()));
}

/// Copies bytes with non-temporal stores, if the CPU has them.
///
/// # Safety
/// `bytes` bytes, a multiple of 16, are readable at `from` and writable at `into`, which is aligned
/// to 16 bytes.
#[inline(always)]
pub(super) unsafe fn stream(into: *mut u8, from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes).step_by(16) {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
        // SAFETY: inside both and aligned, by contract; every x86-64 CPU has SSE2.
        unsafe {
            let part = _mm_loadu_si128(from.add(offset).cast());
            _mm_stream_si128(into.add(offset).cast(), part);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: by contract; the two do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(from, into, bytes);
    }
}

/// Orders streamed stores before all later stores of this thread, such as the flag that publishes
/// them.
pub(super) fn fence_stores(store: Store) {
    #[cfg(target_arch = "x86_64")]
    if store == Store::Streamed {
        // SAFETY: every x86-64 CPU has SSE.
        unsafe { std::arch::x86_64::_mm_sfence() }
    }
    let _ = store;
}
