//! A call on devices' data, as the host sees it: the slices that a rank's lane cuts it into, each a
//! call from a slot of staging memory to a result.

use std::sync::Arc;

use super::scenario::{Payload, Scenario};
use crate::communicator::{Counts, Request};
use crate::error::Result;
use crate::lane::cut::{Cut, Fetched, Part};
use crate::lane::program::Step;
use crate::lane::staging::Bank;
use crate::memory::{Owned, Region};

/// Slots and results of one rank.
pub(super) struct Staged {
    cut: Cut,
    /// Of slice n is number n % depth.
    slots: Vec<Arc<Owned>>,
    results: Vec<Arc<Owned>>,
    moves_data: bool,
}

impl Staged {
    /// The staging memory of `rank`, if the scenario has devices.
    pub fn new(scenario: &Scenario, rank: usize) -> Result<Option<Staged>> {
        let Some(devices) = &scenario.devices else {
            return Ok(None);
        };
        let moves_data = scenario.payload == Payload::Real;
        let cut = scenario.cut(rank)?;
        // Memory that nothing is written to takes no room.
        let bytes = scenario.host_bytes() as usize;
        let depth = devices.depth.min(cut.slices().max(1));
        let memory = || (0..depth).map(|_| Arc::new(Owned::zeroed(bytes))).collect();
        Ok(Some(Staged {
            cut,
            slots: memory(),
            results: memory(),
            moves_data,
        }))
    }

    /// The host's calls, in order, each with its size as nccl-tests counts it.
    pub fn requests(&self, ranks: usize) -> impl Iterator<Item = (Request, u64)> {
        (0..self.cut.slices()).map(move |slice| {
            if self.cut.bank() == Bank::Direct {
                return (self.cut.by_devices(slice), 0);
            }
            let (slot, result) = (self.slot(slice), self.result(slice));
            let request = self.cut.on_host(slice, slot, result);
            let count = match request.counts {
                Counts::Even(count) => count,
                _ => 0,
            };
            let blocks = if request.is_of_blocks() { ranks } else { 1 };
            let bytes = count * (request.dtype.size_bytes() * blocks) as u64;
            (request, bytes)
        })
    }

    /// Moves the data of a copy that is done; `slot` has that of a rank's slice.
    pub fn copy(
        &self,
        step: Step,
        input: Region,
        output: Region,
        slot: impl Fn(usize, u32) -> Option<Region>,
    ) {
        if !self.moves_data {
            return;
        }
        let each = |parts: Vec<Part>, copy: &dyn Fn(&Part, usize)| {
            parts
                .iter()
                .for_each(|part| copy(part, part.of_buffer.len()));
        };
        match step {
            Step::Bring(slice) => each(self.cut.brought(slice), &|part, bytes| {
                let slot = self.slot(slice).part(part.at..part.at + bytes);
                slot.copy_from(input.part(part.of_buffer.clone()));
            }),
            Step::Take(slice) if self.cut.bank() == Bank::Direct => {
                for Fetched { rank, part } in self.cut.fetched(slice) {
                    let bytes = part.of_buffer.len();
                    let from = slot(rank, slice).expect("all ranks have devices");
                    let from = from.part(part.at..part.at + bytes);
                    output.part(part.of_buffer).copy_from(from);
                }
                if let Some([from, into]) = self.cut.kept(slice) {
                    output.part(into).copy_from(input.part(from));
                }
            }
            Step::Take(slice) => each(self.cut.taken(slice), &|part, bytes| {
                let result = self.result(slice).part(part.at..part.at + bytes);
                output.part(part.of_buffer.clone()).copy_from(result);
            }),
        }
    }

    /// The slot of a slice.
    pub fn slot(&self, slice: u32) -> Region {
        self.slots[slice as usize % self.slots.len()].region()
    }

    fn result(&self, slice: u32) -> Region {
        self.results[slice as usize % self.results.len()].region()
    }
}
