//! Helper threads: they share the copies and reductions of large calls where cores outnumber ranks.
//!
//! One core moves some 10 GB/s, a memory controller many times that; a rank whose neighbours' cores idle is bound by its
//! own. [`Helpers`] divides a copy or a reduction elementwise into pieces. The calling thread works on them as well and
//! returns when all are done, so nothing outlives a step, and errors, deadlines and verdicts know nothing of helpers.
//!
//! # Model
//!
//! One task at a time. Its pieces are claimed one by one from a word that holds the task's number, how many pieces there
//! are and which one is next (`pool`). Nobody waits for a helper that has not come: whoever is there takes the next piece.
//! Threads are made on the first task, spin for a moment after each and then sleep, so an idle communicator uses no core;
//! they inherit the affinity of the thread that first calls.
//!
//! # Invariants
//!
//! * The same bits as without helpers: an element is computed by one thread, from the same sources in the same order.
//! * Nothing is allocated once the largest number of sources was seen.
//! * A step too small to gain is done by the caller alone; no more threads take part than its size gives enough to do.
//! * Communicators of one process whose steps are under way together share their threads: each invites fewer.

#![forbid(unsafe_code)]

mod pool;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Result;
use crate::memory::Region;
use crate::reduce::{self, Factor, Kernel, Store};
use pool::{Pool, Work};

/// The most helpers of one communicator: a memory controller is busy with fewer.
pub const HELPERS_MAX: usize = 63;

/// The most that are taken unless somebody asks for more: with eight threads a rank's share of memory bandwidth is used up
/// on most machines.
const AUTOMATIC_MAX: usize = 7;

/// The least that a step touches to be divided: some 25 µs of one core, against one or two for handing it over.
const STEP_BYTES_MIN: usize = 256 << 10;

/// The least that a step touches for each thread that takes part: some 12 µs of one core.
const THREAD_BYTES_MIN: usize = 128 << 10;

/// The least that a piece touches: some 6 µs.
const PIECE_BYTES_MIN: usize = 64 << 10;

/// Pieces per thread, so that whoever is quick takes over from whoever is slow.
const PIECES_PER_THREAD: usize = 2;

/// Pieces begin at multiples of this: no two threads write one cache line of an aligned buffer, and elements stay whole.
const PIECE_ALIGN_BYTES: usize = 4096;

/// Steps of this process' communicators that helpers share at this moment. A hint, which orders nothing.
static STEPS_UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// How many of `count` helpers take part in a step that touches so many bytes, beside `others` such steps of the process.
fn invited(count: usize, touched_bytes: usize, others: usize) -> usize {
    let share = (count + 1) / (others + 1);
    let gaining = touched_bytes / THREAD_BYTES_MIN;
    share.min(gaining).saturating_sub(1)
}

/// How many helpers a rank gets when nobody says: what its share of `cores` and its own affinity leave beside itself.
pub fn automatic(cores: usize, local_ranks: usize, own_cores: usize) -> usize {
    let share = (cores / local_ranks.max(1)).min(own_cores);
    share.saturating_sub(1).min(AUTOMATIC_MAX)
}

/// The helpers of one communicator, and the copies and reductions that they share.
#[derive(Debug)]
pub struct Helpers {
    count: usize,
    call_bytes_min: u64,
    pool: Option<Pool>,
}

impl Helpers {
    /// Nobody helps.
    pub fn none() -> Helpers {
        Helpers::new(0, u64::MAX)
    }

    /// `count` helpers, [`HELPERS_MAX`] at most, for calls of `call_bytes_min` bytes and more. Starts nothing yet.
    pub fn new(count: usize, call_bytes_min: u64) -> Helpers {
        Helpers {
            count: count.min(HELPERS_MAX),
            call_bytes_min,
            pool: None,
        }
    }

    /// Whether a call of so many bytes is large enough to be helped with.
    pub fn serve(&self, call_bytes: usize) -> bool {
        self.count > 0 && call_bytes as u64 >= self.call_bytes_min
    }

    /// What [`Kernel::fold`] does, with everybody's help.
    pub fn fold(&mut self, kernel: Kernel, into: Region, sources: &[Region]) {
        match self.pool(into.bytes(), sources.len() + 1) {
            Some(mut pool) => {
                // Once, for the whole: pieces of what is right are right.
                kernel.check(into, sources);
                pool.run(Work::Fold(kernel), &[into], sources)
                    .unwrap_or_else(|error| unreachable!("a fold cannot fail: {error}"));
            }
            None => kernel.fold(into, sources),
        }
    }

    /// What [`Region::copy_from`] does, with everybody's help.
    pub fn copy(&mut self, into: Region, from: Region) {
        // Pieces of regions that overlap would have to be copied in order.
        let is_divisible = into.bytes() == from.bytes() && !into.overlaps(from);
        match self.pool(into.bytes(), 2).filter(|_| is_divisible) {
            Some(mut pool) => pool
                .run(Work::Copy, &[into], &[from])
                .unwrap_or_else(|error| unreachable!("a copy cannot fail: {error}")),
            None => into.copy_from(from),
        }
    }

    /// What [`Kernel::spread`] does, with everybody's help.
    pub fn spread(
        &mut self,
        kernel: &Kernel,
        targets: &[Region],
        sources: &[Region],
        (factor, store): (Option<Factor>, Store),
        parts: &mut Vec<Region>,
    ) -> Result<()> {
        match self.pool(sources[0].bytes(), sources.len() + targets.len()) {
            Some(mut pool) => {
                targets
                    .iter()
                    .for_each(|target| kernel.check(*target, sources));
                pool.run(Work::Spread(*kernel, factor, store), targets, sources)
            }
            None => kernel.spread(targets, sources, factor, store, parts),
        }
    }

    /// What [`reduce::spread_copy`] does, with everybody's help.
    pub fn spread_copy(&mut self, targets: &[Region], source: Region, store: Store) -> Result<()> {
        let is_whole = |target: &Region| {
            target.bytes() == source.bytes() && (target.is_same(source) || !target.overlaps(source))
        };
        let is_divisible = targets.iter().all(is_whole);
        let pool = self.pool(source.bytes(), targets.len() + 1);
        match pool.filter(|_| is_divisible) {
            Some(mut pool) => pool.run(Work::SpreadCopy(store), targets, &[source]),
            None => {
                reduce::spread_copy(targets, source, store);
                Ok(())
            }
        }
    }

    /// Ends the threads and waits for them; the next large step would start new ones.
    pub fn end(&mut self) {
        self.pool = None;
    }

    /// The threads that take part in a step on so many bytes in so many regions, if any gain from it.
    fn pool(&mut self, bytes: usize, regions: usize) -> Option<Party<'_>> {
        let touched = bytes.saturating_mul(regions);
        if self.count == 0 || touched < STEP_BYTES_MIN {
            return None;
        }
        let count = self.count;
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

/// A step that counts as under way until this is dropped.
struct UnderWay {
    /// Steps that were under way when this one began.
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

/// How long the pieces of a step are that touches `bytes` bytes in each of `regions` regions, for so many threads.
fn piece_bytes(bytes: usize, regions: usize, threads: usize) -> usize {
    let even = bytes.div_ceil(threads * PIECES_PER_THREAD);
    let least = PIECE_BYTES_MIN.div_ceil(regions);
    even.max(least).next_multiple_of(PIECE_ALIGN_BYTES)
}

#[cfg(test)]
mod tests;
