//! Copies and reductions of large calls, divided among threads if cores outnumber ranks.
//!
//! One core moves some 10 GB/s, a memory controller many times that: a rank limited by its own core
//! can use idle ones. [`Parallel`] divides a copy or a reduction elementwise into pieces for
//! *helper* threads. The calling thread works on pieces as well and returns when all are done.
//! Nothing outlives a step, and errors, deadlines and verdicts are the same as without helpers.
//!
//! # Model
//!
//! There is one task at a time. Threads claim its pieces one by one from a word that holds the
//! task's number, the number of pieces and the next piece (`pool`). The task does not wait for a
//! late helper. Helpers start with the first task, spin briefly after each task and then sleep, so
//! an idle communicator uses no core. While slices of a call of devices are in flight, they stay
//! awake for longer. Helpers inherit the affinity of the first caller.
//!
//! # Invariants
//!
//! * The same bits as without helpers: an element is computed by one thread, from the same sources
//!   in the same order.
//! * Nothing is allocated once the largest number of sources has been seen.
//! * The caller alone performs a step that is too small to gain from helpers; the size of a step
//!   limits the number of threads.
//! * Communicators of one process with concurrent steps share cores: each invites fewer helpers.

#![forbid(unsafe_code)]

mod pool;

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Factor, ReductionKernel, Store, spread_copy};
use crate::error::Result;
use crate::memory::Region;
use pool::{HelperPool, TaskOperation};

/// Maximum number of helpers of one communicator: fewer keep a memory controller busy.
pub const HELPERS_MAX: usize = 63;

/// Maximum number of helpers by default: eight threads use up a rank's share of memory bandwidth on
/// most machines.
const AUTOMATIC_MAX: usize = 7;

/// Minimum bytes that a divided step touches: some 25 µs of one core, against one or two for the
/// handover.
const STEP_BYTES_MIN: usize = 256 << 10;

/// Minimum bytes that a step touches for each thread that takes part: some 12 µs of one core.
const THREAD_BYTES_MIN: usize = 128 << 10;

/// Number of divided steps of this process that are running. A hint, which orders nothing.
static STEPS_UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Returns how many of `count` helpers take part in a step that touches `touched_bytes` bytes,
/// while `others` such steps of the process run.
fn invited(count: usize, touched_bytes: usize, others: usize) -> usize {
    let share = (count + 1) / (others + 1);
    let gaining = touched_bytes / THREAD_BYTES_MIN;
    share.min(gaining).saturating_sub(1)
}

/// Returns the default number of helpers of a rank: its share of `cores`, limited by its own
/// affinity, less its own core.
pub fn automatic(cores: usize, local_ranks: usize, own_cores: usize) -> usize {
    let share = (cores / local_ranks.max(1)).min(own_cores);
    share.saturating_sub(1).min(AUTOMATIC_MAX)
}

/// Executor of one communicator's copies and reductions, with helpers for the large ones.
#[derive(Debug)]
pub struct Parallel {
    helpers: usize,
    call_bytes_min: u64,
    /// Whether steps of the current call may be divided.
    divides: bool,
    /// The most helpers of a step of the current call.
    invited_max: usize,
    pool: Option<HelperPool>,
}

impl Parallel {
    /// Returns an executor without helpers.
    pub fn none() -> Parallel {
        Parallel::new(0, u64::MAX)
    }

    /// Returns an executor with `helpers` helpers, [`HELPERS_MAX`] at most, for calls of
    /// `call_bytes_min` bytes and more. Starts no thread yet.
    pub fn new(helpers: usize, call_bytes_min: u64) -> Parallel {
        Parallel {
            helpers: helpers.min(HELPERS_MAX),
            call_bytes_min,
            divides: false,
            invited_max: usize::MAX,
            pool: None,
        }
    }

    /// Whether steps of a call of `call_bytes` bytes are divided.
    pub fn divides(&self, call_bytes: usize) -> bool {
        self.helpers > 0 && call_bytes as u64 >= self.call_bytes_min
    }

    /// Returns the number of threads of a large step.
    pub fn threads(&self) -> usize {
        match self.call_bytes_min {
            u64::MAX => 1,
            _ => 1 + self.helpers,
        }
    }

    /// Starts a call of `call_bytes` bytes; the following steps belong to the call.
    pub fn begin_call(&mut self, call_bytes: usize) {
        (self.divides, self.invited_max) = (self.divides(call_bytes), usize::MAX);
    }

