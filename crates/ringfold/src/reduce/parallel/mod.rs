//! Copies and reductions of large calls, divided among threads where cores outnumber ranks.
//!
//! One core moves some 10 GB/s, a memory controller many times that; a rank whose neighbours' cores
//! are idle is limited by its own. [`Parallel`] divides a copy or a reduction elementwise into
//! pieces for *helper* threads. The calling thread works on them as well and returns when all are
//! done, so nothing outlives a step, and errors, deadlines and verdicts are the same as without
//! helpers.
//!
//! # Model
//!
//! One task at a time. Its pieces are claimed one by one from a word that holds the task's number,
//! the number of pieces and the next piece (`pool`). The task does not wait for a helper that has
//! not arrived: each thread takes the next piece. Threads are started on the first task, spin for a
//! moment after each and then sleep, so an idle communicator uses no core; they inherit the
//! affinity of the thread that calls first.
//!
//! # Invariants
//!
//! * The same bits as without helpers: an element is computed by one thread, from the same sources
//!   in the same order.
//! * Nothing is allocated once the largest number of sources was seen.
//! * A step too small to gain is done by the caller alone; no more threads take part than its size
//!   can occupy.
//! * Communicators of one process with concurrent steps share their threads: each invites fewer.

#![forbid(unsafe_code)]

mod pool;

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Factor, Kernel, Store, spread_copy};
use crate::error::Result;
use crate::memory::Region;
use pool::{Pool, Work};

/// The most helpers of one communicator: a memory controller is busy with fewer.
pub const HELPERS_MAX: usize = 63;

/// The most that are taken unless the settings ask for more: with eight threads a rank's share of
/// memory bandwidth is used up on most machines.
const AUTOMATIC_MAX: usize = 7;

/// The least that a step touches to be divided: some 25 µs of one core, against one or two for
/// handing it over.
const STEP_BYTES_MIN: usize = 256 << 10;

/// The least that a step touches for each thread that takes part: some 12 µs of one core.
const THREAD_BYTES_MIN: usize = 128 << 10;

/// Divided steps of this process' communicators at this moment. A hint, which orders nothing.
static STEPS_UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// How many of `count` helpers take part in a step over this many bytes, beside `others` such steps
/// of the process.
fn invited(count: usize, touched_bytes: usize, others: usize) -> usize {
    let share = (count + 1) / (others + 1);
    let gaining = touched_bytes / THREAD_BYTES_MIN;
    share.min(gaining).saturating_sub(1)
}

/// How many helpers a rank gets by default: what its share of `cores` and its own affinity leave
/// beside itself.
pub fn automatic(cores: usize, local_ranks: usize, own_cores: usize) -> usize {
    let share = (cores / local_ranks.max(1)).min(own_cores);
    share.saturating_sub(1).min(AUTOMATIC_MAX)
}

/// The copies and reductions of one communicator, and the helpers that share the large ones.
#[derive(Debug)]
pub struct Parallel {
    helpers: usize,
    call_bytes_min: u64,
    /// Whether the current call is large enough.
    divides: bool,
    pool: Option<Pool>,
}

impl Parallel {
    /// No helpers.
    pub fn none() -> Parallel {
        Parallel::new(0, u64::MAX)
    }

    /// `helpers` helpers, [`HELPERS_MAX`] at most, for calls of `call_bytes_min` bytes and more.
    /// Starts none yet.
    pub fn new(helpers: usize, call_bytes_min: u64) -> Parallel {
        Parallel {
            helpers: helpers.min(HELPERS_MAX),
            call_bytes_min,
            divides: false,
            pool: None,
        }
    }

    /// Whether steps of a call of this many bytes are divided.
    pub fn divides(&self, call_bytes: usize) -> bool {
        self.helpers > 0 && call_bytes as u64 >= self.call_bytes_min
    }

    /// Starts a call of this many bytes; the following steps belong to it.
    pub fn begin_call(&mut self, call_bytes: usize) {
        self.divides = self.divides(call_bytes);
    }

    /// [`Kernel::fold`].
    pub fn fold(&mut self, kernel: Kernel, into: Region, sources: &[Region]) {
        match self.party(into.bytes(), sources.len() + 1) {
            Some(mut party) => {
                // Once, for the whole: pieces of correct regions are correct.
                kernel.check(into, sources);
                party
                    .run(Work::Fold(kernel), &[into], sources)
                    .unwrap_or_else(|error| unreachable!("a fold cannot fail: {error}"));
            }
            None => kernel.fold(into, sources),
        }
    }

    /// [`Region::copy_from`], stored as `store` says where the regions do not overlap.
    pub fn copy(&mut self, into: Region, from: Region, store: Store) -> Result<()> {
        let is_apart = !into.overlaps(from);
        if store == Store::Streamed && is_apart {
            return self.spread_copy(&[into], from, store);
        }
        // Pieces of regions that overlap would have to be copied in order.
        let is_divisible = into.bytes() == from.bytes() && is_apart;
        match self.party(into.bytes(), 2).filter(|_| is_divisible) {
            Some(mut party) => party.run(Work::Copy, &[into], &[from]),
            None => {
                into.copy_from(from);
                Ok(())
            }
        }
    }

    /// [`Kernel::spread`].
    pub fn spread(
        &mut self,
        kernel: &Kernel,
        targets: &[Region],
        sources: &[Region],
        (factor, store): (Option<Factor>, Store),
        parts: &mut Vec<Region>,
    ) -> Result<()> {
        match self.party(sources[0].bytes(), sources.len() + targets.len()) {
            Some(mut party) => {
                targets
                    .iter()
                    .for_each(|target| kernel.check(*target, sources));
                party.run(Work::Spread(*kernel, factor, store), targets, sources)
            }
            None => kernel.spread(targets, sources, factor, store, parts),
        }
    }

    /// [`spread_copy`].
    pub fn spread_copy(&mut self, targets: &[Region], source: Region, store: Store) -> Result<()> {
        let is_whole = |target: &Region| {
            target.bytes() == source.bytes() && (target.is_same(source) || !target.overlaps(source))
        };
        match self.party(source.bytes(), targets.len() + 1) {
            Some(mut party) if targets.iter().all(is_whole) => {
                party.run(Work::SpreadCopy(store), targets, &[source])
            }
            _ => {
                spread_copy(targets, source, store);
                Ok(())
            }
        }
    }

    /// The threads that take part in a step on this many bytes in this many regions, if any are
    /// worthwhile.
    fn party(&mut self, bytes: usize, regions: usize) -> Option<Party<'_>> {
        let touched = bytes.saturating_mul(regions);
        if !self.divides || touched < STEP_BYTES_MIN {
            return None;
        }
        let count = self.helpers;
        let under_way = UnderWay::begin();
        let invited = invited(count, touched, under_way.others);
        (invited > 0).then(|| Party {
            pool: self.pool.get_or_insert_with(|| Pool::start(count)),
            invited,
            _under_way: under_way,
        })
    }
}

/// The threads of a step that is about to begin.
struct Party<'a> {
    pool: &'a mut Pool,
    invited: usize,
    _under_way: UnderWay,
}

impl Party<'_> {
    fn run(&mut self, work: Work, targets: &[Region], sources: &[Region]) -> Result<()> {
        self.pool.run(work, targets, sources, self.invited)
    }
}

/// A step that counts as running until this is dropped.
struct UnderWay {
    /// Steps that were running when this one began.
    others: usize,
}

impl UnderWay {
    fn begin() -> UnderWay {
        UnderWay {
            others: STEPS_UNDER_WAY.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        STEPS_UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
