//! The loops that reduce buffers: one body for each representation of an element, generic over the
//! operation.
//!
//! Two sources are reduced in one pass. More sources are accumulated block by block in scratch
//! arrays that stay in the first-level cache, so every source and the result pass through memory
//! once. 16- and 8-bit floats are accumulated in `f32`.
//!
//! The compiler vectorises these loops. Results that replace a source need a loop of their own: the
//! compiler checks at run time that arrays do not overlap, and would use the scalar loop. All
//! operations are commutative bit for bit (NaN payloads excepted), so a loop that replaces the
//! first of two sources covers both positions.

use std::convert::identity;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::level::LoopBody;
use super::ops::Join;
use super::tree::{self, TreeJoin};
use crate::element::convert;
use crate::memory::Region;
use crate::types::DType;

/// Panics unless the regions satisfy the contract of the loops from elements of type `from` to
/// those of type `to`.
pub(super) fn check_regions((from, to): (DType, DType), into: Region, sources: &[Region]) {
    assert!(!sources.is_empty(), "a fold without sources");
    let bytes = into.bytes();
    assert!(
        bytes.is_multiple_of(to.size_bytes()),
        "{bytes} bytes are not a whole number of {to} elements"
    );
    for source in sources {
        let wanted = bytes / to.size_bytes() * from.size_bytes();
        assert_eq!(wanted, source.bytes(), "regions of different lengths");
        let is_same = from == to && into.is_same(*source);
        assert!(
            is_same || !into.overlaps(*source),
            "a region overlaps its source in part"
        );
    }
}

/// The representation of an element in buffers and in registers.
pub(super) trait ElementFormat {
    /// Type of an element in buffers.
    type Stored: Copy + Default;
    /// Type of an element in registers.
    type Wide: Copy;

    /// Whether narrowing a widened element restores its bits.
    const IS_KEPT: bool = true;

    fn widen(stored: Self::Stored) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self::Stored;

    /// Converts a factor to the type in registers.
    fn factor(factor: f64) -> Self::Wide;
}

/// Elements that are combined without conversion.
pub(super) struct Plain<T>(PhantomData<T>);

/// Bytes of which all but 0 are true; loaded and stored as 0 or 1.
pub(super) struct Truth;

/// Half precision, converted in software.
pub(super) struct SoftwareHalf;

/// bfloat16, converted in software.
pub(super) struct Brain;

/// fp8 `e4m3`, converted in software.
pub(super) struct E4m3;

/// fp8 `e5m2`, converted in software.
pub(super) struct E5m2;

macro_rules! formats {
    ($($format:ty: $stored:ty, $wide:ty, $widen:path, $narrow:path;)*) => {
        $(
            impl ElementFormat for $format {
                type Stored = $stored;
                type Wide = $wide;

                #[inline(always)]
                fn widen(stored: $stored) -> $wide {
                    $widen(stored)
                }

                #[inline(always)]
                fn narrow(wide: $wide) -> $stored {
                    $narrow(wide)
                }

                #[inline(always)]
                fn factor(factor: f64) -> $wide {
                    factor as $wide
                }
            }
        )*
    };
}

formats! {
    Plain<i8>: i8, i8, identity, identity;
    Plain<u8>: u8, u8, identity, identity;
    Plain<i16>: i16, i16, identity, identity;
    Plain<u16>: u16, u16, identity, identity;
    Plain<i32>: i32, i32, identity, identity;
    Plain<u32>: u32, u32, identity, identity;
    Plain<i64>: i64, i64, identity, identity;
    Plain<u64>: u64, u64, identity, identity;
    Plain<f32>: f32, f32, identity, identity;
    Plain<f64>: f64, f64, identity, identity;
    SoftwareHalf: u16, f32, convert::f16_to_f32, convert::f32_to_f16;
    Brain: u16, f32, convert::bf16_to_f32, convert::f32_to_bf16;
    E4m3: u8, f32, convert::e4m3_to_f32, convert::f32_to_e4m3;
    E5m2: u8, f32, convert::e5m2_to_f32, convert::f32_to_e5m2;
}

