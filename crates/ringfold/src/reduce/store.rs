//! How results are stored, in the caches or past them, and copies to several places.
//!
//! Stores may be *streamed*, past the caches: a line that is not read soon need not be fetched to
//! be overwritten.

use crate::memory::Region;

/// Bytes that go through the first-level cache together: large enough to hide the start of each
/// loop, small enough to stay there with what is read.
pub(super) const BLOCK_BYTES: usize = 4096;

/// What streamed stores must be aligned to: a cache line, so that each fills lines whole.
pub(super) const LINE_BYTES: usize = 64;

/// How results are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// As usual: the lines stay in the cache.
    Cached,
    /// Past the caches, where the CPU has stores for that and the target begins at a line. Slow for
    /// memory that is cached, as what was just read is.
    Streamed,
}

/// Copies `source` to all `targets`, each of which is the same memory or does not overlap it.
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
    // SAFETY: both have this many bytes, whole lines, and the target begins at a line.
    unsafe { stream(into.address(), from.address(), lines) };
    into.part(lines..into.bytes())
        .copy_from(from.part(lines..from.bytes()));
}

/// Streams bytes, as far as the CPU can.
///
/// # Safety
/// `bytes` bytes, a multiple of 16, are readable at `from` and writable at `into`, which is aligned
/// to as much.
#[inline(always)]
pub(super) unsafe fn stream(into: *mut u8, from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes).step_by(16) {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
        // SAFETY: inside both and aligned, by contract; SSE2 is in every CPU of this kind.
        unsafe {
            let part = _mm_loadu_si128(from.add(offset).cast());
            _mm_stream_si128(into.add(offset).cast(), part);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: by contract; the two are apart.
    unsafe {
        std::ptr::copy_nonoverlapping(from, into, bytes);
    }
}

/// Orders streamed stores before all that this thread stores next, such as the flag that says that
/// they are done.
pub(super) fn fence_stores(store: Store) {
    #[cfg(target_arch = "x86_64")]
    if store == Store::Streamed {
        // SAFETY: SSE is in every CPU of this kind.
        unsafe { std::arch::x86_64::_mm_sfence() }
    }
    let _ = store;
}
