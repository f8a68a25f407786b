//! Registered memory of the transport, in equal parts.

use std::sync::Arc;

use crate::error::Result;
use crate::memory::{Owned, Region};
use crate::verbs::{Domain, MemoryAccess, MemoryRegion, Piece, RemoteAddress};

/// Equal parts of registered memory, taken and returned by number.
pub struct Cells {
    // Dropped before the memory.
    registered: MemoryRegion,
    _memory: Owned,
    cell_bytes: usize,
    count: usize,
    free: Vec<u32>,
}

impl Cells {
    /// Allocates and registers `count` cells of `cell_bytes`.
    pub fn new(
        domain: &Arc<Domain>,
        count: usize,
        cell_bytes: usize,
        access: MemoryAccess,
    ) -> Result<Cells> {
        // Devices refuse empty registrations.
        let memory = Owned::zeroed((count * cell_bytes).max(1));
        Ok(Cells {
            registered: domain.register(memory.region(), access)?,
            _memory: memory,
            cell_bytes,
            count,
            free: (0..count as u32).rev().collect(),
        })
    }

    /// Returns the number of free cells.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of cells.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub fn give(&mut self, cell: u32) {
        debug_assert!(!self.free.contains(&cell), "cell returned twice");
        self.free.push(cell);
    }

    pub fn region(&self, cell: u32) -> Region {
        let begin = cell as usize * self.cell_bytes;
        self.registered
            .region()
            .part(begin..begin + self.cell_bytes)
    }

    /// Returns the first `bytes` of a cell, for a request.
    pub fn piece(&self, cell: u32, bytes: usize) -> Piece {
        Piece {
            region: self.region(cell).part(0..bytes),
            lkey: self.registered.lkey(),
        }
    }

    /// Returns the address and key with which a peer writes to a cell.
    pub fn place(&self, cell: u32) -> RemoteAddress {
        RemoteAddress {
            address: self.region(cell).address() as u64,
            rkey: self.registered.rkey(),
        }
    }
}
