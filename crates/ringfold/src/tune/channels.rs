//! The scheduler: how many channels a call over messages uses, and how large its chunks are.
//!
//! A channel is an independent pipeline: connections and rings of its own. Each costs messages,
//! wakes and a share of a core, so a call uses as many as its size keeps busy, and grouped calls
//! share them. The inputs are equal on all ranks: the size, the number of ranks, the number of
//! grouped calls ([`Question::group`]), and the [`Bounds`]. The number of calls that happen to be
//! in progress is not: ranks would disagree. `docs/channels.md` has the measured curve.
//!
//! The idea is NCCL's (`topoGetAlgoInfo` removes channels while each has too few bytes); the
//! numbers are measured here.

#![forbid(unsafe_code)]

use std::fmt;

use super::Tuning;
use super::choose::Question;
use crate::error::{Error, Result};
use crate::types::{Algorithm, Collective};

/// The most channels that a communicator may have: each is a connection to every peer.
pub const CHANNELS_MAX: usize = 64;

/// The minimum that a call moves on each of its channels by default: below that, the messages of
/// another pipeline cost more than it saves.
const CHANNEL_BYTES_MIN: u64 = 2 << 20;

/// The size of one message of a pipelined schedule: large enough for few system calls, small enough
/// to stay in cache.
const MESSAGE_BYTES: usize = 256 << 10;

/// The same for halving and doubling, whose first and last messages carry half a slice: smaller
/// slices keep the link busy while a rank waits for its partner.
const HALVING_MESSAGE_BYTES: usize = 64 << 10;

/// The minimum size of a message of a weighted call, if the call is so short that fewer bytes make
/// more slices.
const WEIGHTED_MESSAGE_BYTES_MIN: usize = 16 << 10;

/// Slices of a weighted call, as long as its messages do not become too small: nothing returns
/// before the first has been sent, and a rank that only sends or only receives then waits.
const WEIGHTED_SLICES: u64 = 128;

/// The largest chunk that waits for a late rank in one piece: a message's length has 32 bits.
const LATE_CHUNK_BYTES_MAX: u64 = 1 << 30;

/// The default bounds on the channels of a call.
const DEFAULT: (usize, usize) = (1, 1);

/// The minimum and maximum number of channels of a call: 1 ≤ least ≤ most ≤ [`CHANNELS_MAX`]. The
/// same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    least: usize,
    most: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        let (least, most) = DEFAULT;
        Bounds { least, most }
    }
}

impl Bounds {
    /// Bounds with this minimum and maximum; `None` is the default's, as far as the other one
    /// allows.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for none, for more than [`CHANNELS_MAX`], and for a least above the most.
    pub fn new(least: Option<usize>, most: Option<usize>) -> Result<Bounds> {
        let default = Bounds::default();
        let bounds = Bounds {
            least: least.unwrap_or_else(|| default.least.min(most.unwrap_or(usize::MAX))),
            most: most.unwrap_or_else(|| default.most.max(least.unwrap_or(0))),
        };
        let is_one = |channels| (1..=CHANNELS_MAX).contains(&channels);
        if !is_one(bounds.least) || !is_one(bounds.most) || bounds.least > bounds.most {
            return Err(Error::InvalidArgument(format!(
                "{bounds} are impossible; the least (RINGFOLD_MIN_CHANNELS) and the most \
                 (RINGFOLD_MAX_CHANNELS) are numbers \
                 from 1 to {CHANNELS_MAX}, and the most is not below the least"
            )));
        }
        Ok(bounds)
    }

    /// The fewest.
    pub fn least(self) -> usize {
        self.least
    }

    /// The maximum: the number of pipelines of the communicator.
    pub fn most(self) -> usize {
        self.most
    }

    /// `wanted`, or the bound next to it.
    pub fn clamp(self, wanted: usize) -> usize {
        wanted.clamp(self.least, self.most)
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} channels", self.least, self.most)
    }
}

/// What is known of a call over messages when it is scheduled.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The algorithm that was chosen.
    pub algorithm: Algorithm,
    /// Whether ownership weights determine the ranks' shares.
    pub is_weighted: bool,
    /// The channels that a rule or a plugin wants.
    pub channels: Option<u32>,
}

/// The channels of a call over messages, and its slice: bytes of the vector, or of each block.
pub fn schedule(question: &Question, tuning: &Tuning, wish: Wish) -> (usize, usize) {
    let channels = channels(question, tuning.channels, wish.channels);
    let slice_bytes = tuning
        .slice_bytes
        .unwrap_or_else(|| slice_bytes(question, tuning.chunk_bytes, wish, channels));
    (channels, slice_bytes)
}

/// How many channels: the requested number, or as many as the call keeps busy of its share of the
/// maximum.
fn channels(question: &Question, bounds: Bounds, wanted: Option<u32>) -> usize {
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    bounds.clamp(match wanted {
        Some(wanted) => count(wanted.into()),
        None => {
            let share = bounds.most() / count(question.group.max(1).into());
            share.min(count(question.bytes / CHANNEL_BYTES_MIN))
        }
    })
}

