//! Reused memory: the engine's scratch, so that the data path does not allocate and the first call
//! is as fast as the tenth.
//!
//! Blocks come in powers of two and go back to the pool when dropped. What a block holds is
//! undefined.

use std::sync::{Arc, Mutex};

use super::Hold;
use super::owned::Owned;
use super::region::Region;
use crate::sync::lock;

/// The smallest block: a page.
const BLOCK_BYTES_MIN: usize = 4096;

/// Free blocks kept, at most; more are given back to the system.
const FREE_BLOCKS_MAX: usize = 16;

/// A source of reusable blocks.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    free: Arc<Mutex<Vec<Memory>>>,
}

/// What a block consists of.
#[derive(Debug)]
struct Memory {
    // Goes before the memory.
    hold: Option<Hold>,
    owned: Owned,
}

/// Memory from a [`Pool`], which gets it back on drop.
#[derive(Debug)]
pub struct Block {
    memory: Option<Memory>,
    pool: Pool,
}

impl Pool {
    /// A block of at least `bytes` bytes.
    pub fn take(&self, bytes: usize) -> Block {
        let size = bytes.max(BLOCK_BYTES_MIN).next_power_of_two();
        let mut free = lock(&self.free);
        let found = free
            .iter()
            .position(|memory| memory.owned.region().bytes() == size);
        let memory = found.map(|index| free.swap_remove(index));
        let new = || Memory {
            hold: None,
            owned: Owned::zeroed(size),
        };
        Block {
            memory: Some(memory.unwrap_or_else(new)),
            pool: self.clone(),
        }
    }

    /// Has a block of `bytes` bytes ready, its pages present.
    pub fn prepare(&self, bytes: usize) {
        let block = self.take(bytes);
        let page = [0u8; 1];
        for offset in (0..block.region().bytes()).step_by(BLOCK_BYTES_MIN) {
            block.region().part(offset..offset + 1).write(&page);
        }
    }
}

impl Block {
    /// The memory.
    pub fn region(&self) -> Region {
        let memory = self.memory.as_ref();
        memory.map_or(Region::EMPTY, |memory| memory.owned.region())
    }

    /// Has `hold` hold the memory, unless it does already: for as long as there is the memory,
    /// which is longer than the block.
    pub fn hold(&mut self, hold: impl FnOnce(Region) -> Option<Hold>) {
        if let Some(Memory { hold: held, owned }) = &mut self.memory
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
