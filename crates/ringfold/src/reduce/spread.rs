//! Sums of a few sources into as many targets: what an all-reduce among a few ranks is.
//!
//! They go through registers, a few elements at a time: every source is read once, and every target
//! written once; a target may be one of the sources. The bits are those of a fold.

use std::marker::PhantomData;
use std::ops::Mul;
use std::sync::atomic::{Ordering, compiler_fence};

use super::fold::Format;
use super::level::Body;
use super::ops::{Join, Sum};
use super::store::{LINE_BYTES, Store, stream};
use crate::memory::Region;

/// Elements that go through registers together. Of more, the compiler keeps them in memory.
pub(super) const ROW: usize = 16;

/// Sources that have a loop of their own.
const FEW: std::ops::RangeInclusive<usize> = 2..=4;

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

impl Targets {
    /// The first `bytes` bytes of `targets`, which are whole rows, if there is a loop for so many
    /// sources and targets.
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
            || targets.len() != sources.len()
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
            factor,
            is_streamed,
        })
    }
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

impl<F: Format> Rows for F {
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

/// Sums that are stored as they are.
pub(super) struct Spread<F>(PhantomData<F>);

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
pub(super) struct SpreadScaled<F>(PhantomData<F>);

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
