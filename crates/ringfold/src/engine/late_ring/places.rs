//! Where pieces land: places of one size, made when they are needed and kept.
//!
//! A call without a late rank needs one or two a slice under way. There is no fixed number of them:
//! a piece always finds a place, so that no message holds up those behind it and no ring of ranks
//! can wait for each other's room. Pieces of a chunk are disjoint, so a rank never holds more of
//! them than there are positions before its own.

use crate::memory::{Block, Region};

/// A place by its number.
pub type Place = u32;

/// The places of one rank.
#[derive(Debug, Default)]
pub struct Places {
    bytes: usize,
    blocks: Vec<Block>,
    free: Vec<Place>,
}

impl Places {
    /// Has places of `bytes` bytes from now on. None is in use.
    pub fn resize(&mut self, bytes: usize) {
        assert_eq!(self.free.len(), self.blocks.len(), "a place is in use");
        if bytes > self.bytes {
            self.bytes = bytes;
            self.blocks.clear();
            self.free.clear();
        }
    }

    /// An unused place, which `make` makes if there is none.
    pub fn take(&mut self, make: impl FnOnce(usize) -> Block) -> Place {
        self.free.pop().unwrap_or_else(|| {
            self.blocks.push(make(self.bytes));
            (self.blocks.len() - 1) as Place
        })
    }

    /// Gives a place back.
    pub fn give_back(&mut self, place: Place) {
        self.free.push(place);
    }

    /// The first `bytes` bytes of a place.
    pub fn region(&self, place: Place, bytes: usize) -> Region {
        self.blocks[place as usize].region().part(0..bytes)
    }
}
