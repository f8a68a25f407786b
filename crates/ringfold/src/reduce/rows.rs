//! The loops that go through a row of elements at a time, all in registers: half precision with the
//! processor's conversions ([`x86`](super::x86)), and combinations whose sources and result have
//! different types.
//!
//! Conversions work on rows held by value; the arithmetic in between is the generic code. A last,
//! partial row goes through a padded copy.

use std::marker::PhantomData;
use std::ptr;

use super::fold::{Brain, E4m3, E5m2, Plain, SoftwareHalf};
use super::level::{CompiledLoop, Level, LoopBody, compiled};
use super::ops::{Join, Sum};
use super::spread::{ROW, RowFormat};
use super::tree::{self, TreeJoin};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx512, F16c};
use crate::memory::Region;
use crate::types::DType;

/// Partial results, by level; enough for any number of ranks.
type Partials = [[f32; ROW]; u32::BITS as usize];

/// The folding loop of operation `J` over sources of format `R`, with a result of format `T`.
pub(super) struct FoldRows<J, R, T = R>(PhantomData<(J, R, T)>);

impl<J, R, T> LoopBody<()> for FoldRows<J, R, T>
where
    J: Join<f32>,
    R: RowFormat<Wide = f32>,
    T: RowFormat<Wide = f32>,
{
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], _: ()) {
        let as_it_is = |value| value;
        // Formats of one size are one format, whose bits are kept.
        let converts = size_of::<R::Stored>() != size_of::<T::Stored>();
        // Separate from the general case: the compiler unrolls a loop of known length.
        match sources {
            [only] if !converts => into.copy_from(*only),
            // SAFETY: the same contract.
            [only] => unsafe { fold_rows::<J, R, T>(into, &[*only], as_it_is) },
            // SAFETY: the same contract.
            [a, b] => unsafe { fold_rows::<J, R, T>(into, &[*a, *b], as_it_is) },
            // SAFETY: the same contract.
            _ => unsafe { fold_rows::<J, R, T>(into, sources, as_it_is) },
        }
    }
}

/// The loop that multiplies by a factor.
pub(super) struct ScaleRows<R>(PhantomData<R>);

impl<R: RowFormat<Wide = f32>> LoopBody<f64> for ScaleRows<R> {
    #[inline(always)]
    unsafe fn run(into: Region, sources: &[Region], factor: f64) {
        let factor = R::factor(factor);
        // SAFETY: the same contract; with one source, nothing is joined.
        unsafe { fold_rows::<Sum, R, R>(into, &[sources[0]], |value| value * factor) }
    }
}

/// Returns the loop of operation `J` from short floats to `F32`, or from `F32` to short floats;
/// `None` for other types.
pub(super) fn between<J: Join<f32>>(
    from: DType,
    to: DType,
    level: Level,
) -> Option<CompiledLoop<()>> {
    let (short, rounds) = match (from, to) {
        (short, DType::F32) => (short, false),
        (DType::F32, short) => (short, true),
        _ => return None,
    };
    Some(match short {
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx2 => with_wide::<J, F16c>(rounds, level),
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx512 => with_wide::<J, Avx512>(rounds, level),
        DType::F16 => with_wide::<J, SoftwareHalf>(rounds, level),
        DType::BF16 => with_wide::<J, Brain>(rounds, level),
        DType::F8E4M3 => with_wide::<J, E4m3>(rounds, level),
        DType::F8E5M2 => with_wide::<J, E5m2>(rounds, level),
        _ => return None,
    })
}

fn with_wide<J, R>(rounds: bool, level: Level) -> CompiledLoop<()>
where
    J: Join<f32>,
    R: RowFormat<Wide = f32>,
{
    match rounds {
        false => compiled::<FoldRows<J, R, Plain<f32>>, ()>(level),
        true => compiled::<FoldRows<J, Plain<f32>, R>, ()>(level),
    }
}