impl ElementFormat for Truth {
    type Stored = u8;
    type Wide = u8;

    const IS_KEPT: bool = false;

    #[inline(always)]
    fn widen(stored: u8) -> u8 {
        u8::from(stored != 0)
    }

    #[inline(always)]
    fn narrow(wide: u8) -> u8 {
        wide
    }

    fn factor(factor: f64) -> u8 {
        factor as u8
    }
}

/// The folding loop of operation `J` over elements of format `F`.
pub(super) struct FoldLoop<J, F>(PhantomData<(J, F)>);

impl<J: Join<F::Wide>, F: ElementFormat> LoopBody<()> for FoldLoop<J, F> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], _: ()) {
        let count = into.bytes() / size_of::<F::Stored>();
        match sources {
            [only] if F::IS_KEPT => into.copy_from(*only),
            [only] => {
                let keep = |a, _| F::narrow(F::widen(a));
                // SAFETY: lengths and overlap are the caller's contract.
                unsafe { combine(into, *only, *only, count, keep) }
            }
            [first, second] => {
                let join = |a, b| F::narrow(J::join(F::widen(a), F::widen(b)));
                // SAFETY: lengths and overlap are the caller's contract.
                unsafe { combine(into, *first, *second, count, join) }
            }
            // SAFETY: as above; there are at least three sources.
            _ => unsafe { fold_blocks::<J, F>(into, sources, count) },
        }
    }
}

/// The folding loop for bfloat16. Two sources are combined two elements at a time, as the halves of
/// a word: widening is then a shift or a mask, and nothing crosses vector lanes.
pub(super) struct FoldBrain<J>(PhantomData<J>);

impl<J: Join<f32>> LoopBody<()> for FoldBrain<J> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], _: ()) {
        let [first, second] = sources else {
            // SAFETY: the same contract.
            return unsafe { FoldLoop::<J, Brain>::run(into, sources, ()) };
        };
        let words = into.bytes() / 4;
        // SAFETY: lengths and overlap are the caller's contract.
        unsafe { combine(into, *first, *second, words, join_brain_words::<J>) }
        let rest = words * 4..into.bytes();
        let sources = [first.part(rest.clone()), second.part(rest.clone())];
        // SAFETY: equal parts of regions under the same contract.
        unsafe { FoldLoop::<J, Brain>::run(into.part(rest), &sources, ()) }
    }
}

#[inline(always)]
fn join_brain_words<J: Join<f32>>(a: u32, b: u32) -> u32 {
    const UPPER: u32 = 0xffff_0000;
    let lower = J::join(f32::from_bits(a << 16), f32::from_bits(b << 16));
    let upper = J::join(f32::from_bits(a & UPPER), f32::from_bits(b & UPPER));
    round_joined(lower) >> 16 | round_joined(upper) & UPPER
}

/// Rounds the result of joining bfloat16 numbers to bfloat16, in the upper half. A NaN joined from
/// such numbers has a mantissa bit set there and stays a NaN unchanged. The usual NaN handling
/// would make this loop's arithmetic take as long as its memory accesses.
#[inline(always)]
fn round_joined(value: f32) -> u32 {
    let bits = value.to_bits();
    let increment = 0x7fff + (bits >> 16 & 1);
    bits.wrapping_add(if value.is_nan() { 0 } else { increment })
}

/// Size of all scratch arrays together: they stay in the first-level cache.
const SCRATCH_BYTES: usize = 16 << 10;

/// Maximum size of a scratch array: large enough to hide the start of each loop.
const PARTIAL_BYTES_MAX: usize = 4 << 10;

