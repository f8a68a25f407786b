//! Reductions whose result is stored to several places at once, and copies that are.
//!
//! Every source is read once, and every target written once; a target may be one of the sources.
//! Sums of a few sources into as many targets, as in an all-reduce among a few ranks, use
//! registers, a few elements at a time. All other cases use the general method: a block is reduced
//! while it stays in the first-level cache and is stored from there to all targets. The bits are
//! the same.
//!
//! Stores may be *streamed*, past the caches: a line that is not read soon need not be fetched to
//! be overwritten.

use std::marker::PhantomData;
use std::ops::Mul;
use std::sync::atomic::{Ordering, compiler_fence};

use super::kernels::{Brain, Format, Plain};
use super::level::{Body, Level, Run, compiled};
use super::ops::{Join, Sum};
use super::scale::{Factor, scale};
use super::{Kernel, check_regions};
use crate::error::Result;
use crate::memory::Region;
use crate::types::DType;

/// Bytes of the general way's block: large enough to hide the start of each loop, small enough to
/// stay in the first-level cache with what is read.
const BLOCK_BYTES: usize = 4096;

/// Elements that go through registers together. Of more, the compiler keeps them in memory.
pub(super) const ROW: usize = 16;

/// Sources that have a loop of their own.
const FEW: std::ops::RangeInclusive<usize> = 2..=4;

/// What streamed stores must be aligned to: a cache line, so that each fills lines whole.
const LINE_BYTES: usize = 64;

/// How results are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// As usual: the lines stay in the cache.
    Cached,
    /// Past the caches, where the CPU has stores for that and the target begins at a line. Slow for
    /// memory that is cached, as what was just read is.
    Streamed,
}

/// A block on the stack.
#[repr(align(64))]
struct Block([u8; BLOCK_BYTES]);

impl Kernel {
    /// Sets every element of all `targets` to the reduction of that element of `sources`, from
    /// first to last, scaled by `factor`. `parts` is scratch room for a list.
    ///
    /// The regions must satisfy the contract of [`fold`](Kernel::fold); each target may be one of
    /// the sources, and no two targets overlap. The bits are those of a fold followed by a scaling.
    /// Streamed stores are complete when this returns, for any thread that sees what this thread
    /// stores next.
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
        let rows = self.spread_rows(targets, sources, factor, store);
        let mut block = Block([0; BLOCK_BYTES]);
        let bytes = sources[0].bytes();
        for start in (rows..bytes).step_by(BLOCK_BYTES) {
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

    /// Does whole rows by the loop for a few sources, if it serves; how many bytes are done.
    fn spread_rows(
        &self,
        targets: &[Region],
        sources: &[Region],
        factor: Option<Factor>,
        store: Store,
    ) -> usize {
        let Some(run) = self.spread else { return 0 };
        let factor = match factor {
            None => None,
            Some(Factor::Multiply(factor)) => Some(factor),
            Some(Factor::Divide(_)) => return 0,
        };
        let is_aligned = |target: &Region| target.address().addr().is_multiple_of(LINE_BYTES);
        let is_streamed = store == Store::Streamed;
        if !FEW.contains(&sources.len())
            || targets.len() != sources.len()
            || (is_streamed && !targets.iter().all(is_aligned))
        {
            return 0;
        }
        let row_bytes = ROW * self.dtype.size_bytes();
        let bytes = sources[0].bytes() / row_bytes * row_bytes;
        let mut list = [Region::EMPTY; *FEW.end()];
        for (place, target) in list.iter_mut().zip(targets) {
            *place = target.part(0..bytes);
        }
        let targets = Targets {
            list,
            factor,
            is_streamed,
        };
        // SAFETY: lengths and overlap are those checked by `check_regions`, cut to whole rows, and
        // there is a loop for this number of sources and targets; streamed targets begin at lines;
        // `Kernel::at_level` has chosen a loop of this machine.
        unsafe { run(Region::EMPTY, sources, targets) };
        bytes
    }
}

/// What the loops for a few sources take besides these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Targets {
    /// As many as there are sources; whole rows, which decides how much is done.
    list: [Region; *FEW.end()],
    /// Floats only.
    factor: Option<f64>,
    /// Then all targets begin at lines.
    is_streamed: bool,
}

