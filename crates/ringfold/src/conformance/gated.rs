//! Gated calls: a device of each rank, which this thread drives, too, brings the input into slots
//! part by part, and takes the output from there.
//!
//! The cut is that of lanes. The device fills unused slots and results with a byte that no result
//! has, which shows if a part is read before it arrives or after its slot was given back.

use std::sync::{Arc, Mutex};

use crate::communicator::Request;
use crate::engine::{Engine, OwnSlots};
use crate::error::Result;
use crate::lane::cut::{Cut, Part};
use crate::lane::program::slices_in_flight;
use crate::lane::staging::Bank;
use crate::memory::{Owned, Region};
use crate::random::SplitMix64;
use crate::sync::lock;

/// Fill byte of unused slots and results.
const NOTHING: u8 = 0xee;

/// The most parts of a call, and the most slots.
const PARTS_MAX: usize = 6;
const DEPTH_MAX: usize = 6;

/// How the device of each rank of a call moves the data.
#[derive(Clone, Copy, Debug)]
pub struct PartsOfCall {
    parts: u64,
    depth: u32,
    overlaps: bool,
}

impl PartsOfCall {
    pub fn any(random: &mut SplitMix64) -> PartsOfCall {
        PartsOfCall {
            parts: 1 + random.index(PARTS_MAX) as u64,
            depth: 1 + random.index(DEPTH_MAX) as u32,
            overlaps: random.index(2) == 0,
        }
    }
}

/// The device of a rank in one call.
#[derive(Debug)]
pub struct TestDevice {
    cut: Cut,
    division: PartsOfCall,
    input: Region,
    output: Region,
    slots: Vec<Owned>,
    results: Vec<Owned>,
    at: Mutex<DeviceProgress>,
}

#[derive(Debug, Default)]
struct DeviceProgress {
    brought: u32,
    released: u32,
    taken: u32,
}

impl TestDevice {
    /// The device of `rank` for `request`, whose longest block on any rank has `longest` elements.
    pub fn new(
        request: &Request,
        [rank, world_size]: [usize; 2],
        longest: u64,
        division: PartsOfCall,
    ) -> Result<Arc<TestDevice>> {
        let (input, output) = (request.input, request.output);
        let blocks = if request.is_of_blocks() {
            world_size
        } else {
            1
        };
        let elements = longest.div_ceil(division.parts).max(1) as usize;
        let slot_bytes = elements * request.dtype.size_bytes() * blocks;
        let host = request.with_memory(Region::EMPTY, Region::EMPTY);
        let cut = Cut::of_host(host, rank, world_size, slot_bytes, Bank::Host)?;
        let memory = || -> Vec<Owned> {
            let memory = (0..division.depth).map(|_| Owned::zeroed(slot_bytes));
            memory.inspect(|slot| clear(slot.region())).collect()
        };
        Ok(Arc::new(TestDevice {
            cut,
            division,
            input,
            output,
            slots: memory(),
            results: memory(),
            at: Mutex::default(),
        }))
    }

    /// Copies the next part in or out, if possible; returns whether a part was copied.
    pub fn step(&self) -> bool {
        let mut at = lock(&self.at);
        if at.taken < at.released {
            let place = self.memory(at.taken)[1];
            for Part { of_buffer, at } in self.cut.taken(at.taken) {
                let from = place.part(at..at + of_buffer.len());
                self.output.part(of_buffer).copy_from(from);
            }
            clear(place);
            at.taken += 1;
            return true;
        }
        let brings =
            at.brought < self.cut.slices() && at.brought < at.released + self.division.depth;
        if brings {
            let slot = self.memory(at.brought)[0];
            clear(slot);
            for Part { of_buffer, at } in self.cut.brought(at.brought) {
                let into = slot.part(at..at + of_buffer.len());
                into.copy_from(self.input.part(of_buffer));
            }
            at.brought += 1;
        }
        brings
    }
}

/// Checks that a rank which makes no progress waits for something: its device, whose words wake no
/// thread, or a peer, or a time.
pub fn check_wait(engine: &mut Engine, rank: usize) {
    let is_awake = engine.words().is_some() || engine.next_event().is_some() || engine.is_idle();
    let awaited = engine.waiting_for();
    let waits = awaited.iter().any(|peer| *peer != rank);
    assert!(
        is_awake || waits,
        "rank {rank} waits for {awaited:?}, and looks at no word"
    );
}

/// Fills `region` with [`NOTHING`].
fn clear(region: Region) {
    region.write(&vec![NOTHING; region.bytes()]);
}

impl OwnSlots for TestDevice {
    fn parts(&self) -> u32 {
        self.cut.slices()
    }

    fn part_elements(&self) -> u64 {
        self.cut.part_elements()
    }

    fn parts_in_flight(&self) -> u32 {
        match self.division.overlaps {
            true => slices_in_flight(self.division.depth),
            false => 1,
        }
    }

    fn bytes(&self) -> usize {
        self.input.bytes().max(self.output.bytes())
    }

    fn is_ready(&self, part: u32) -> Result<bool> {
        let at = lock(&self.at);
        Ok(part >= self.parts() || part < at.brought && part < at.taken + self.division.depth)
    }

    fn memory(&self, part: u32) -> [Region; 2] {
        let place = (part % self.division.depth) as usize;
        [&self.slots[place], &self.results[place]].map(Owned::region)
    }

    fn release(&self, part: u32) -> Result<()> {
        let mut at = lock(&self.at);
        assert!(part >= self.parts() || at.released == part && at.brought > part);
        at.released = self.parts().min(part + 1);
        Ok(())
    }
}