    /// Begins the steps of a call's slices, which follow each other as devices bring them: with
    /// `helpers_max` helpers each, which stay awake until [`end_flight`](Parallel::end_flight).
    pub fn begin_flight(&mut self, helpers_max: usize) {
        self.invited_max = helpers_max;
        let helps = self.divides && helpers_max > 0 && self.helpers > 0;
        let count = self.helpers;
        if helps {
            let pool = self.pool.get_or_insert_with(|| HelperPool::start(count));
            pool.set_in_flight(true);
        }
    }

    /// Lets helpers sleep.
    pub fn end_flight(&mut self) {
        if let Some(pool) = &self.pool {
            pool.set_in_flight(false);
        }
    }

    /// Runs [`ReductionKernel::fold`], divided if the step is large.
    pub fn fold(&mut self, kernel: ReductionKernel, into: Region, sources: &[Region]) {
        match self.party(into.bytes(), sources.len() + 1) {
            Some(mut party) => {
                // Checked once for the whole: pieces of valid regions are valid.
                kernel.check(into, sources);
                party
                    .run(TaskOperation::Fold(kernel), &[into], sources)
                    .unwrap_or_else(|error| unreachable!("a fold cannot fail: {error}"));
            }
            None => kernel.fold(into, sources),
        }
    }

    /// Runs [`Region::copy_from`], divided if large; `store` applies if the regions do not overlap.
    pub fn copy(&mut self, into: Region, from: Region, store: Store) -> Result<()> {
        let is_apart = !into.overlaps(from);
        if store == Store::Streamed && is_apart {
            return self.spread_copy(&[into], from, store);
        }
        // Pieces of regions that overlap would have to be copied in order.
        let is_divisible = into.bytes() == from.bytes() && is_apart;
        match self.party(into.bytes(), 2).filter(|_| is_divisible) {
            Some(mut party) => party.run(TaskOperation::Copy, &[into], &[from]),
            None => {
                into.copy_from(from);
                Ok(())
            }
        }
    }

    /// Runs [`ReductionKernel::spread`], divided if the step is large.
    pub fn spread(
        &mut self,
        kernel: &ReductionKernel,
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
                party.run(
                    TaskOperation::Spread(*kernel, factor, store),
                    targets,
                    sources,
                )
            }
            None => kernel.spread(targets, sources, factor, store, parts),
        }
    }

    /// Runs [`spread_copy`], divided if the step is large.
    pub fn spread_copy(&mut self, targets: &[Region], source: Region, store: Store) -> Result<()> {
        let is_whole = |target: &Region| {
            target.bytes() == source.bytes() && (target.is_same(source) || !target.overlaps(source))
        };
        match self.party(source.bytes(), targets.len() + 1) {
            Some(mut party) if targets.iter().all(is_whole) => {
                party.run(TaskOperation::SpreadCopy(store), targets, &[source])
            }
            _ => {
                spread_copy(targets, source, store);
                Ok(())
            }
        }
    }

    /// Returns the threads for a step on `bytes` bytes in each of `regions` regions, if helpers are
    /// worthwhile.
    fn party(&mut self, bytes: usize, regions: usize) -> Option<Party<'_>> {
        let touched = bytes.saturating_mul(regions);
        if !self.divides || touched < STEP_BYTES_MIN {
            return None;
        }
        let count = self.helpers;
        let under_way = RunningStep::begin();
        let invited = invited(count, touched, under_way.others).min(self.invited_max);
        (invited > 0).then(|| Party {
            pool: self.pool.get_or_insert_with(|| HelperPool::start(count)),
            invited,
            _under_way: under_way,
        })
    }
}

/// The threads of a step that is about to begin.
struct Party<'a> {
    pool: &'a mut HelperPool,
    invited: usize,
    _under_way: RunningStep,
}

impl Party<'_> {
    fn run(&mut self, work: TaskOperation, targets: &[Region], sources: &[Region]) -> Result<()> {
        self.pool.run(work, targets, sources, self.invited)
    }
}

/// A guard that counts a step as running until dropped.
struct RunningStep {
    /// Number of steps that were running when this step began.
    others: usize,
}

impl RunningStep {
    fn begin() -> RunningStep {
        RunningStep {
            others: STEPS_UNDER_WAY.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Drop for RunningStep {
    fn drop(&mut self) {
        STEPS_UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