/// The loop of sums for a few sources, if this type has one.
pub(super) fn sum(dtype: DType, level: Level) -> Option<Run<Targets>> {
    Some(match dtype {
        DType::I8 | DType::U8 => compiled::<Spread<Plain<u8>>, _>(level),
        DType::I16 | DType::U16 => compiled::<Spread<Plain<u16>>, _>(level),
        DType::I32 | DType::U32 => compiled::<Spread<Plain<u32>>, _>(level),
        DType::I64 | DType::U64 => compiled::<Spread<Plain<u64>>, _>(level),
        DType::F32 => compiled::<SpreadScaled<Plain<f32>>, _>(level),
        DType::F64 => compiled::<SpreadScaled<Plain<f64>>, _>(level),
        DType::BF16 => compiled::<SpreadScaled<Brain>, _>(level),
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx2 => {
            compiled::<SpreadScaled<super::x86::Converted<super::x86::F16c>>, _>(level)
        }
        #[cfg(target_arch = "x86_64")]
        DType::F16 if level == Level::Avx512 => {
            compiled::<SpreadScaled<super::x86::Converted<super::x86::Avx512>>, _>(level)
        }
        _ => return None,
    })
}

/// How a row of elements is stored and how it is held while it is combined.
pub(super) trait Rows {
    /// In buffers.
    type Stored: Copy;
    /// In registers.
    type Wide: Copy;

    /// # Safety
    /// The machine has the instructions of this form.
    unsafe fn widen(stored: [Self::Stored; ROW]) -> [Self::Wide; ROW];

    /// # Safety
    /// As for `widen`.
    unsafe fn narrow(wide: [Self::Wide; ROW]) -> [Self::Stored; ROW];

    /// A factor as it is held.
    fn factor(factor: f64) -> Self::Wide;
}

macro_rules! rows_of_elements {
    ($($format:ty, $factor:ty;)*) => {
        $(
            impl Rows for $format {
                type Stored = <$format as Format>::Stored;
                type Wide = <$format as Format>::Wide;

                #[inline(always)]
                unsafe fn widen(stored: [Self::Stored; ROW]) -> [Self::Wide; ROW] {
                    stored.map(<$format as Format>::widen)
                }

                #[inline(always)]
                unsafe fn narrow(wide: [Self::Wide; ROW]) -> [Self::Stored; ROW] {
                    wide.map(<$format as Format>::narrow)
                }

                #[inline(always)]
                fn factor(factor: f64) -> Self::Wide {
                    factor as $factor
                }
            }
        )*
    };
}

rows_of_elements! {
    Plain<u8>, u8;
    Plain<u16>, u16;
    Plain<u32>, u32;
    Plain<u64>, u64;
    Plain<f32>, f32;
    Plain<f64>, f64;
    Brain, f32;
}

/// Sums that are stored as they are.
struct Spread<F>(PhantomData<F>);

impl<F: Rows> Body<Targets> for Spread<F>
where
    Sum: Join<F::Wide>,
{
    #[inline(always)]
    unsafe fn run(_: Region, sources: &[Region], targets: Targets) {
        // SAFETY: the same contract.
        unsafe { by_count::<F>(sources, &targets, |wide| F::narrow(wide)) }
    }
}

/// Sums that may be scaled.
struct SpreadScaled<F>(PhantomData<F>);

