//! Registered memory of the transport's own, in equal parts.

use std::sync::{Arc, Mutex};

use crate::error::Result;
use crate::memory::{Owned, Region};
use crate::sync::lock;
use crate::verbs::{Access, Domain, Piece, Place, Registered};

/// Equal parts of registered memory, taken and given back by number.
pub struct Cells {
    // Ends before the memory does.
    registered: Registered,
    _memory: Owned,
    cell_bytes: usize,
    count: usize,
    free: Vec<u32>,
}

impl Cells {
    /// `count` cells of `cell_bytes`.
    pub fn new(
        domain: &Arc<Domain>,
        count: usize,
        cell_bytes: usize,
        access: Access,
    ) -> Result<Cells> {
        let memory = Owned::zeroed(count * cell_bytes);
        Ok(Cells {
            registered: domain.register(memory.region(), access)?,
            _memory: memory,
            cell_bytes,
            count,
            free: (0..count as u32).rev().collect(),
        })
    }

    /// How many are free.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub fn give(&mut self, cell: u32) {
        debug_assert!(!self.free.contains(&cell), "given back twice");
        self.free.push(cell);
    }

    pub fn region(&self, cell: u32) -> Region {
        let begin = cell as usize * self.cell_bytes;
        self.registered
            .region()
            .part(begin..begin + self.cell_bytes)
    }

    /// The first `bytes` of a cell, for a request.
    pub fn piece(&self, cell: u32, bytes: usize) -> Piece {
        Piece {
            region: self.region(cell).part(0..bytes),
            lkey: self.registered.lkey(),
        }
    }

    /// Where a peer writes to a cell.
    pub fn place(&self, cell: u32) -> Place {
        Place {
            address: self.region(cell).address() as u64,
            rkey: self.registered.rkey(),
        }
    }
}

/// The keys of registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    pub lkey: u32,
    pub rkey: u32,
}

impl Keys {
    pub fn of(registered: &Registered) -> Keys {
        Keys {
            lkey: registered.lkey(),
            rkey: registered.rkey(),
        }
    }

    /// Where a peer writes to a part of the memory.
    pub fn place(self, part: Region) -> Place {
        Place {
            address: part.address() as u64,
            rkey: self.rkey,
        }
    }
}

/// Memory that is registered for longer than a message: as long as its user holds it, but not
/// beyond the links.
#[derive(Debug)]
pub struct Known {
    region: Region,
    keys: Keys,
    registered: Mutex<Option<Registered>>,
    /// The process that registered it: a forked child has none of it.
    process: u32,
}

impl Known {
    pub fn new(registered: Registered) -> Known {
        Known {
            region: registered.region(),
            keys: Keys::of(&registered),
            registered: Mutex::new(Some(registered)),
            process: std::process::id(),
        }
    }

    /// The keys, if `part` lies in this memory.
    pub fn keys(&self, part: Region) -> Option<Keys> {
        self.region.contains(part).then_some(self.keys)
    }

    /// Ends the registration.
    pub fn end(&self) {
        drop(lock(&self.registered).take());
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            let registered = self.registered.get_mut();
            std::mem::forget(registered.map(Option::take));
        }
    }
}
