//! Half precision with the conversion instructions of x86 (F16C, AVX-512): the one loop that the
//! compiler does not vectorise.
//!
//! Conversions work on fixed blocks held by value; the arithmetic in between is the generic code. A
//! last, partial block goes through a padded copy. The results equal those of the software
//! conversions.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::level::LoopBody;
use super::ops::{Join, Sum};
use super::spread::{ROW, RowFormat};
use super::tree::{self, TreeJoin};
use crate::memory::Region;

/// Elements of a block: few enough to stay in registers. The compiler keeps arrays of 32 in memory,
/// which costs a factor of six.
const BLOCK: usize = ROW;

type Stored = [u16; BLOCK];
type Wide = [f32; BLOCK];

/// Partial results, by level; enough for any number of ranks.
type Partials = [Wide; u32::BITS as usize];

/// The rounding of the software conversions.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// Conversions of eight elements at a time.
pub(super) struct F16c;

impl RowFormat for F16c {
    type Stored = u16;
    type Wide = f32;

    #[inline(always)]
    unsafe fn widen(stored: Stored) -> Wide {
        let mut wide = [0.0; BLOCK];
        for at in (0..BLOCK).step_by(8) {
            // SAFETY: eight elements from `at` are inside the block, both sides; unaligned access;
            // F16C by contract.
            unsafe {
                let halves = _mm_loadu_si128(stored.as_ptr().add(at).cast());
                _mm256_storeu_ps(wide.as_mut_ptr().add(at), _mm256_cvtph_ps(halves));
            }
        }
        wide
    }

    #[inline(always)]
    unsafe fn narrow(wide: Wide) -> Stored {
        let mut stored = [0; BLOCK];
        for at in (0..BLOCK).step_by(8) {
            // SAFETY: as in `widen`.
            unsafe {
                let halves = _mm256_cvtps_ph::<NEAREST>(_mm256_loadu_ps(wide.as_ptr().add(at)));
                _mm_storeu_si128(stored.as_mut_ptr().add(at).cast(), halves);
            }
        }
        stored
    }

    #[inline(always)]
    fn factor(factor: f64) -> f32 {
        factor as f32
    }
}

/// Conversions of sixteen elements at a time: the whole block.
pub(super) struct Avx512;

impl RowFormat for Avx512 {
    type Stored = u16;
    type Wide = f32;

    #[inline(always)]
    unsafe fn widen(stored: Stored) -> Wide {
        let mut wide = [0.0; BLOCK];
        // SAFETY: sixteen elements on both sides; unaligned access; AVX-512 by contract.
        unsafe {
            let halves = _mm256_loadu_si256(stored.as_ptr().cast());
            _mm512_storeu_ps(wide.as_mut_ptr(), _mm512_cvtph_ps(halves));
        }
        wide
    }

    #[inline(always)]
    unsafe fn narrow(wide: Wide) -> Stored {
        let mut stored = [0; BLOCK];
        // SAFETY: as in `widen`.
        unsafe {
            let halves = _mm512_cvtps_ph::<NEAREST>(_mm512_loadu_ps(wide.as_ptr()));
            _mm256_storeu_si256(stored.as_mut_ptr().cast(), halves);
        }
        stored
    }

    #[inline(always)]
    fn factor(factor: f64) -> f32 {
        factor as f32
    }
}

/// The folding loop of operation `J` with the conversions `R`.
pub(super) struct FoldHalf<J, R>(PhantomData<(J, R)>);

impl<J: Join<f32>, R: RowFormat<Stored = u16, Wide = f32>> LoopBody<()> for FoldHalf<J, R> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], _: ()) {
        let as_it_is = |value| value;
        match sources {
            [only] => into.copy_from(*only),
            // Separate from the general case: the compiler unrolls a loop of known length.
            // SAFETY: the same contract.
            [a, b] => unsafe { fold_blocks::<J, R>(into, &[*a, *b], as_it_is) },
            // SAFETY: the same contract.
            _ => unsafe { fold_blocks::<J, R>(into, sources, as_it_is) },
        }
    }
}