impl<F: Rows> Body<Targets> for SpreadScaled<F>
where
    Sum: Join<F::Wide>,
    F::Wide: Mul<Output = F::Wide>,
{
    #[inline(always)]
    unsafe fn run(_: Region, sources: &[Region], targets: Targets) {
        let Some(factor) = targets.factor.map(F::factor) else {
            // SAFETY: the same contract.
            return unsafe { by_count::<F>(sources, &targets, |wide| F::narrow(wide)) };
        };
        // The sum is rounded before it is scaled, as elsewhere.
        // SAFETY: the same contract.
        unsafe {
            by_count::<F>(sources, &targets, |wide| {
                F::narrow(F::widen(F::narrow(wide)).map(|value| value * factor))
            });
        }
    }
}

/// # Safety
/// As [`Body::run`]; the targets are as many as the sources, of which there are [`FEW`], and what
/// [`Targets`] says.
#[inline(always)]
unsafe fn by_count<F: Rows>(
    sources: &[Region],
    targets: &Targets,
    finish: impl Fn([F::Wide; ROW]) -> [F::Stored; ROW],
) where
    Sum: Join<F::Wide>,
{
    // SAFETY: the same contract.
    unsafe {
        match sources {
            [a, b] => by_store::<F, 2>([*a, *b], targets, finish),
            [a, b, c] => by_store::<F, 3>([*a, *b, *c], targets, finish),
            [a, b, c, d] => by_store::<F, 4>([*a, *b, *c, *d], targets, finish),
            _ => unreachable!("the caller has counted"),
        }
    }
}

/// # Safety
/// As [`by_count`].
#[inline(always)]
unsafe fn by_store<F: Rows, const N: usize>(
    sources: [Region; N],
    targets: &Targets,
    finish: impl Fn([F::Wide; ROW]) -> [F::Stored; ROW],
) where
    Sum: Join<F::Wide>,
{
    let into = std::array::from_fn(|number| targets.list[number]);
    // SAFETY: the same contract; a row is as long as its array.
    unsafe {
        if targets.is_streamed {
            sum_rows::<F, N>(sources, into, finish, |to, row| {
                stream(to.cast(), (&raw const row).cast(), size_of_val(&row));
            });
        } else {
            sum_rows::<F, N>(sources, into, finish, |to, row| {
                to.cast::<[_; ROW]>().write_unaligned(row)
            });
        }
    }
}

/// Sums rows and stores them.
///
/// # Safety
/// As [`by_count`]; `put` must be allowed to store a row at the target.
#[inline(always)]
unsafe fn sum_rows<F: Rows, const N: usize>(
    sources: [Region; N],
    into: [Region; N],
    finish: impl Fn([F::Wide; ROW]) -> [F::Stored; ROW],
    put: impl Fn(*mut F::Stored, [F::Stored; ROW]),
) where
    Sum: Join<F::Wide>,
{
    let count = into[0].bytes() / size_of::<F::Stored>();
    let from = sources.map(|source| source.address().cast::<F::Stored>());
    let into = into.map(|target| target.address().cast::<F::Stored>());
    for index in (0..count).step_by(ROW) {
        // SAFETY: a whole row from `index` is inside every region; all sources are read before
        // anything is written.
        unsafe {
            let read = |from: *mut F::Stored| {
                F::widen(from.add(index).cast::<[_; ROW]>().read_unaligned())
            };
            let mut wide = read(from[0]);
            for source in &from[1..] {
                let other = read(*source);
                wide = std::array::from_fn(|lane| Sum::join(wide[lane], other[lane]));
            }
            let row = finish(wide);
            for target in into {
                put(target.add(index), row);
            }
        }
        // A row is what the compiler should make vectors of. It would rather interleave many rows,
        // which is slow.
        compiler_fence(Ordering::AcqRel);
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
unsafe fn stream(into: *mut u8, from: *const u8, bytes: usize) {
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
fn settle(store: Store) {
    #[cfg(target_arch = "x86_64")]
    if store == Store::Streamed {
        // SAFETY: SSE is in every CPU of this kind.
        unsafe { std::arch::x86_64::_mm_sfence() }
    }
    let _ = store;
}

#[cfg(test)]
mod tests;
