//! The host's bank in one call: slots of this rank, from which the engine runs a schedule.
//!
//! A slice is the engine's from the time it stands in its slot, and the place of its result is
//! free, until the engine releases it. The device then takes the result and fills the slot again.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::call::LaneCall;
use super::path::{Path, refusal};
use super::program::slices_in_flight;
use super::staging::Staging;
use crate::engine::OwnSlots;
use crate::error::Result;
use crate::memory::Region;
use crate::sync::lock;

/// Finds the queued call that contains the slice with a number.
type Later = Box<dyn Fn(u32) -> Option<Arc<LaneCall>> + Send + Sync>;

/// The slots and words of one call of the host's bank.
pub struct CallParts {
    rank: usize,
    later: Later,
    path: Arc<Mutex<Path>>,
    staging: Arc<Staging>,
    call: Arc<LaneCall>,
    released: AtomicU32,
}

impl CallParts {
    /// The slots of `call` of `rank`, to which `path` leads. `later` finds the calls behind it.
    pub fn new(
        rank: usize,
        path: &Arc<Mutex<Path>>,
        call: &Arc<LaneCall>,
        later: Later,
    ) -> CallParts {
        CallParts {
            rank,
            later,
            path: path.clone(),
            staging: lock(path).staging().clone(),
            call: call.clone(),
            released: AtomicU32::new(0),
        }
    }

    /// The number of slices whose results the device may take.
    pub fn released(&self) -> u32 {
        // Relaxed: the thread that releases them asks.
        self.released.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for CallParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallParts")
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}

impl OwnSlots for CallParts {
    fn parts(&self) -> u32 {
        self.call.slices
    }

    fn part_elements(&self) -> u64 {
        self.call.part_elements()
    }

    fn parts_in_flight(&self) -> u32 {
        match self.call.overlaps {
            true => slices_in_flight(self.staging.depth()),
            false => 1,
        }
    }

    fn bytes(&self) -> usize {
        self.call.bytes()
    }

    fn is_ready(&self, part: u32) -> Result<bool> {
        // An empty call is always ready.
        if part >= self.call.slices {
            return Ok(true);
        }
        let is_ready = lock(&self.path).is_ready(&self.call, part, &self.later);
        is_ready.map_err(|error| refusal(self.rank, &error))
    }

    fn memory(&self, part: u32) -> [Region; 2] {
        let (number, staging) = (self.call.number(part), &self.staging);
        [staging.slot(self.call.bank, number), staging.result(number)].map(|place| place.region())
    }

    fn release(&self, part: u32) -> Result<()> {
        if part < self.call.slices {
            let going_on = lock(&self.path).go_on(&self.call, part);
            going_on.map_err(|error| refusal(self.rank, &error))?;
            // Relaxed: as above.
            self.released.store(part + 1, Ordering::Relaxed);
        }
        Ok(())
    }
}
