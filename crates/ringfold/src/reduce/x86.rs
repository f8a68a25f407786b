//! Half precision by the conversion instructions of x86 (F16C, AVX-512): the one loop that the
//! compiler does not find.
//!
//! Conversions work on fixed blocks held by value; the arithmetic in between is the ordinary
//! generic one. A last, partial block goes through a padded copy. The results are those of the
//! software conversions.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::level::Body;
use super::ops::{Join, Sum};
use super::spread::{ROW, Rows};
use crate::memory::Region;

/// Elements of a block: few enough to stay in registers. Of 32, the compiler keeps the arrays in
/// memory, which costs a factor of six.
const BLOCK: usize = ROW;

type Wide = [f32; BLOCK];

/// Conversions of a block by the instructions of one level.
pub(super) trait Convert {
    /// # Safety
    /// `BLOCK` elements are readable, aligned or not, and the machine has the instructions.
    unsafe fn widen(from: *const u16) -> Wide;

    /// # Safety
    /// `BLOCK` elements are writable, aligned or not, and the machine has the instructions.
    unsafe fn narrow(wide: Wide, to: *mut u16);
}

/// The rounding of the software conversions.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// Eight at a time.
pub(super) struct F16c;

impl Convert for F16c {
    #[inline(always)]
    unsafe fn widen(from: *const u16) -> Wide {
        let mut wide = [0.0; BLOCK];
        for at in (0..BLOCK).step_by(8) {
            // SAFETY: eight elements from `at` are inside the block, both sides; unaligned access;
            // F16C by contract.
            unsafe {
                let halves = _mm_loadu_si128(from.add(at).cast());
                _mm256_storeu_ps(wide.as_mut_ptr().add(at), _mm256_cvtph_ps(halves));
            }
        }
        wide
    }

    #[inline(always)]
    unsafe fn narrow(wide: Wide, to: *mut u16) {
        for at in (0..BLOCK).step_by(8) {
            // SAFETY: as in `widen`.
            unsafe {
                let halves = _mm256_cvtps_ph::<NEAREST>(_mm256_loadu_ps(wide.as_ptr().add(at)));
                _mm_storeu_si128(to.add(at).cast(), halves);
            }
        }
    }
}

/// Sixteen at a time: the whole block.
pub(super) struct Avx512;

impl Convert for Avx512 {
    #[inline(always)]
    unsafe fn widen(from: *const u16) -> Wide {
        let mut wide = [0.0; BLOCK];
        // SAFETY: sixteen elements on both sides; unaligned access; AVX-512 by contract.
        unsafe {
            let halves = _mm256_loadu_si256(from.cast());
            _mm512_storeu_ps(wide.as_mut_ptr(), _mm512_cvtph_ps(halves));
        }
        wide
    }

    #[inline(always)]
    unsafe fn narrow(wide: Wide, to: *mut u16) {
        // SAFETY: as in `widen`.
        unsafe {
            let halves = _mm512_cvtps_ph::<NEAREST>(_mm512_loadu_ps(wide.as_ptr()));
            _mm256_storeu_si256(to.cast(), halves);
        }
    }
}

/// Rows of half precision by the conversions `C`.
pub(super) struct Converted<C>(PhantomData<C>);

impl<C: Convert> Rows for Converted<C> {
    type Stored = u16;
    type Wide = f32;

    #[inline(always)]
    unsafe fn widen(stored: [u16; ROW]) -> [f32; ROW] {
        // SAFETY: a row is a block; the instructions are the caller's contract.
        unsafe { C::widen(stored.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn narrow(wide: [f32; ROW]) -> [u16; ROW] {
        let mut stored = [0; ROW];
        // SAFETY: as above.
        unsafe { C::narrow(wide, stored.as_mut_ptr()) }
        stored
    }

    #[inline(always)]
    fn factor(factor: f64) -> f32 {
        factor as f32
    }
}

/// The folding loop of operation `J` with the conversions `C`.
pub(super) struct FoldHalf<J, C>(PhantomData<(J, C)>);

impl<J: Join<f32>, C: Convert> Body<()> for FoldHalf<J, C> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], _: ()) {
        let as_it_is = |value| value;
        match sources {
            [only] => into.copy_from(*only),
            // Apart from the general case for the compiler's sake, which unrolls what it knows the
            // length of.
            // SAFETY: the same contract.
            [a, b] => unsafe { fold_blocks::<J, C>(into, &[*a, *b], as_it_is) },
            // SAFETY: the same contract.
            _ => unsafe { fold_blocks::<J, C>(into, sources, as_it_is) },
        }
    }
}

/// The loop that multiplies by a factor.
pub(super) struct ScaleHalf<C>(PhantomData<C>);

impl<C: Convert> Body<f32> for ScaleHalf<C> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], factor: f32) {
        // SAFETY: the same contract; of one source nothing is joined.
        unsafe { fold_blocks::<Sum, C>(into, &[sources[0]], |value| value * factor) }
    }
}

/// Joins the blocks of all sources from first to last, and stores what `finish` makes of the
/// result.
///
/// # Safety
/// As [`Body::run`].
#[inline(always)]
unsafe fn fold_blocks<J: Join<f32>, C: Convert>(
    into: Region,
    sources: &[Region],
    finish: impl Fn(f32) -> f32,
) {
    let count = into.bytes() / 2;
    let whole = count - count % BLOCK;
    let element = |region: &Region, index| region.address().cast::<u16>().wrapping_add(index);
    for index in (0..whole).step_by(BLOCK) {
        // SAFETY: a whole block from `index` is inside every region; every source's block is read
        // before it is written.
        unsafe {
            let mut wide = C::widen(element(&sources[0], index));
            for source in &sources[1..] {
                wide = join_blocks::<J>(wide, C::widen(element(source, index)));
            }
            C::narrow(wide.map(&finish), element(&into, index));
        }
    }
    let rest = whole * 2..count * 2;
    if rest.is_empty() {
        return;
    }
    let padded = |source: &Region| {
        let mut block = [0_u8; BLOCK * 2];
        source.part(rest.clone()).read(&mut block[..rest.len()]);
        // SAFETY: `BLOCK` elements, of which those beyond the rest are zeros; the instructions are
        // the caller's contract.
        unsafe { C::widen(block.as_ptr().cast()) }
    };
    let mut wide = padded(&sources[0]);
    for source in &sources[1..] {
        wide = join_blocks::<J>(wide, padded(source));
    }
    let mut block = [0_u8; BLOCK * 2];
    // SAFETY: `BLOCK` elements; the instructions are the caller's contract.
    unsafe { C::narrow(wide.map(&finish), block.as_mut_ptr().cast()) }
    into.part(rest.clone()).write(&block[..rest.len()]);
}

#[inline(always)]
fn join_blocks<J: Join<f32>>(a: Wide, b: Wide) -> Wide {
    std::array::from_fn(|lane| J::join(a[lane], b[lane]))
}