/// Joins the rows of all sources in the order of [`tree`], and stores the result of `finish`.
///
/// # Safety
/// As [`LoopBody::run`].
#[inline(always)]
unsafe fn fold_rows<J, R, T>(into: Region, sources: &[Region], finish: impl Fn(f32) -> f32)
where
    J: Join<f32>,
    R: RowFormat<Wide = f32>,
    T: RowFormat<Wide = f32>,
{
    let count = into.bytes() / size_of::<T::Stored>();
    let whole = count - count % ROW;
    let mut partials = [[0.0; ROW]; u32::BITS as usize];
    let row = |source: &Region, index| {
        let first = source.address().cast::<R::Stored>().wrapping_add(index);
        first.cast::<[R::Stored; ROW]>()
    };
    let target = |index| into.address().cast::<T::Stored>().wrapping_add(index);
    for index in (0..whole).step_by(ROW) {
        // SAFETY: a whole row from `index` is inside every region; every source's row is read
        // before the target's is written.
        unsafe {
            let read = |source: &Region| R::widen(row(source, index).read_unaligned());
            let wide = join_all::<J>(sources, &mut partials, read);
            let stored = T::narrow(wide.map(&finish));
            target(index)
                .cast::<[T::Stored; ROW]>()
                .write_unaligned(stored);
        }
    }
    let rest = count - whole;
    if rest == 0 {
        return;
    }
    let padded = |source: &Region| {
        let mut stored = [R::Stored::default(); ROW];
        // SAFETY: `rest` elements from `whole` on are inside the source, and inside a row; the
        // instructions are available by the caller's contract.
        unsafe {
            let bytes = rest * size_of::<R::Stored>();
            ptr::copy_nonoverlapping(
                row(source, whole).cast::<u8>(),
                stored.as_mut_ptr().cast(),
                bytes,
            );
            R::widen(stored)
        }
    };
    let wide = join_all::<J>(sources, &mut partials, padded);
    // SAFETY: as above, for the target.
    unsafe {
        let stored = T::narrow(wide.map(&finish));
        let bytes = rest * size_of::<T::Stored>();
        ptr::copy_nonoverlapping(stored.as_ptr().cast::<u8>(), target(whole).cast(), bytes);
    }
}

/// Joins the rows that `read` returns for each source, in the order of [`tree`]. `partials` is
/// scratch space.
#[inline(always)]
fn join_all<J: Join<f32>>(
    sources: &[Region],
    partials: &mut Partials,
    read: impl Fn(&Region) -> [f32; ROW],
) -> [f32; ROW] {
    let pair = |a, b| join_rows::<J>(read(a), read(b));
    match sources {
        [only] => return read(only),
        [a, b] => return pair(a, b),
        [a, b, c] => return join_rows::<J>(pair(a, b), read(c)),
        [a, b, c, d] => return join_rows::<J>(pair(a, b), pair(c, d)),
        _ => {}
    }
    for join in tree::joins(sources.len()) {
        match join {
            TreeJoin::Pair { first, level } => {
                partials[level] = pair(&sources[first], &sources[first + 1]);
            }
            TreeJoin::Leaf { leaf, level } => {
                partials[level] = join_rows::<J>(partials[level], read(&sources[leaf]));
            }
            TreeJoin::Partials { level } => {
                partials[level] = join_rows::<J>(partials[level], partials[level + 1]);
            }
            TreeJoin::LastLeaf { leaf } => {
                partials[0] = join_rows::<J>(partials[0], read(&sources[leaf]));
            }
            TreeJoin::LastPartials => partials[0] = join_rows::<J>(partials[0], partials[1]),
        }
    }
    partials[0]
}

#[inline(always)]
fn join_rows<J: Join<f32>>(a: [f32; ROW], b: [f32; ROW]) -> [f32; ROW] {
    std::array::from_fn(|lane| J::join(a[lane], b[lane]))
}
