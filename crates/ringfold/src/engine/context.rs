//! The state of a rank that its executors share, for all calls.

use super::late_ring::{LateMergeState, Places};
use super::lateness::Lateness;
use super::operation::PreparedOperation;
use super::plans::Plans;
use super::steps::PushScratch;
use super::tiny::inline::Inline;
use super::unverified::Unverified;
use crate::error::{Error, Result};
use crate::memory::{Block, Pool, Region, Registry};
use crate::reduce::Parallel;
use crate::transport::{Term, Time, Transport, Windows};

/// Memory and state that executors keep from one call to the next, to avoid allocations.
pub struct Kept {
    /// A reusable list of operands.
    pub operands: Vec<Region>,
    /// Payloads received in the heads of slots.
    pub inline: Inline,
    /// Plans, and the bookkeeping of their steps.
    pub plans: Plans,
    /// Scratch lists of a push.
    pub push: PushScratch,
    /// The state of late-merge calls, if the communicator has them.
    pub late_merge: Option<Box<LateMergeState>>,
}

impl Kept {
    /// Creates the initial state among `world_size` ranks.
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

/// The state of a rank that an executor uses, shared by all calls.
pub struct Context {
    /// The transport for messages.
    pub transport: Box<dyn Transport>,
    /// Published memory, if all ranks are on one host.
    pub windows: Option<Windows>,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// State kept from earlier calls.
    pub kept: Kept,
    /// The copy and reduction loops, possibly with helper threads.
    pub parallel: Parallel,
    /// The registered buffers of this rank and of its peers.
    pub registry: Registry,
    /// The statistics of late ranks, to which executors report arrivals.
    pub lateness: Lateness,
    /// The newest finished calls in which this rank did not hear from all others, with their
    /// generations.
    pub unverified: Unverified,
    /// Memory for needs that cannot be known beforehand.
    pub pool: Pool,
    /// The time of the last attempt.
    pub now: Time,
    /// Whether the transport has been polled at time `now`.
    pub is_polled: bool,
}

impl Context {
    /// Returns the state of late-merge calls.
    pub fn late_merge(&mut self) -> &mut LateMergeState {
        self.kept.late_merge()
    }

    /// Returns the places of late-merge pieces, with the pool and the transport to create more.
    pub fn places(&mut self) -> (&Pool, &mut dyn Transport, &mut Places) {
        let places = &mut self.kept.late_merge().places;
        (&self.pool, self.transport.as_mut(), places)
    }

    /// Verifies that all ranks were in the same calls. A call in which this rank did not hear from
    /// all others (for example, if two ranks act as root of a broadcast) is noted. Noted calls are
    /// compared at the next call in which all ranks meet.
    #[inline(always)]
    pub(super) fn compare_calls(&mut self, operation: &PreparedOperation) -> Result<()> {
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

/// Returns at least `bytes` bytes of memory, prepared for direct use by messages if possible.
pub fn scratch(pool: &Pool, transport: &mut dyn Transport, bytes: usize) -> Block {
    let mut block = pool.take(bytes);
    block.hold(|memory| transport.hold(memory, Term::Long));
    block
}

/// Returns the windows, or `Unsupported` if there are none.
#[inline]
pub fn windows(windows: &mut Option<Windows>) -> Result<&mut Windows> {
    windows
        .as_mut()
        .ok_or_else(|| Error::Unsupported("published memory between ranks of several hosts".into()))
}
