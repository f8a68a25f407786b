//! Receive buffers of pieces (places): of one size, allocated when needed and kept.
//!
//! A call without a late rank needs one or two places for each slice in flight. The number of
//! places is not fixed: a piece always finds one. So no message blocks those behind it, and no
//! cycle of ranks can wait for each other's room. Pieces of a chunk are disjoint, so a rank never
//! holds more of them than there are positions before its own.

use crate::memory::{Block, Region};

/// The number of a place.
pub type PlaceNumber = u32;

/// The places of one rank.
#[derive(Debug, Default)]
pub struct Places {
    bytes: usize,
    blocks: Vec<Block>,
    free: Vec<PlaceNumber>,
}

impl Places {
    /// Ensures that places have at least `bytes` bytes. No place may be in use.
    pub fn resize(&mut self, bytes: usize) {
        assert_eq!(self.free.len(), self.blocks.len(), "a place is in use");
        if bytes > self.bytes {
            self.bytes = bytes;
            self.blocks.clear();
            self.free.clear();
        }
    }

    /// Returns an unused place, which `make` allocates if there is none.
    pub fn take(&mut self, make: impl FnOnce(usize) -> Block) -> PlaceNumber {
        self.free.pop().unwrap_or_else(|| {
            self.blocks.push(make(self.bytes));
            (self.blocks.len() - 1) as PlaceNumber
        })
    }

    /// Releases a place.
    pub fn give_back(&mut self, place: PlaceNumber) {
        self.free.push(place);
    }

    /// Returns the first `bytes` bytes of a place.
    pub fn region(&self, place: PlaceNumber, bytes: usize) -> Region {
        self.blocks[place as usize].region().part(0..bytes)
    }
}
