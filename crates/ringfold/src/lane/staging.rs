//! The staging memory of a lane, what its device copies into and from, and the two streams that do.
//!
//! ```text
//! words, a page | slot 0 … slot K-1 | result 0 … result K-1
//! ```
//!
//! It is registered with the lane's communicator, so host calls of one host's ranks work in it
//! without copies, and pinned by the device, so its copies run beside the program. A slot belongs
//! to the device from the time its number is free until it has arrived, then to the host call.
//!
//! Pinned pages must stay where they are: the memory is unpinned before it is given back, and where
//! a device may still copy it is kept until the process ends.

use std::sync::Arc;

use super::words::{WORDS_BYTES, Word, Words};
use crate::device::{Current, Pin, PinnedRegion, Stream};
use crate::error::Result;
use crate::memory::Registered;

/// Where slots begin: multiples of a page.
pub const ALIGN_BYTES: usize = 4096;

const _: () = assert!(WORDS_BYTES <= ALIGN_BYTES);

/// The memory, pinned, and the streams that use it.
#[derive(Debug)]
pub struct Staging {
    /// From the device. The streams go first: memory is unpinned when they are idle.
    pub out: Stream,
    /// To the device.
    pub into: Stream,
    whole: PinnedRegion,
    /// Keeps the memory.
    _pin: Pin,
    slot_bytes: usize,
    depth: u32,
}

impl Staging {
    /// The bytes of `depth` slots and results of `slot_bytes` bytes, whole pages.
    pub fn bytes(slot_bytes: usize, depth: u32) -> Option<usize> {
        let slots = slot_bytes.checked_mul(depth as usize)?.checked_mul(2)?;
        slots.checked_add(ALIGN_BYTES)
    }

    /// `memory`, of [`Staging::bytes`], pinned for a device that does nothing else.
    pub fn new(
        memory: Registered,
        current: &Current<'_>,
        slot_bytes: usize,
        depth: u32,
    ) -> Result<Staging> {
        let pin = current.pin(memory.region(), Arc::new(memory))?;
        Ok(Staging {
            out: current.stream()?,
            into: current.stream()?,
            whole: pin.whole(),
            _pin: pin,
            slot_bytes,
            depth,
        })
    }

    /// Bytes of a slot, and of a result.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// How many slots there are.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The words.
    pub fn words(&self) -> Words {
        Words::new(self.whole.region())
    }

    /// Where the device finds `word`.
    pub fn word(&self, word: Word) -> PinnedRegion {
        self.whole.part(word.place())
    }

    /// The slot of slice `number`.
    pub fn slot(&self, number: u32) -> PinnedRegion {
        self.part(number % self.depth)
    }

    /// The place of the result of slice `number`.
    pub fn result(&self, number: u32) -> PinnedRegion {
        self.part(self.depth + number % self.depth)
    }

    fn part(&self, index: u32) -> PinnedRegion {
        let begin = ALIGN_BYTES + index as usize * self.slot_bytes;
        self.whole.part(begin..begin + self.slot_bytes)
    }
}
