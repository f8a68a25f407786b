//! Payloads that travel in the heads of slots: one line carries a rank's arrival and its payload.

#![forbid(unsafe_code)]

use std::ops::Range;

use super::part::{algorithm, input_blocks};
use crate::call::Call;
use crate::memory::{Owned, Region};
use crate::schedule::LL_SHARED_BYTES;
use crate::transport::{ATTACHED_WORDS, Windows};

/// Bytes that fit into the words attached to a slot.
const INLINE_BYTES: usize = ATTACHED_WORDS * 8;

// The tuner relies on this equality.
const _: () = assert!(INLINE_BYTES as u64 == LL_SHARED_BYTES);

/// Payloads received in the heads of slots, one place for each rank.
#[derive(Debug)]
pub struct Inline {
    places: Owned,
}

impl Inline {
    /// Creates places for the payloads of `world_size` ranks.
    pub fn new(world_size: usize) -> Inline {
        Inline {
            places: Owned::zeroed(world_size * INLINE_BYTES),
        }
    }

    /// Whether the heads carry the inputs of this call, whole and as they are in memory: the same
    /// on all ranks.
    #[inline]
    pub fn carries(call: &Call) -> bool {
        call.is_inline && call.count > 0
    }

    /// Whether the heads can carry the inputs of this call.
    pub fn fits(call: &Call, world_size: usize) -> bool {
        let blocks = input_blocks(call.collective, world_size) as u64;
        let most = (INLINE_BYTES / call.dtype.size_bytes()) as u64;
        call.count.saturating_mul(blocks) <= most && call.algorithm == algorithm(call.collective)
    }

    /// Attaches `payload` to this rank's slot.
    pub fn send(windows: &mut Windows, generation: u64, payload: Region) {
        let mut words = [0; ATTACHED_WORDS];
        windows.attach(generation, Inline::words(payload, &mut words));
    }

    /// Returns `payload` as words, which are stored in `words`.
    pub(super) fn words(payload: Region, words: &mut [u64; ATTACHED_WORDS]) -> &[u64] {
        let words = &mut words[..payload.bytes().div_ceil(8)];
        for (index, word) in words.iter_mut().enumerate() {
            *word = payload.word(index);
        }
        words
    }

    /// Returns bytes `range` of `peer`'s payload, valid until that peer's next payload is taken.
    pub fn take(
        &self,
        windows: &Windows,
        peer: usize,
        generation: u64,
        range: Range<usize>,
    ) -> Region {
        for word in range.start / 8..range.end.div_ceil(8) {
            self.put(peer, word, windows.attached(peer, generation, word));
        }
        self.place(peer).part(range)
    }

    /// Returns the place for the payload of `peer`.
    pub(super) fn place(&self, peer: usize) -> Region {
        let start = peer * INLINE_BYTES;
        self.places.region().part(start..start + INLINE_BYTES)
    }

    pub(super) fn put(&self, peer: usize, word: usize, value: u64) {
        let place = self.place(peer).part(word * 8..(word + 1) * 8);
        place.write(&value.to_ne_bytes());
    }
}
