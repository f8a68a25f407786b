//! What executors work with: the rank's, for all its calls.

use super::late_ring::{LateMergeState, Places};
use super::lateness::Lateness;
use super::operation::Operation;
use super::plans::Plans;
use super::steps::PushScratch;
use super::tiny::inline::Inline;
use super::unverified::Unverified;
use crate::error::{Error, Result};
use crate::memory::{Block, Pool, Region, Registry};
use crate::reduce::Parallel;
use crate::transport::{Term, Time, Transport, Windows};

/// What executors keep from one call to the next, so that it is not allocated each time.
pub struct Kept {
    /// A list to build operands in.
    pub operands: Vec<Region>,
    /// Payloads in the heads of slots.
    pub inline: Inline,
    /// Plans, and the bookkeeping of their steps.
    pub plans: Plans,
    /// Room for a push.
    pub push: PushScratch,
    /// What late-merge calls need, where the communicator has them.
    pub late_merge: Option<Box<LateMergeState>>,
}

impl Kept {
    /// Nothing yet, among `world_size` ranks.
    pub fn new(world_size: usize) -> Kept {
        Kept {
            operands: Vec::new(),
            inline: Inline::new(world_size),
            plans: Plans::default(),
            push: PushScratch::default(),
            late_merge: None,
        }
    }

    fn late_merge(&mut self) -> &mut LateMergeState {
        let state = self.late_merge.as_deref_mut();
        state.expect("a late-merge call was prepared with it")
    }
}

/// What an executor works with: the rank's, for all its calls.
pub struct Context {
    /// Where messages go.
    pub transport: Box<dyn Transport>,
    /// Published memory, if all ranks are on one host.
    pub windows: Option<Windows>,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// What was kept of earlier calls.
    pub kept: Kept,
    /// What copies and combines, maybe with other threads.
    pub parallel: Parallel,
    /// The buffers that peers have mapped, and theirs.
    pub registry: Registry,
    /// Learns which peers arrived.
    pub lateness: Lateness,
    /// Finished calls in which this rank did not hear from all others, and their generations: the
    /// newest few.
    pub unverified: Unverified,
    /// Memory for what cannot be known beforehand.
    pub pool: Pool,
    /// The time of the last attempt.
    pub now: Time,
    /// Whether the transport has been polled at this time.
    pub is_polled: bool,
}

impl Context {
    /// What late-merge calls have kept.
    pub fn late_merge(&mut self) -> &mut LateMergeState {
        self.kept.late_merge()
    }

    /// Where the pieces of late-merge calls land, and what makes more places.
    pub fn places(&mut self) -> (&Pool, &mut dyn Transport, &mut Places) {
        let places = &mut self.kept.late_merge().places;
        (&self.pool, self.transport.as_mut(), places)
    }

    /// Compares the calls of ranks that do not hear from each other in them (two that both take
    /// themselves for the root of a broadcast), at the next call in which all meet; notes a call in
    /// which not all did.
    #[inline(always)]
    pub(super) fn compare_calls(&mut self, operation: &Operation) -> Result<()> {
        if !operation.publishes {
            return Ok(());
        }
        if !operation.hears_all {
            self.unverified
                .note(operation.last_generation(), operation.call);
        } else if !self.unverified.is_empty()
            && let Some(windows) = &self.windows
        {
            self.unverified.verify_all(windows)?;
        }
        Ok(())
    }
}

/// Memory of at least `bytes` bytes, which messages use directly where they can.
pub fn scratch(pool: &Pool, transport: &mut dyn Transport, bytes: usize) -> Block {
    let mut block = pool.take(bytes);
    block.hold(|memory| transport.hold(memory, Term::Long));
    block
}

/// The windows of a context that has them.
#[inline]
pub fn windows(windows: &mut Option<Windows>) -> Result<&mut Windows> {
    windows
        .as_mut()
        .ok_or_else(|| Error::Unsupported("published memory between ranks of several hosts".into()))
}
