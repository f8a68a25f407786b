//! A call on devices' data, as the host sees it: the slices that a rank's lane cuts it into, each
//! with a slot of staging memory and the place of its result.

use std::fmt;
use std::sync::Arc;

use super::network::SimNetwork;
use super::program::Program;
use super::scenario::{Payload, Scenario};
use crate::communicator::Request;
use crate::engine::{Gate, OwnSlots};
use crate::error::Result;
use crate::lane::cut::{Cut, Fetched, Part, Share};
use crate::lane::program::{Step, slices_in_flight};
use crate::lane::staging::Bank;
use crate::lane::sum::Sum;
use crate::memory::{Owned, Region};
use crate::reduce::{Parallel, ReductionKernel};

/// Slots and results of one rank.
pub(super) struct Staged {
    program: Program,
    /// The call, without memory.
    request: Request,
    bytes: usize,
    overlaps: bool,
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
            Program::Cut(cut) => cut.slice_bytes().min(scenario.bytes as usize),
            Program::OneShot { bytes, .. } => *bytes as usize,
        };
        Ok(Some(Staged {
            slots: memory(longest),
            results: memory(longest),
            program,
            bytes: scenario.bytes as usize,
            overlaps: scenario.staged().is_some_and(|plan| plan.overlaps),
            request: scenario.request(),
            moves_data,
        }))
    }

    /// The slots of `rank` for the engine, if the host handles slices.
    pub fn own_slots(&self, network: &SimNetwork, rank: usize) -> Option<Gate> {
        let Program::Cut(cut) = &self.program else {
            return None;
        };
        let slots = || {
            Arc::new(SimSlots {
                network: network.clone(),
                rank,
                part_elements: cut.part_elements(),
                parts: cut.slices(),
                bytes: self.bytes,
                overlaps: self.overlaps,
                slots: self.slots.clone(),
                results: self.results.clone(),
            })
        };
        (cut.bank() == Bank::Host).then(|| Gate::Own(slots()))
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

/// The slots of one rank in a call whose slices the host handles.
struct SimSlots {
    network: SimNetwork,
    rank: usize,
    part_elements: u64,
    parts: u32,
    bytes: usize,
    overlaps: bool,
    slots: Vec<Arc<Owned>>,
    results: Vec<Arc<Owned>>,
}

impl fmt::Debug for SimSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimSlots")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl OwnSlots for SimSlots {
    fn parts(&self) -> u32 {
        self.parts
    }

    fn part_elements(&self) -> u64 {
        self.part_elements
    }

    fn parts_in_flight(&self) -> u32 {
        match self.overlaps {
            true => slices_in_flight(self.network.world().devices().depth),
            false => 1,
        }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_ready(&self, part: u32) -> Result<bool> {
        Ok(part >= self.parts || self.network.world().is_due(self.rank, part))
    }

    fn memory(&self, part: u32) -> [Region; 2] {
        let place = part as usize % self.slots.len();
        [&self.slots[place], &self.results[place]].map(|memory| memory.region())
    }

    fn release(&self, part: u32) -> Result<()> {
        if part < self.parts {
            self.network.world().release(self.rank);
        }
        Ok(())
    }
}