/// The loop that multiplies by a factor.
pub(super) struct ScaleHalf<R>(PhantomData<R>);

impl<R: RowFormat<Stored = u16, Wide = f32>> LoopBody<f64> for ScaleHalf<R> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], factor: f64) {
        let factor = R::factor(factor);
        // SAFETY: the same contract; with one source, nothing is joined.
        unsafe { fold_blocks::<Sum, R>(into, &[sources[0]], |value| value * factor) }
    }
}

/// Joins the blocks of all sources in the order of [`tree`], and stores the result of `finish`.
///
/// # Safety
/// As [`LoopBody::run`].
#[inline(always)]
unsafe fn fold_blocks<J: Join<f32>, R: RowFormat<Stored = u16, Wide = f32>>(
    into: Region,
    sources: &[Region],
    finish: impl Fn(f32) -> f32,
) {
    let count = into.bytes() / 2;
    let whole = count - count % BLOCK;
    let mut partials = [[0.0; BLOCK]; u32::BITS as usize];
    let block = |region: &Region, index| {
        let first = region.address().cast::<u16>().wrapping_add(index);
        first.cast::<Stored>()
    };
    for index in (0..whole).step_by(BLOCK) {
        // SAFETY: a whole block from `index` is inside every region; every source's block is read
        // before the target's is written.
        unsafe {
            let read = |source: &Region| R::widen(block(source, index).read_unaligned());
            let wide = join_all::<J>(sources, &mut partials, read);
            block(&into, index).write_unaligned(R::narrow(wide.map(&finish)));
        }
    }
    let rest = whole * 2..count * 2;
    if rest.is_empty() {
        return;
    }
    let padded = |source: &Region| {
        let mut stored = [[0; 2]; BLOCK];
        let bytes = stored.as_flattened_mut();
        source.part(rest.clone()).read(&mut bytes[..rest.len()]);
        // SAFETY: the instructions are available by the caller's contract.
        unsafe { R::widen(stored.map(u16::from_ne_bytes)) }
    };
    let wide = join_all::<J>(sources, &mut partials, padded);
    // SAFETY: the instructions are available by the caller's contract.
    let stored = unsafe { R::narrow(wide.map(&finish)) }.map(u16::to_ne_bytes);
    into.part(rest.clone())
        .write(&stored.as_flattened()[..rest.len()]);
}

/// Joins the blocks that `read` returns for each source, in the order of [`tree`]. `partials` is
/// scratch space.
#[inline(always)]
fn join_all<J: Join<f32>>(
    sources: &[Region],
    partials: &mut Partials,
    read: impl Fn(&Region) -> Wide,
) -> Wide {
    let pair = |a, b| join_blocks::<J>(read(a), read(b));
    match sources {
        [only] => return read(only),
        [a, b] => return pair(a, b),
        [a, b, c] => return join_blocks::<J>(pair(a, b), read(c)),
        [a, b, c, d] => return join_blocks::<J>(pair(a, b), pair(c, d)),
        _ => {}
    }
    for join in tree::joins(sources.len()) {
        match join {
            TreeJoin::Pair { first, level } => {
                partials[level] = pair(&sources[first], &sources[first + 1]);
            }
            TreeJoin::Leaf { leaf, level } => {
                partials[level] = join_blocks::<J>(partials[level], read(&sources[leaf]));
            }
            TreeJoin::Partials { level } => {
                partials[level] = join_blocks::<J>(partials[level], partials[level + 1]);
            }
            TreeJoin::LastLeaf { leaf } => {
                partials[0] = join_blocks::<J>(partials[0], read(&sources[leaf]));
            }
            TreeJoin::LastPartials => partials[0] = join_blocks::<J>(partials[0], partials[1]),
        }
    }
    partials[0]
}

#[inline(always)]
fn join_blocks<J: Join<f32>>(a: Wide, b: Wide) -> Wide {
    std::array::from_fn(|lane| J::join(a[lane], b[lane]))
}
