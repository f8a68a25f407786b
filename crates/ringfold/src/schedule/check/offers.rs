//! Chunks that any rank with a core may combine, in the least favourable reading: none does before
//! the last rank has offered itself.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::value::Value;

/// What became of one chunk of one slice.
#[derive(Default)]
struct Offered {
    by: Vec<u32>,
    value: Option<Value>,
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

    /// Records that a rank offers to combine a chunk, which would give `value`; false if it did so
    /// before.
    pub fn offer(&mut self, chunk: (u32, u32), by: u32, value: Value, hops: u32) -> bool {
        let offered = self.chunks.entry(chunk).or_default();
        if offered.by.contains(&by) {
            return false;
        }
        offered.by.push(by);
        offered.value = Some(value);
        offered.hops = offered.hops.max(hops);
        true
    }

    /// Whether a rank may have combined the chunk, so that it is no longer what was published.
    pub fn is_touched(&self, slice: u32, chunk: u32) -> bool {
        self.chunks.contains_key(&(slice, chunk))
    }

    /// The chunk and the hops behind it, once all ranks have offered themselves.
    pub fn value(&self, slice: u32, chunk: u32) -> Option<(Value, u32)> {
        let offered = self.chunks.get(&(slice, chunk))?;
        let value = offered.value?;
        (offered.by.len() == self.world_size).then_some((value, offered.hops))
    }
}
