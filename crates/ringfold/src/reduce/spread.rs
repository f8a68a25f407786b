//! Folds whose result goes to several places at once, and copies that do.
//!
//! Every source is read once, and every target written once. A block is folded where it stays in the first-level cache and
//! is stored from there to all targets; so a target may be one of the sources.
//!
//! Stores may be *streamed*, past the caches: a line that nobody will read soon need not be fetched to be overwritten.

use super::scale::{Factor, scale};
use super::{Kernel, check_regions};
use crate::error::Result;
use crate::memory::Region;

/// Bytes of the block: large enough to hide the start of each loop, small enough to stay in the first-level cache with
/// what is read.
const BLOCK_BYTES: usize = 4096;

/// What streamed stores must be aligned to: a cache line, so that each fills lines whole.
const LINE_BYTES: usize = 64;

/// How results are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// As usual: the lines stay in the cache.
    Cached,
    /// Past the caches, where the CPU has stores for that and the target begins at a line. Slow for memory that is cached,
    /// as what was just read is.
    Streamed,
}

/// A block on the stack.
#[repr(align(64))]
struct Block([u8; BLOCK_BYTES]);

impl Kernel {
    /// Sets every element of all `targets` to the combination of that element of `sources`, from first to last, scaled by
    /// `factor`. `parts` is room for a list.
    ///
    /// The regions are such as [`fold`](Kernel::fold) takes; each target may be one of the sources, and no two targets
    /// overlap. The bits are those of a fold followed by a scaling. Streamed stores are over when this returns, for whoever
    /// sees what this thread stores next.
    pub fn spread(
        &self,
        targets: &[Region],
        sources: &[Region],
        factor: Option<Factor>,
        store: Store,
        parts: &mut Vec<Region>,
    ) -> Result<()> {
        for target in targets {
            check_regions(self.dtype, *target, sources);
        }
        let mut block = Block([0; BLOCK_BYTES]);
        let bytes = sources[0].bytes();
        for start in (0..bytes).step_by(BLOCK_BYTES) {
            let range = start..bytes.min(start + BLOCK_BYTES);
            // SAFETY: the block outlives the loop, and nothing refers to it but this region.
            let block = unsafe { Region::new((&raw mut block.0).cast(), range.len()) };
            parts.clear();
            parts.extend(sources.iter().map(|source| source.part(range.clone())));
            self.fold(block, parts);
            if let Some(factor) = factor {
                scale(self.dtype, block, block, factor)?;
            }
            for target in targets {
                put(target.part(range.clone()), block, store);
            }
        }
        settle(store);
        Ok(())
    }
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
    settle(store);
}

/// Stores `from` to `into`.
fn put(into: Region, from: Region, store: Store) {
    let is_aligned = into.address().addr().is_multiple_of(LINE_BYTES);
    if store == Store::Cached || !is_aligned || into.is_same(from) {
        into.copy_from(from);
        return;
    }
    let lines = into.bytes() / LINE_BYTES * LINE_BYTES;
    stream(into.part(0..lines), from.part(0..lines));
    into.part(lines..into.bytes())
        .copy_from(from.part(lines..from.bytes()));
}

#[cfg(target_arch = "x86_64")]
fn stream(into: Region, from: Region) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    assert_eq!(into.bytes(), from.bytes());
    let (to, at) = (
        into.address().cast::<__m128i>(),
        from.address().cast::<__m128i>(),
    );
    for index in 0..into.bytes() / size_of::<__m128i>() {
        // SAFETY: inside both regions; the target is aligned, as `put` has seen; SSE2 is in every CPU of this kind.
        unsafe { _mm_stream_si128(to.add(index), _mm_loadu_si128(at.add(index))) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(into: Region, from: Region) {
    into.copy_from(from);
}

/// Orders streamed stores before all that this thread stores next, such as the flag that says that they are done.
fn settle(store: Store) {
    #[cfg(target_arch = "x86_64")]
    if store == Store::Streamed {
        // SAFETY: SSE is in every CPU of this kind.
        unsafe { std::arch::x86_64::_mm_sfence() }
    }
    let _ = store;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;
    use crate::types::{DType, Op};

    fn filled(bytes: usize, seed: u8) -> Owned {
        let owned = Owned::zeroed(bytes);
        let data: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_mul(seed)).collect();
        owned.region().write(&data);
        owned
    }

    fn bytes_of(region: Region) -> Vec<u8> {
        let mut bytes = vec![0; region.bytes()];
        region.read(&mut bytes);
        bytes
    }

    /// The bits of a fold and a scaling, at every target, for odd lengths and places, in place and not.
    #[test]
    fn a_spread_gives_all_targets_what_a_fold_gives_one() {
        for (dtype, op, factor) in [
            (DType::F32, Op::Sum, Some(Factor::Multiply(0.25))),
            (DType::I32, Op::Max, Some(Factor::Divide(3))),
            (DType::BF16, Op::Sum, None),
            (DType::F16, Op::Sum, None),
            (DType::F32, Op::Sum, None),
            (DType::F64, Op::Prod, None),
            (DType::U8, Op::Sum, None),
        ] {
            let kernel = Kernel::new(op, dtype).unwrap();
            let size = dtype.size_bytes();
            for ranks in [2, 3, 4, 5] {
                for elements in [0, 1, 15, 16, 17, 1000, 3001] {
                    for (store, shift) in [
                        (Store::Cached, 0),
                        (Store::Streamed, 0),
                        (Store::Streamed, 1),
                    ] {
                        for in_place in [false, true] {
                            let (begin, bytes) = (shift * size, elements * size);
                            let inputs: Vec<_> = (0..ranks)
                                .map(|rank| filled(begin + bytes, 3 + 2 * rank as u8))
                                .collect();
                            let outputs: Vec<_> =
                                (0..ranks).map(|_| filled(begin + bytes, 1)).collect();
                            let part = |owned: &Owned| owned.region().part(begin..begin + bytes);
                            let sources: Vec<_> = inputs.iter().map(part).collect();
                            let expected = Owned::zeroed(bytes);
                            kernel.fold(expected.region(), &sources);
                            if let Some(factor) = factor {
                                scale(dtype, expected.region(), expected.region(), factor).unwrap();
                            }
                            let targets: Vec<_> = if in_place {
                                sources.clone()
                            } else {
                                outputs.iter().map(part).collect()
                            };
                            kernel
                                .spread(&targets, &sources, factor, store, &mut Vec::new())
                                .unwrap();
                            for target in targets {
                                assert_eq!(
                                    bytes_of(target),
                                    bytes_of(expected.region()),
                                    "{dtype} {op} of {ranks}, {elements} elements, {store:?}, shifted by {shift}, in place \
                                     {in_place}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_copy_reaches_all_targets() {
        for store in [Store::Cached, Store::Streamed] {
            let source = filled(10_000, 7);
            let others = [filled(10_000, 1), filled(10_000, 1)];
            let targets = [source.region(), others[0].region(), others[1].region()];
            spread_copy(&targets, source.region(), store);
            for target in targets {
                assert_eq!(bytes_of(target), bytes_of(filled(10_000, 7).region()));
            }
        }
    }
}
