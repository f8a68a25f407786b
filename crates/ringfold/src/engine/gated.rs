//! The executor of calls whose data devices move: three counters, as over published memory.
//!
//! A call on device memory is cut into slices. The device of each rank *publishes* a slice by a
//! copy into a slot that all ranks of the host reach, and *takes* the result by a copy from such a
//! slot; this rank *reduces* its share of the slice in place, in the slots. Devices and ranks
//! follow each other by words, which a [`SharedSlots`](super::gate::SharedSlots) stores and loads.
//!
//! Ranks compare their calls once, over published memory, when the first slice stands in its slot.
//! From then on no rank stores into a slot before all ranks have published the slice, and no device
//! takes a slice before all ranks have reduced it.

use super::context::{Context, windows};
use super::executor::Executor;
use super::operation::PreparedOperation;
use crate::error::Result;
use crate::transport::Wake;
use crate::wait::WordWait;

/// The phase in which a rank's first slice stands in its slot.
const BEGUN: u8 = 1;

/// The progress of a call whose data devices move.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gated {
    /// Whether this rank has announced the call.
    is_announced: bool,
    /// Number of ranks that have been seen to make the same call.
    compared: usize,
    /// Whether all ranks have.
    is_compared: bool,
    /// Number of slices that this rank has reduced.
    reduced: u32,
    /// Number of slices that this rank's device may take.
    released: u32,
}

impl Gated {
    /// Does all work that is ready; returns whether there was any.
    pub fn advance(
        &mut self,
        operation: &PreparedOperation,
        context: &mut Context,
    ) -> Result<bool> {
        let slots = operation.shared_slots();
        slots.reuse();
        let mut progressed = self.compare(operation, context)?;
        if !self.is_compared {
            return Ok(progressed);
        }
        let all = 0..context.world_size;
        loop {
            let (reduced, released) = (self.reduced, self.released);
            let is_published = || all.clone().all(|rank| slots.is_published(rank, reduced));
            if reduced < slots.slices() && is_published() {
                self.reduced += u32::from(slots.reduce(reduced, &mut context.parallel)?);
            }
            if released < self.reduced && all.clone().all(|rank| slots.is_reduced(rank, released)) {
                slots.release(released);
                self.released += 1;
            }
            if (reduced, released) == (self.reduced, self.released) {
                break;
            }
            progressed = true;
        }
        if self.released == slots.slices() {
            context.parallel.end_flight();
            windows(&mut context.windows)?.finish(operation.last_generation(), Wake::Peers);
        }
        Ok(progressed)
    }

    /// Announces the call once its first slice is published, and compares it with the peers' calls.
    fn compare(&mut self, operation: &PreparedOperation, context: &mut Context) -> Result<bool> {
        let (slots, call) = (operation.shared_slots(), &operation.call);
        let generation = operation.first_generation;
        let windows = windows(&mut context.windows)?;
        let mut progressed = false;
        if !self.is_announced {
            if !slots.has_begun() || !windows.is_free(generation) {
                return Ok(false);
            }
            context.unverified.verify_before(windows, generation)?;
            windows.publish(generation, BEGUN, call, Wake::Peers);
            // The data of the first slice came as late as the program liked.
            context.lateness.forget_waits();
            (self.is_announced, progressed) = (true, true);
        }
        while self.compared < context.world_size {
            let peer = self.compared;
            if peer != context.rank {
                if !windows.has_reached(peer, generation, BEGUN, call)? {
                    break;
                }
                context.lateness.peer_arrived(peer);
            }
            self.compared += 1;
            progressed = true;
        }
        if !self.is_compared && self.compared == context.world_size {
            self.is_compared = true;
            context.parallel.begin_flight(slots.helpers_max());
        }
        Ok(progressed)
    }
}

impl Executor for Gated {
    fn slices_done(&self) -> u32 {
        u32::from(self.is_compared) + self.released
    }

    fn waiting_for(&self, operation: &PreparedOperation, context: &Context) -> Vec<usize> {
        let (slots, own) = (operation.shared_slots(), context.rank);
        let all = 0..context.world_size;
        let Some(windows) = context.windows.as_ref() else {
            return Vec::new();
        };
        if !self.is_announced {
            let mut ranks = windows.behind(operation.first_generation);
            ranks.extend(slots.readers(0));
            return ranks;
        }
        let has_met = |peer: &usize| {
            let generation = operation.first_generation;
            let met = windows.has_reached(*peer, generation, BEGUN, &operation.call);
            *peer == own || met.unwrap_or(false)
        };
        if !self.is_compared {
            return all.filter(|peer| !has_met(peer)).collect();
        }
        let (reduced, released) = (self.reduced, self.released);
        let lacks = |rank: &usize| {
            (reduced < slots.slices() && !slots.is_published(*rank, reduced))
                || (released < reduced && !slots.is_reduced(*rank, released))
        };
        let readers = match reduced < slots.slices() && !slots.is_published(own, reduced) {
            true => slots.readers(reduced),
            false => Vec::new(),
        };
        // A device that waits for its slot is not late itself.
        match readers.is_empty() {
            true => all.filter(lacks).collect(),
            false => readers,
        }
    }

    fn has_begun(&self, _operation: &PreparedOperation) -> bool {
        self.is_announced
    }

    /// The data of the first slice may arrive as late as the program likes; what other ranks hold
    /// up before or after that may not.
    fn is_timed(&self, operation: &PreparedOperation, context: &Context) -> bool {
        let slots = operation.shared_slots();
        let is_other = |rank: &usize| *rank != context.rank;
        self.is_announced || slots.has_begun() || slots.readers(0).iter().any(is_other)
    }

    fn words(&self, _operation: &PreparedOperation) -> Option<WordWait> {
        match (self.is_announced, self.is_compared) {
            (false, _) => Some(WordWait::Lull),
            // A peer's announcement wakes this rank.
            (true, false) => None,
            (true, true) => Some(WordWait::Flight),
        }
    }
}

#[cfg(test)]
mod tests;
