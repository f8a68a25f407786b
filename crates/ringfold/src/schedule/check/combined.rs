//! Chunks that any rank with a core may reduce or serve, in the least favourable reading: none does
//! before the last rank has offered itself.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::value::Value;

/// What became of one chunk of one slice.
#[derive(Default)]
struct Offers {
    by: Vec<u32>,
    value: Option<Value>,
    hops: u32,
}

/// All chunks that any rank may reduce.
pub(super) struct Combined {
    world_size: usize,
    chunks: HashMap<(u32, u32), Offers>,
}

impl Combined {
    pub fn new(world_size: usize) -> Combined {
        Combined {
            world_size,
            chunks: HashMap::new(),
        }
    }

    /// Records that a rank offers to reduce a chunk, which would give `value`; false if it did so
    /// before.
    pub fn offer(&mut self, (slice, chunk): (u32, u32), by: u32, value: Value, hops: u32) -> bool {
        let offers = self.chunks.entry((slice, chunk)).or_default();
        if offers.by.contains(&by) {
            return false;
        }
        offers.by.push(by);
        offers.value = Some(value);
        offers.hops = offers.hops.max(hops);
        true
    }

    /// Whether a rank may have reduced the chunk, so that it is no longer what was published.
    pub fn is_touched(&self, slice: u32, chunk: u32) -> bool {
        self.chunks.contains_key(&(slice, chunk))
    }

    /// The chunk and the hops behind it, once all ranks have offered themselves.
    pub fn value(&self, slice: u32, chunk: u32) -> Option<(Value, u32)> {
        let offers = self.chunks.get(&(slice, chunk))?;
        let value = offers.value?;
        (offers.by.len() == self.world_size).then_some((value, offers.hops))
    }
}