/// One chunk for each part of the schedule and each channel.
fn slice_bytes(
    question: &Question,
    chunk_bytes: Option<usize>,
    wish: Wish,
    channels: usize,
) -> usize {
    if wish.algorithm == Algorithm::Stragglar {
        // One slice: steps that wait for the late rank would delay the slices behind it, which need
        // not wait yet.
        let largest = LATE_CHUNK_BYTES_MAX * (question.world_size as u64).max(2);
        let whole = question.bytes.min(largest).next_multiple_of(64);
        return usize::try_from(whole).unwrap_or(usize::MAX);
    }
    let chunk_bytes = chunk_bytes.unwrap_or_else(|| match (wish.is_weighted, wish.algorithm) {
        (true, _) => weighted_message_bytes(question),
        (false, Algorithm::Rabenseifner) => HALVING_MESSAGE_BYTES,
        (false, _) => MESSAGE_BYTES,
    });
    chunk_bytes * channels * chunks(question, wish.algorithm)
}

/// What an evenly owned message of a weighted call carries.
fn weighted_message_bytes(question: &Question) -> usize {
    let bytes = question.bytes / WEIGHTED_SLICES / question.world_size as u64;
    bytes.clamp(WEIGHTED_MESSAGE_BYTES_MIN as u64, MESSAGE_BYTES as u64) as usize
}

/// Into how many chunks a slice of the vector is divided.
fn chunks(question: &Question, algorithm: Algorithm) -> usize {
    match (question.collective, algorithm) {
        (Collective::AllReduce, Algorithm::Ring | Algorithm::Direct | Algorithm::Rabenseifner)
        | (Collective::Broadcast | Collective::Reduce, Algorithm::Direct) => question.world_size,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(least: usize, most: usize) -> Bounds {
        Bounds::new(Some(least), Some(most)).expect("bounds")
    }

    /// The channels of an all-reduce of this many bytes, made in a group of this many calls.
    fn taken(bytes: u64, group: u32, bounds: Bounds, wanted: Option<u32>) -> usize {
        let question = Question {
            collective: Collective::AllReduce,
            bytes,
            world_size: 4,
            hosts: 4,
            domains: 1,
            slot_bytes: None,
            is_registered: false,
            is_uneven: false,
            is_pairwise: false,
            group,
            algorithm: None,
            protocol: None,
            is_weighted: false,
            goes_around: false,
        };
        channels(&question, bounds, wanted)
    }

    #[test]
    fn a_call_takes_as_many_channels_as_its_size_keeps_busy() {
        let up_to_8 = bounds(1, 8);
        for (bytes, due) in [
            (0, 1),
            (8, 1),
            (3 << 20, 1),
            (4 << 20, 2),
            (16 << 20, 8),
            (1 << 40, 8),
        ] {
            assert_eq!(taken(bytes, 1, up_to_8, None), due, "{bytes} B");
        }
        assert_eq!(taken(8, 1, bounds(3, 8), None), 3);
        assert_eq!(
            taken(1 << 30, 1, Bounds::default(), None),
            Bounds::default().most()
        );
    }

    #[test]
    fn calls_made_together_share_channels() {
        for (group, due) in [(1, 8), (2, 4), (3, 2), (8, 1), (1000, 1)] {
            assert_eq!(
                taken(1 << 30, group, bounds(1, 8), None),
                due,
                "{group} calls"
            );
        }
        assert_eq!(taken(1 << 30, 8, bounds(2, 8), None), 2);
    }

    #[test]
    fn a_wish_holds_within_the_bounds() {
        for (wanted, due) in [(1, 2), (3, 3), (64, 4), (u32::MAX, 4)] {
            assert_eq!(taken(8, 1, bounds(2, 4), Some(wanted)), due, "{wanted}");
        }
    }

    #[test]
    fn what_is_not_said_gives_way_to_what_is() {
        let bounds =
            |least, most| Bounds::new(least, most).map(|bounds| (bounds.least, bounds.most));
        assert_eq!(bounds(Some(3), None).expect("bounds").0, 3);
        assert_eq!(bounds(None, Some(1)).expect("bounds"), (1, 1));
        assert_eq!(bounds(Some(2), Some(8)).expect("bounds"), (2, 8));
        assert_eq!(
            Bounds::new(Some(2), Some(8))
                .map(|bounds| bounds.clamp(64))
                .expect("bounds"),
            8
        );
    }

    #[test]
    fn impossible_bounds_are_refused() {
        for (least, most) in [
            (Some(0), None),
            (None, Some(0)),
            (Some(65), None),
            (Some(4), Some(2)),
        ] {
            let text = Bounds::new(least, most).expect_err("a refusal").to_string();
            assert!(text.contains("RINGFOLD_MAX_CHANNELS"), "{text}");
        }
    }
}
