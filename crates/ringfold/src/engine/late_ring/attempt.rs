//! One attempt at a late-merge call: the location of its data, and its postings.

use super::state::{LateMergeState, LateRing, Posting, SliceChunk};
use crate::engine::context::Context;
use crate::engine::operation::PreparedOperation;
use crate::engine::tickets;
use crate::error::Result;
use crate::memory::Region;
use crate::schedule;
use crate::transport::{Posted, Ticket, Transport};

/// One attempt at a call, with the state that it uses.
pub(super) struct RingAttempt<'a> {
    pub ring: &'a mut LateRing,
    pub operation: &'a PreparedOperation,
    pub context: &'a mut Context,
    pub state: &'a mut LateMergeState,
}

impl RingAttempt<'_> {
    /// Returns this rank's contribution to a part.
    pub fn own(&self, SliceChunk { slice, chunk }: SliceChunk) -> Region {
        self.operation
            .region(schedule::input(chunk as u32, 1), slice)
    }

    /// Returns the destination of a part's result.
    pub fn output(&self, SliceChunk { slice, chunk }: SliceChunk) -> Region {
        // The result of a reduce-scatter is one block.
        let first = if self.ring.gathers { chunk as u32 } else { 0 };
        self.operation.region(schedule::output(first, 1), slice)
    }

    /// Calls `post` with a new ticket, which stands for `posting`.
    pub fn post(
        &mut self,
        posting: Posting,
        post: impl FnOnce(&mut dyn Transport, Ticket) -> Result<Posted>,
    ) -> Result<Posted> {
        let LateRing { postings, free, .. } = &mut *self.ring;
        let number = free.pop().unwrap_or_else(|| {
            postings.push(None);
            (postings.len() - 1) as u32
        });
        postings[number as usize] = Some(posting);
        let ticket = tickets::ticket(self.operation.id, number.into());
        let posted = post(self.context.transport.as_mut(), ticket)?;
        if posted == Posted::Done {
            self.ring.done.push_back(number);
        }
        Ok(posted)
    }
}
