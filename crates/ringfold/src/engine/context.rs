//! The state of a rank that all calls share, whichever executor carries them out.

use super::lateness::Lateness;
use super::operation::PreparedOperation;
use super::unverified::Unverified;
use crate::error::{Error, Result};
use crate::memory::{Block, Pool, Region, Registry};
use crate::reduce::Parallel;
use crate::transport::{Term, Time, Transport, Windows};

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
    /// A reusable list of operands.
    pub operands: Vec<Region>,
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
