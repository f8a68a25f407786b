//! Reusable scratch memory for the engine: the data path does not allocate, and the first call is
//! as fast as the tenth.
//!
//! Block sizes are powers of two, and a dropped block returns to the pool. The contents of a block
//! are undefined.

use std::sync::{Arc, Mutex};

use super::Hold;
use super::owned::Owned;
use crate::region::Region;
use crate::sync::lock;

/// The size of the smallest block: a page.
const BLOCK_BYTES_MIN: usize = 4096;

/// Maximum number of free blocks in the pool; further blocks are freed.
const FREE_BLOCKS_MAX: usize = 16;

/// A source of reusable blocks.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    free: Arc<Mutex<Vec<PooledMemory>>>,
}

/// The memory of a block, and a use of it by a transport.
#[derive(Debug)]
struct PooledMemory {
    // Dropped before the memory.
    hold: Option<Hold>,
    owned: Owned,
}

/// Memory from a [`Pool`], to which it returns on drop.
#[derive(Debug)]
pub struct Block {
    memory: Option<PooledMemory>,
    pool: Pool,
}

impl Pool {
    /// Takes a block of at least `bytes` bytes.
    pub fn take(&self, bytes: usize) -> Block {
        let size = bytes.max(BLOCK_BYTES_MIN).next_power_of_two();
        let mut free = lock(&self.free);
        let found = free
            .iter()
            .position(|memory| memory.owned.region().bytes() == size);
        let memory = found.map(|index| free.swap_remove(index));
        let new = || PooledMemory {
            hold: None,
            owned: Owned::zeroed(size),
        };
        Block {
            memory: Some(memory.unwrap_or_else(new)),
            pool: self.clone(),
        }
    }

    /// Adds a free block of at least `bytes` bytes whose pages are present.
    pub fn prepare(&self, bytes: usize) {
        let block = self.take(bytes);
        let page = [0u8; 1];
        for offset in (0..block.region().bytes()).step_by(BLOCK_BYTES_MIN) {
            block.region().part(offset..offset + 1).write(&page);
        }
    }
}

impl Block {
    /// Returns the memory of the block.
    pub fn region(&self) -> Region {
        let memory = self.memory.as_ref();
        memory.map_or(Region::EMPTY, |memory| memory.owned.region())
    }

    /// Attaches the use that `hold` makes, unless the memory has one. The use lasts as long as the
    /// memory, which outlives the block.
    pub fn hold(&mut self, hold: impl FnOnce(Region) -> Option<Hold>) {
        if let Some(PooledMemory { hold: held, owned }) = &mut self.memory
            && held.is_none()
        {
            *held = hold(owned.region());
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut free = lock(&self.pool.free);
        if free.len() < FREE_BLOCKS_MAX {
            free.extend(self.memory.take());
        }
    }
}
