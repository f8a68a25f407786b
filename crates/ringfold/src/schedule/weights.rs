//! Ownership weights: each rank's share of the vector in a weighted `direct` all-reduce.
//!
//! In `direct`, the owner of a chunk receives it from all others, reduces it and sends the sum to
//! all others. A rank thus sends and receives the whole vector and `N - 2` times its own chunk. A
//! smaller chunk relieves a rank whose link or core is slow. A rank that owns nothing sends the
//! vector once and receives it once, concurrently.
//!
//! The weights change only the starts of chunks: the schedule, the order of additions within an
//! element and so the proofs are those of even chunks. All ranks must have the same weights; the
//! [mark](Weights::mark) in every call reveals a difference.

#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};

/// One weight for each rank: a rank's part of the vector is its weight divided by the sum of all
/// weights. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    each: Arc<[u32]>,
    /// Sums of the weights before each rank, and of all.
    before: Arc<[u64]>,
    /// Sequence number, within the communicator, of the agreement on these weights.
    epoch: u16,
}

impl Weights {
    /// Creates the weights of all ranks, in rank order, as of agreement `epoch`. Fails with
    /// `InvalidArgument` if there are none, or all are 0.
    pub fn new(each: &[u32], epoch: u16) -> Result<Weights> {
        let mut before = vec![0u64];
        for weight in each {
            before.push(before[before.len() - 1] + u64::from(*weight));
        }
        if before[before.len() - 1] == 0 {
            return Err(Error::InvalidArgument(
                "all weights are 0; at least one rank must own a part".into(),
            ));
        }
        Ok(Weights {
            each: each.into(),
            before: before.into(),
            epoch,
        })
    }

    /// Returns the weights by rank.
    pub fn each(&self) -> &[u32] {
        &self.each
    }

    /// Returns the start of chunk `chunk` of `chunks` in `whole` elements, before alignment. There
    /// are as many chunks as ranks, or as many for each channel.
    pub fn start(&self, whole: u64, chunk: u32, chunks: u32) -> u64 {
        let ranks = self.each.len() as u32;
        let (part, rank) = (chunk / ranks, chunk % ranks);
        let sum = u128::from(self.before[ranks as usize]);
        let before = u128::from(part) * sum + u128::from(self.before[rank as usize]);
        let parts = u128::from(chunks / ranks);
        // Not more than `whole`, because `before` is at most `sum * parts`.
        (u128::from(whole) * before / (sum * parts)) as u64
    }

    /// Returns the mark of the weights in a [`Call`](crate::call::Call): the epoch in the upper
    /// half, a digest of the weights in the lower; never 0.
    pub fn mark(&self) -> u32 {
        let mut digest = 0x811c_9dc5u32;
        for byte in self.each.iter().flat_map(|weight| weight.to_le_bytes()) {
            digest = (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
        let folded = (digest >> 16) ^ (digest & 0xffff);
        u32::from(self.epoch) << 16 | folded.max(1)
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.each.iter().map(u32::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

/// A communicator's setting of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weighting {
    /// Weights measured once, after joining; see
    /// [`Communicator::rebalance`](crate::Communicator::rebalance).
    Auto,
    /// Given weights, in rank order; not all 0.
    Each(Vec<u32>),
}

impl FromStr for Weighting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Weighting> {
        if text == "auto" {
            return Ok(Weighting::Auto);
        }
        let weight = |word: &str| {
            word.trim().parse::<u32>().map_err(|_| {
                Error::InvalidArgument(format!(
                    "`{word}` is not a weight; write `auto`, or a whole number for each rank: \
                     1,1,1,0"
                ))
            })
        };
        let each = text.split(',').map(weight).collect::<Result<Vec<_>>>()?;
        Weights::new(&each, 0)?;
        Ok(Weighting::Each(each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_long_as_their_weights_say_and_cover_everything() {
        let weights = Weights::new(&[3, 0, 1, 4], 1).unwrap();
        for (whole, channels) in [(800u64, 1u32), (801, 1), (1600, 2), (0, 1), (u64::MAX, 3)] {
            let chunks = 4 * channels;
            let starts: Vec<u64> = (0..=chunks)
                .map(|chunk| weights.start(whole, chunk, chunks))
                .collect();
            assert_eq!((starts[0], starts[chunks as usize]), (0, whole));
            assert!(starts.is_sorted(), "{starts:?}");
            assert_eq!(starts[1], starts[2], "rank 1 owns nothing");
        }
        assert_eq!(weights.start(800, 3, 4), 400);
        assert_eq!(weights.start(1600, 5, 8), 800 + 300);
    }

    #[test]
    fn other_weights_and_other_epochs_have_other_marks() {
        let mark = |each: &[u32], epoch| Weights::new(each, epoch).unwrap().mark();
        assert_ne!(mark(&[1, 1, 0], 1), mark(&[1, 0, 1], 1));
        assert_ne!(mark(&[1, 1, 0], 1), mark(&[1, 1, 0], 2));
        assert_eq!(mark(&[1, 1, 0], 1), mark(&[1, 1, 0], 1));
        assert_ne!(mark(&[7], 0), 0);
    }

    #[test]
    fn weights_are_read_and_nonsense_is_refused() {
        let read = |text: &str| text.parse::<Weighting>().expect(text);
        assert_eq!(read("auto"), Weighting::Auto);
        assert_eq!(read("1,1, 0"), Weighting::Each(vec![1, 1, 0]));
        for text in ["", "1,,1", "1,-1", "0,0", "automatic", "1,5000000000"] {
            assert!(text.parse::<Weighting>().is_err(), "{text}");
        }
    }
}
