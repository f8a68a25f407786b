//! A call on devices' data, as the host sees it: the slices that a rank's lane cuts it into, each a
//! call from a slot of staging memory to a result.

use std::sync::Arc;

use super::program::Program;
use super::scenario::{Payload, Scenario};
use crate::communicator::{Counts, Request};
use crate::error::Result;
use crate::lane::cut::{Cut, Fetched, Part, Share};
use crate::lane::program::Step;
use crate::lane::staging::Bank;
use crate::lane::sum::Sum;
use crate::memory::{Owned, Region};
use crate::reduce::{Parallel, ReductionKernel};
use crate::types::Collective;

/// Slots and results of one rank.
pub(super) struct Staged {
    program: Program,
    /// The call, without memory.
    request: Request,
    /// Slice n has number n % depth.
    slots: Vec<Arc<Owned>>,
    results: Vec<Arc<Owned>>,
    moves_data: bool,
}

/// The slot of a rank at a place.
pub(super) type Slots<'a> = &'a dyn Fn(usize, u32) -> Option<Region>;

impl Staged {
    /// The staging memory of `rank`, if the scenario has devices.
    pub fn new(scenario: &Scenario, rank: usize) -> Result<Option<Staged>> {
        let Some(devices) = &scenario.devices else {
            return Ok(None);
        };
        let moves_data = scenario.payload == Payload::Real;
        let program = scenario.program(rank)?;
        let depth = devices.depth.min(program.places().max(1));
        // Memory that nothing is written to takes no room.
        let memory = |bytes| -> Vec<Arc<Owned>> {
            (0..depth).map(|_| Arc::new(Owned::zeroed(bytes))).collect()
        };
        let longest = match &program {
            Program::Cut(_) => scenario.host_bytes() as usize,
            Program::OneShot { bytes, .. } => *bytes as usize,
        };
        Ok(Some(Staged {
            slots: memory(longest),
            results: memory(longest),
            program,
            request: scenario.request(),
            moves_data,
        }))
    }

    /// The host's calls, in order, each with its size as nccl-tests counts it.
    pub fn requests(&self, ranks: usize) -> impl Iterator<Item = (Request, u64)> {
        (0..self.program.host_calls()).map(move |place| {
            let (slot, result) = (self.slot(place), self.result(place));
            let request = match &self.program {
                Program::Cut(cut) if cut.bank() == Bank::Direct => {
                    let (counts, nothing) = (Counts::Even(0), Region::EMPTY);
                    let dtype = self.request.dtype;
                    Request::new(Collective::Barrier, dtype, counts, nothing, nothing)
                }
                Program::Cut(cut) => cut.on_host(place, slot, result),
                Program::OneShot { .. } => unreachable!("no call of the host's"),
            };
            let count = match request.counts {
                Counts::Even(count) => count,
                _ => 0,
            };
            let blocks = if request.is_of_blocks() { ranks } else { 1 };
            let bytes = count * (request.dtype.size_bytes() * blocks) as u64;
            (request, bytes)
        })
    }

    /// Combines `share` of a slice in the slots of all ranks; `slot` has that of a rank.
    pub fn combine(&self, slice: u32, share: &Share, slot: Slots<'_>, ranks: usize) {
        if !self.moves_data {
            return;
        }
        let Request { op, dtype, .. } = self.request;
        let sum = Sum::new(op, dtype, ranks).expect("an operation that was checked");
        let slot = |rank| slot(rank, slice).expect("all ranks have devices");
        let combined = sum.combine(share, self.result(slice), slot, &mut Parallel::none());
        combined.expect("a factor of the type");
    }

    /// Moves the data of a step that is done; `slot` has that of a rank at a place.
    pub fn copy(&self, step: Step, input: Region, output: Region, slot: Slots<'_>) {
        if !self.moves_data {
            return;
        }
        match &self.program {
            Program::Cut(cut) => self.copy_slice(cut, step, input, output, slot),
            Program::OneShot { ranks, .. } => match step {
                Step::Bring(place) => self.slot(place).copy_from(input),
                Step::Take(place) => {
                    let row = |rank| slot(rank, place).expect("all ranks have devices");
                    let rows: Vec<Region> = (0..*ranks).map(row).collect();
                    self.kernel().fold(output, &rows);
                }
            },
        }
    }

    fn copy_slice(&self, cut: &Cut, step: Step, input: Region, output: Region, slot: Slots<'_>) {
        let each = |parts: Vec<Part>, copy: &dyn Fn(&Part, usize)| {
            parts
                .iter()
                .for_each(|part| copy(part, part.of_buffer.len()));
        };
        match step {
            Step::Bring(slice) => each(cut.brought(slice), &|part, bytes| {
                let slot = self.slot(slice).part(part.at..part.at + bytes);
                slot.copy_from(input.part(part.of_buffer.clone()));
            }),
            Step::Take(slice) if cut.bank() == Bank::Direct => {
                for Fetched { rank, part } in cut.fetched(slice) {
                    let bytes = part.of_buffer.len();
                    let from = slot(rank, slice).expect("all ranks have devices");
                    let from = from.part(part.at..part.at + bytes);
                    output.part(part.of_buffer).copy_from(from);
                }
                if let Some(Part { of_buffer, at }) = cut.taken_sum(slice) {
                    let sum = self.result(slice).part(at..at + of_buffer.len());
                    output.part(of_buffer).copy_from(sum);
                }
                if let Some([from, into]) = cut.kept(slice) {
                    output.part(into).copy_from(input.part(from));
                }
            }
            Step::Take(slice) => each(cut.taken(slice), &|part, bytes| {
                let result = self.result(slice).part(part.at..part.at + bytes);
                output.part(part.of_buffer.clone()).copy_from(result);
            }),
        }
    }

    /// What devices combine with.
    fn kernel(&self) -> ReductionKernel {
        let Request { op, dtype, .. } = self.request;
        ReductionKernel::new(op, dtype).expect("an operation that was checked")
    }

    /// What the rank's device and its host do.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The slot of a slice.
    pub fn slot(&self, place: u32) -> Region {
        self.slots[place as usize % self.slots.len()].region()
    }

    fn result(&self, place: u32) -> Region {
        self.results[place as usize % self.results.len()].region()
    }
}
