//! Chunks that any rank with a core may combine, in the least favourable reading: no rank combines
//! a chunk before the last rank has made its offer.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::value::SymbolicValue;

/// The offers for one chunk of one slice, and its value.
#[derive(Default)]
struct Offered {
    by: Vec<u32>,
    value: Option<SymbolicValue>,
    hops: u32,
}

/// All chunks that any rank may combine, by slice and number.
pub(super) struct Offers {
    world_size: usize,
    chunks: HashMap<(u32, u32), Offered>,
}

impl Offers {
    pub fn new(world_size: usize) -> Offers {
        Offers {
            world_size,
            chunks: HashMap::new(),
        }
    }

    /// Records that a rank offers to combine a chunk, with the result `value`; false if the rank
    /// offered before.
    pub fn offer(&mut self, chunk: (u32, u32), by: u32, value: SymbolicValue, hops: u32) -> bool {
        let offered = self.chunks.entry(chunk).or_default();
        if offered.by.contains(&by) {
            return false;
        }
        offered.by.push(by);
        offered.value = Some(value);
        offered.hops = offered.hops.max(hops);
        true
    }

    /// Whether a rank may have combined the chunk, which then no longer holds the published value.
    pub fn is_touched(&self, slice: u32, chunk: u32) -> bool {
        self.chunks.contains_key(&(slice, chunk))
    }

    /// Returns the chunk and its hops, once all ranks have made their offers.
    pub fn value(&self, slice: u32, chunk: u32) -> Option<(SymbolicValue, u32)> {
        let offered = self.chunks.get(&(slice, chunk))?;
        let value = offered.value?;
        (offered.by.len() == self.world_size).then_some((value, offered.hops))
    }
}
