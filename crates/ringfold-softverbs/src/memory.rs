//! Registered memory and its access rights.

use std::collections::HashMap;

/// `IBV_ACCESS_LOCAL_WRITE` and `IBV_ACCESS_REMOTE_WRITE`.
pub const LOCAL_WRITE: u32 = 1;
pub const REMOTE_WRITE: u32 = 2;

/// A memory registration.
#[derive(Clone, Copy, Debug)]
struct Memory {
    domain: usize,
    address: usize,
    bytes: usize,
    access: u32,
}

/// All registered memory, by key.
#[derive(Debug, Default)]
pub struct Memories {
    by_key: HashMap<u32, Memory>,
    made: u32,
    bytes: usize,
    limit: Option<usize>,
}

impl Memories {
    pub fn new(limit: Option<usize>) -> Memories {
        Memories {
            limit,
            ..Memories::default()
        }
    }

    /// Registers memory with a domain; returns the key, or `None` beyond the limit.
    pub fn add(&mut self, domain: usize, address: usize, bytes: usize, access: u32) -> Option<u32> {
        if self.limit.is_some_and(|limit| self.bytes + bytes > limit) {
            return None;
        }
        self.made += 1;
        // Scattered, so that a wrong key is most likely invalid.
        let key = self.made.wrapping_mul(0x9e37_79b1) ^ std::process::id();
        self.bytes += bytes;
        let memory = Memory {
            domain,
            address,
            bytes,
            access,
        };
        self.by_key.insert(key, memory);
        Some(key)
    }

    pub fn remove(&mut self, key: u32) {
        if let Some(memory) = self.by_key.remove(&key) {
            self.bytes -= memory.bytes;
        }
    }

    /// Whether `key` permits `access` to this range in this domain.
    pub fn permits(
        &self,
        key: u32,
        domain: usize,
        (address, bytes): (u64, usize),
        access: u32,
    ) -> bool {
        self.by_key.get(&key).is_some_and(|memory| {
            let offset = (address as usize).checked_sub(memory.address);
            let is_inside = offset
                .is_some_and(|offset| offset <= memory.bytes && bytes <= memory.bytes - offset);
            memory.domain == domain && memory.access & access == access && is_inside
        })
    }

    /// Whether any memory is registered with a domain.
    pub fn has(&self, domain: usize) -> bool {
        self.by_key.values().any(|memory| memory.domain == domain)
    }

    /// Returns the number of registrations.
    pub fn count(&self) -> usize {
        self.by_key.len()
    }
}
