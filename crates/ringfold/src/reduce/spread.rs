//! Sums of a few sources into one target or as many, as in an all-reduce among a few ranks.
//!
//! The sums go through registers, a few elements at a time. Every source is read once and every
//! target written once; a target may be one of the sources. The bits are those of a fold.

use std::marker::PhantomData;
use std::ops::Mul;
use std::sync::atomic::{Ordering, compiler_fence};

use super::fold::ElementFormat;
use super::level::LoopBody;
use super::ops::{Join, Sum};
use super::store::{LINE_BYTES, Store, stream};
use crate::memory::Region;

/// Elements that go through registers together: the compiler keeps arrays of 32 in memory, which
/// costs a factor of six.
pub(super) const ROW: usize = 16;

/// Numbers of sources that have a loop of their own.
const FEW: std::ops::RangeInclusive<usize> = 2..=4;

/// Targets and options of the loops for a few sources.
#[derive(Clone, Copy, Debug)]
pub(super) struct Targets {
    /// One target or as many as sources, in whole rows; the targets' length decides how much is
    /// summed.
    list: [Region; *FEW.end()],
    /// Whether there is one target.
    is_one: bool,
    /// Factor of the sums; floats only.
    factor: Option<f64>,
    /// Whether the stores are streamed; then all targets begin at lines.
    is_streamed: bool,
}

impl Targets {
    /// Returns the first `bytes` bytes of `targets`, which are whole rows, if a loop exists for
    /// these numbers of sources and targets.
    pub(super) fn new(
        targets: &[Region],
        sources: &[Region],
        bytes: usize,
        factor: Option<f64>,
        store: Store,
    ) -> Option<Targets> {
        let is_aligned = |target: &Region| target.address().addr().is_multiple_of(LINE_BYTES);
        let is_streamed = store == Store::Streamed;
        if !FEW.contains(&sources.len())
            || ![1, sources.len()].contains(&targets.len())
            || (is_streamed && !targets.iter().all(is_aligned))
        {
            return None;
        }
        let mut list = [Region::EMPTY; *FEW.end()];
        for (place, target) in list.iter_mut().zip(targets) {
            *place = target.part(0..bytes);
        }
        Some(Targets {
            list,
            is_one: targets.len() == 1,
            factor,
            is_streamed,
        })
    }
}

/// The representation of a row of elements in buffers and in registers.
pub(super) trait RowFormat {
    /// Type of an element in buffers.
    type Stored: Copy + Default;
    /// Type of an element in registers.
    type Wide: Copy;

    /// # Safety
    /// The machine has the instructions of this implementation.
    unsafe fn widen(stored: [Self::Stored; ROW]) -> [Self::Wide; ROW];

    /// # Safety
    /// As for `widen`.
    unsafe fn narrow(wide: [Self::Wide; ROW]) -> [Self::Stored; ROW];

    /// Converts a factor to the type in registers.
    fn factor(factor: f64) -> Self::Wide;
}

impl<F: ElementFormat> RowFormat for F {
    type Stored = F::Stored;
    type Wide = F::Wide;

    #[inline(always)]
    unsafe fn widen(stored: [F::Stored; ROW]) -> [F::Wide; ROW] {
        stored.map(F::widen)
    }

    #[inline(always)]
    unsafe fn narrow(wide: [F::Wide; ROW]) -> [F::Stored; ROW] {
        wide.map(F::narrow)
    }

    #[inline(always)]
    fn factor(factor: f64) -> F::Wide {
        F::factor(factor)
    }
}

/// Sums that are stored unscaled.
pub(super) struct Spread<F>(PhantomData<F>);

impl<F: RowFormat> LoopBody<Targets> for Spread<F>
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
pub(super) struct SpreadScaled<F>(PhantomData<F>);

impl<F: RowFormat> LoopBody<Targets> for SpreadScaled<F>
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
        // The sum is rounded before it is scaled, as in a fold followed by a scaling.
        // SAFETY: the same contract.
        unsafe {
            by_count::<F>(sources, &targets, |wide| {
                F::narrow(F::widen(F::narrow(wide)).map(|value| value * factor))
            });
        }
    }
}

/// # Safety
/// As [`LoopBody::run`]; the number of sources is in [`FEW`]; `targets` is as [`Targets`]
/// describes.
#[inline(always)]
unsafe fn by_count<F: RowFormat>(
    sources: &[Region],
    targets: &Targets,
    finish: impl Fn([F::Wide; ROW]) -> [F::Stored; ROW],
) where
    Sum: Join<F::Wide>,
{
    // SAFETY: the same contract.
    unsafe {
        match sources {
            [a, b] if targets.is_one => by_store::<F, 2, 1>([*a, *b], targets, finish),
            [a, b] => by_store::<F, 2, 2>([*a, *b], targets, finish),
            [a, b, c] if targets.is_one => by_store::<F, 3, 1>([*a, *b, *c], targets, finish),
            [a, b, c] => by_store::<F, 3, 3>([*a, *b, *c], targets, finish),
            [a, b, c, d] if targets.is_one => {
                by_store::<F, 4, 1>([*a, *b, *c, *d], targets, finish)
            }
            [a, b, c, d] => by_store::<F, 4, 4>([*a, *b, *c, *d], targets, finish),
            _ => unreachable!("the caller has counted"),
        }
    }
}

/// # Safety
/// As [`by_count`].
#[inline(always)]
unsafe fn by_store<F: RowFormat, const N: usize, const M: usize>(
    sources: [Region; N],
    targets: &Targets,
    finish: impl Fn([F::Wide; ROW]) -> [F::Stored; ROW],
) where
    Sum: Join<F::Wide>,
{
    let into: [Region; M] = std::array::from_fn(|number| targets.list[number]);
    // SAFETY: the same contract; a row is as long as its array.
    unsafe {
        if targets.is_streamed {
            sum_rows::<F, N, M>(sources, into, finish, |to, row| {
                stream(to.cast(), (&raw const row).cast(), size_of_val(&row));
            });
        } else {
            sum_rows::<F, N, M>(sources, into, finish, |to, row| {
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
unsafe fn sum_rows<F: RowFormat, const N: usize, const M: usize>(
    sources: [Region; N],
    into: [Region; M],
    finish: impl Fn([F::Wide; ROW]) -> [F::Stored; ROW],
    put: impl Fn(*mut F::Stored, [F::Stored; ROW]),
) where
    Sum: Join<F::Wide>,
{
    let count = into[0].bytes() / size_of::<F::Stored>();
    let from = sources.map(|source| source.address().cast::<F::Stored>());
    let into = into.map(|target| target.address().cast::<F::Stored>());
    for index in (0..count).step_by(ROW) {
        // SAFETY: a whole row from `index` is inside every region; all sources' rows are read
        // before any target's is written.
        unsafe {
            let read = |from: *mut F::Stored| {
                F::widen(from.add(index).cast::<[_; ROW]>().read_unaligned())
            };
            let join = |a: [F::Wide; ROW], b: [F::Wide; ROW]| -> [F::Wide; ROW] {
                std::array::from_fn(|lane| Sum::join(a[lane], b[lane]))
            };
            let pair = |first: usize| join(read(from[first]), read(from[first + 1]));
            // The order of `tree`.
            let row = finish(match N {
                2 => pair(0),
                3 => join(pair(0), read(from[2])),
                _ => join(pair(0), pair(2)),
            });
            for target in into {
                put(target.add(index), row);
            }
        }
        // Keeps vectorisation within a row: the compiler would otherwise interleave many rows,
        // which is slow.
        compiler_fence(Ordering::AcqRel);
    }
}