/// Folds three or more sources, in the order of [`tree`](super::tree).
///
/// # Safety
/// As [`LoopBody::run`]; `count` elements in each region.
#[inline(always)]
unsafe fn fold_blocks<J: Join<F::Wide>, F: ElementFormat>(
    into: Region,
    sources: &[Region],
    count: usize,
) {
    let mut scratch = MaybeUninit::<[u64; SCRATCH_BYTES / 8]>::uninit();
    let scratch = scratch.as_mut_ptr().cast::<F::Wide>();
    let partial_bytes = (SCRATCH_BYTES / tree::partials(sources.len())).min(PARTIAL_BYTES_MAX);
    let block = partial_bytes / size_of::<F::Wide>();
    let mut done = 0;
    while done < count {
        let length = block.min(count - done);
        let at = |region: &Region| region.address().cast::<F::Stored>().wrapping_add(done);
        let partial = |level: usize| scratch.wrapping_add(level * block);
        for join in tree::joins(sources.len()) {
            // SAFETY: elements `done..done + length` are inside every region and `length` elements
            // inside each scratch array, which overlaps nothing. A source that `into` replaces has
            // been read up to `done + length` before that part is written.
            unsafe {
                match join {
                    TreeJoin::Pair { first, level } => {
                        let (a, b) = (at(&sources[first]), at(&sources[first + 1]));
                        zip(partial(level), a, b, length, |a, b| {
                            J::join(F::widen(a), F::widen(b))
                        });
                    }
                    TreeJoin::Leaf { leaf, level } => {
                        zip_in_place(partial(level), at(&sources[leaf]), length, |wide, b| {
                            J::join(wide, F::widen(b))
                        });
                    }
                    TreeJoin::Partials { level } => {
                        zip_in_place(partial(level), partial(level + 1), length, J::join);
                    }
                    TreeJoin::LastLeaf { leaf } => {
                        let finish = |b, wide| F::narrow(J::join(wide, F::widen(b)));
                        if into.is_same(sources[leaf]) {
                            zip_in_place(at(&into), partial(0), length, finish);
                        } else {
                            zip(at(&into), at(&sources[leaf]), partial(0), length, finish);
                        }
                    }
                    TreeJoin::LastPartials => {
                        zip(at(&into), partial(0), partial(1), length, |a, b| {
                            F::narrow(J::join(a, b))
                        });
                    }
                }
            }
        }
        done += length;
    }
}

/// Computes `into[i] = join(first[i], second[i])` for a commutative `join`.
///
/// # Safety
/// `count` elements of `T` in each region; `into` is one of the others or overlaps neither.
#[inline(always)]
unsafe fn combine<T: Copy>(
    into: Region,
    first: Region,
    second: Region,
    count: usize,
    join: impl Fn(T, T) -> T,
) {
    let (target, a, b) = (
        into.address().cast::<T>(),
        first.address().cast::<T>(),
        second.address().cast::<T>(),
    );
    // SAFETY: the caller's contract; the branches distinguish the cases of overlap.
    unsafe {
        if target == a {
            zip_in_place(target, b, count, join);
        } else if target == b {
            zip_in_place(target, a, count, join);
        } else {
            zip(target, a, b, count, join);
        }
    }
}

/// Computes `into[i] = f(a[i], b[i])`. No pointer need be aligned.
///
/// # Safety
/// `count` elements are readable at `a` and `b` and writable at `into`.
#[inline(always)]
unsafe fn zip<A: Copy, B: Copy, T>(
    into: *mut T,
    a: *const A,
    b: *const B,
    count: usize,
    f: impl Fn(A, B) -> T,
) {
    for index in 0..count {
        // SAFETY: `index` is below `count`.
        unsafe {
            let value = f(a.add(index).read_unaligned(), b.add(index).read_unaligned());
            into.add(index).write_unaligned(value);
        }
    }
}

/// Computes `into[i] = f(into[i], b[i])`. No pointer need be aligned.
///
/// # Safety
/// `count` elements are readable at `b`, and readable and writable at `into`.
#[inline(always)]
unsafe fn zip_in_place<A: Copy, B: Copy>(
    into: *mut A,
    b: *const B,
    count: usize,
    f: impl Fn(A, B) -> A,
) {
    for index in 0..count {
        // SAFETY: `index` is below `count`.
        unsafe {
            let place = into.add(index);
            let value = f(place.read_unaligned(), b.add(index).read_unaligned());
            place.write_unaligned(value);
        }
    }
}
