//! The interface of executors, by which the engine runs a collective call.
//!
//! An executor carries out a [`PreparedOperation`], whose data all executors share, and tracks the
//! progress of the call. An executor *advances* as far as it can without waiting and learns which
//! tickets *complete*. The executor names the ranks that it *waits for*, and the time at which it
//! continues without them, and is done when all slices are. Messages between two ranks run beside
//! the executors in [`p2p`](super::p2p), by methods of the same names.
//!
//! What an executor *keeps* from one call to the next belongs to the executor. Therefore `advance`
//! and `keep`, which use it, are methods of each executor, and [`executors`](super::executors)
//! calls them.

use super::context::Context;
use super::lateness::Lateness;
use super::operation::PreparedOperation;
use crate::memory::Registry;
use crate::transport::{Ticket, Time};
use crate::wait::WordWait;

/// The progress of a collective call; the defaults suit an executor that posts no work.
pub trait Executor {
    /// Returns the number of slices that are done, in order.
    fn slices_done(&self) -> u32;

    /// Returns the ranks that the call waits for now.
    fn waiting_for(&self, operation: &PreparedOperation, context: &Context) -> Vec<usize>;

    /// Records that the work posted with `ticket` is complete.
    fn complete(&mut self, ticket: Ticket, _lateness: &mut Lateness) {
        unreachable!("ticket {ticket:#x} of a call that posts nothing");
    }

    /// Ends the call: updates the user's buffer with results that peers stored in registered
    /// memory.
    fn end(&self, _operation: &PreparedOperation, _registry: &Registry) {}

    /// Whether the executor is prepared once for all calls of its kind.
    fn is_reused(&self) -> bool {
        false
    }

    /// Whether not all ranks' memory can be reached, which all ranks find alike.
    fn fell_back(&self) -> bool {
        false
    }

    /// Whether local work is left that depends on no peer.
    fn has_local_work(&self) -> bool {
        false
    }

    /// Whether every attempt needs the current time.
    fn needs_clock(&self) -> bool {
        false
    }

    /// Returns the time at which the call stops waiting for a peer and continues without that peer.
    fn next_timer(&self) -> Option<Time> {
        None
    }

    /// Whether this rank is in the call as far as its peers are concerned.
    fn has_begun(&self, _operation: &PreparedOperation) -> bool {
        true
    }

    /// Whether the call's deadline counts now.
    fn is_timed(&self, _operation: &PreparedOperation, _context: &Context) -> bool {
        true
    }

    /// Returns how the call waits if it waits for words of devices, which wake no thread.
    fn words(&self, _operation: &PreparedOperation) -> Option<WordWait> {
        None
    }

    /// Records that the wait under way has lasted until `now`, long enough to be timed.
    fn time_wait(&mut self, now: Time, lateness: &mut Lateness) {
        lateness.time_wait(now);
    }
}
