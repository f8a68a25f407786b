//! The executor of the `direct` all-reduce over published memory: three counters instead of steps.
//!
//! A slice is a few microseconds of work, so the overhead of a schedule's steps is noticeable. This
//! executor publishes, reduces and takes back the same slices in a plain loop, with the same
//! generations, phases and offsets. A rank that runs this executor interoperates with a rank that
//! runs the schedule, which a test checks. The executor never blocks: if a peer has not arrived, it
//! tries another slice. If no slice is ready, the executor returns.
//!
//! A block of a sum is stored to its destinations while it is in the first-level cache. All stores
//! are regular: non-temporal ones would evict results from a cache that two cores share.

use super::context::{Context, windows};
use super::executor::Executor;
use super::operation::PreparedOperation;
use crate::error::Result;
use crate::schedule::{Buffer, input, output};
use crate::transport::Wake;

/// The phases in which inputs and sums are published, as in `schedule::staged`.
const INPUTS: u8 = 1;
const REDUCED: u8 = 2;

/// Maximum number of slices that are published and not taken back; more would only leave the cache.
const SLICES_AHEAD_MAX: u32 = 3;

/// Number of bytes reduced and stored at once: small enough to stay in the first-level cache,
/// together with the operands.
const BLOCK_BYTES: usize = 8 << 10;

/// Number of slices published, reduced and taken back, and the progress of the next ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct {
    published: u32,
    reduced: u32,
    taken: u32,
    /// Number of ranks seen to have published the slice to be reduced next.
    arrived: usize,
    /// Number of ranks whose sums of the slice to be taken back next have been copied.
    taken_from: usize,
}

impl Direct {
    /// Does all work that is ready; returns whether there was any.
    pub fn advance(
        &mut self,
        operation: &PreparedOperation,
        context: &mut Context,
    ) -> Result<bool> {
        // A copy that the compiler can keep in registers.
        let mut at = *self;
        let mut progressed = false;
        loop {
            let published = at.publish_next(operation, context)?;
            let reduced = at.reduce_next(operation, context)?;
            let taken = at.take_next(operation, context)?;
            if !(published || reduced || taken) {
                break;
            }
            progressed = true;
        }
        *self = at;
        Ok(progressed)
    }

    /// Publishes the chunks of the next slice that other ranks reduce.
    fn publish_next(
        &mut self,
        operation: &PreparedOperation,
        context: &mut Context,
    ) -> Result<bool> {
        let slice = self.published;
        if slice == operation.slices || slice - self.taken == SLICES_AHEAD_MAX {
            return Ok(false);
        }
        let generation = operation.generation(slice);
        let windows = windows(&mut context.windows)?;
        if !windows.is_free(generation) {
            return Ok(false);
        }
        context.unverified.verify_before(windows, generation)?;
        let (own, world_size) = (context.rank as u32, context.world_size as u32);
        for (first, len) in [(0, own), (own + 1, world_size - own - 1)] {
            if len > 0 {
                let part = input(first, len);
                let offset = operation.slot_offset(Buffer::Input, first, slice);
                let from = operation.region(part, slice);
                let slot = windows.slot(context.rank, generation, offset..offset + from.bytes());
                slot.copy_from(from);
            }
        }
        windows.publish(generation, INPUTS, &operation.call, Wake::Peers);
        self.published += 1;
        Ok(true)
    }

    /// Reduces this rank's chunk of the next slice, once all others have published theirs, and
    /// stores the sum in their slots.
    fn reduce_next(
        &mut self,
        operation: &PreparedOperation,
        context: &mut Context,
    ) -> Result<bool> {
        let slice = self.reduced;
        if slice == self.published {
            return Ok(false);
        }
        let generation = operation.generation(slice);
        let own = context.rank;
        let windows = windows(&mut context.windows)?;
        while self.arrived < context.world_size {
            if self.arrived != own {
                if !windows.has_reached(self.arrived, generation, INPUTS, &operation.call)? {
                    return Ok(false);
                }
                context.lateness.peer_arrived(self.arrived);
            }
            self.arrived += 1;
        }
        let mine = operation.region(input(own as u32, 1), slice);
        let into = operation.region(output(own as u32, 1), slice);
        let offset = operation.slot_offset(Buffer::Input, own as u32, slice);
        let first_peer = usize::from(own == 0);
        for start in (0..mine.bytes()).step_by(BLOCK_BYTES) {
            let block = start..mine.bytes().min(start + BLOCK_BYTES);
            context.operands.clear();
            for rank in 0..context.world_size {
                let source = if rank == own {
                    mine.part(block.clone())
                } else {
                    windows.slot(rank, generation, offset + block.start..offset + block.end)
                };
                context.operands.push(source);
            }
            let sum = context.operands[first_peer];
            operation.kernel().fold(sum, &context.operands);
            into.part(block).copy_from(sum);
            for (rank, place) in context.operands.iter().enumerate() {
                if rank != own && rank != first_peer {
                    place.copy_from(sum);
                }
            }
        }
        windows.publish(generation, REDUCED, &operation.call, Wake::Peers);
        self.reduced += 1;
        self.arrived = 0;
        Ok(true)
    }

    /// Copies the sums of the next slice as they arrive; returns whether the slice is finished.
    fn take_next(&mut self, operation: &PreparedOperation, context: &mut Context) -> Result<bool> {
        let slice = self.taken;
        if slice == self.reduced {
            return Ok(false);
        }
        let generation = operation.generation(slice);
        let own = context.rank;
        let windows = windows(&mut context.windows)?;
        while self.taken_from < context.world_size {
            let peer = self.taken_from;
            if peer != own {
                if !windows.has_reached(peer, generation, REDUCED, &operation.call)? {
                    return Ok(false);
                }
                context.lateness.peer_arrived(peer);
                let into = operation.region(output(peer as u32, 1), slice);
                let offset = operation.slot_offset(Buffer::Output, peer as u32, slice);
                into.copy_from(windows.slot(own, generation, offset..offset + into.bytes()));
            }
            self.taken_from += 1;
        }
        windows.finish(generation, Wake::Peers);
        operation.scale_result(0, context.world_size as u32, slice)?;
        self.taken += 1;
        self.taken_from = 0;
        Ok(true)
    }
}

impl Executor for Direct {
    fn slices_done(&self) -> u32 {
        self.taken
    }

    fn waiting_for(&self, operation: &PreparedOperation, context: &Context) -> Vec<usize> {
        let rank = context.rank;
        let others = (0..context.world_size).filter(|peer| *peer != rank);
        let Some(windows) = context.windows.as_ref() else {
            return Vec::new();
        };
        if self.published == self.taken && self.published < operation.slices {
            return windows.behind(operation.generation(self.published));
        }
        let lacks = |peer: usize, slice: u32, before: u32, phase| {
            slice < before
                && !windows
                    .has_reached(peer, operation.generation(slice), phase, &operation.call)
                    .unwrap_or(false)
        };
        others
            .filter(|&peer| {
                lacks(peer, self.reduced, self.published, INPUTS)
                    || lacks(peer, self.taken, self.reduced, REDUCED)
            })
            .collect()
    }
}
