//! The scheduler: how many channels a call over messages uses, and how large its chunks are.
//!
//! A channel is an independent pipeline: connections and rings of its own. Each costs messages,
//! wakes and a share of a core, so a call uses as many as its size keeps busy, and grouped calls
//! share them. The inputs are equal on all ranks: the size, the number of ranks, the number of
//! grouped calls ([`Question::group`]), and the [`Bounds`]. The number of calls that happen to be
//! in progress is not: ranks would disagree. `docs/explanation/channels.md` has the measured curve.
//!
//! The idea is NCCL's (`topoGetAlgoInfo` removes channels while each has too few bytes); the
//! numbers are measured here.

#![forbid(unsafe_code)]

use super::bounds::Bounds;
use super::{Question, Tuning};
use crate::types::{Algorithm, Collective};

/// The minimum that a call moves on each of its channels by default: below that, the messages of
/// another pipeline cost more than it saves.
const CHANNEL_BYTES_MIN: u64 = 2 << 20;

/// The size of one message of a pipelined schedule: large enough for few system calls, small enough
/// to stay in cache.
const MESSAGE_BYTES: usize = 256 << 10;

/// The same for a ring between hosts alone, in which a rank has one message under way in each
/// direction, ...
const RING_MESSAGE_BYTES: usize = 512 << 10;

/// ... and for pairs that exchange whole slices there: what one system call takes goes quickest.
const PAIR_MESSAGE_BYTES: usize = 1 << 20;

/// The same for halving and doubling, whose first and last messages carry half a slice: smaller
/// slices keep the link busy while a rank waits for its partner.
const HALVING_MESSAGE_BYTES: usize = 64 << 10;

/// Up to so much is one slice of halving and doubling between hosts that share cores: nothing runs
/// beside a rank that waits, and each further slice is more waits. It still fits the caches.
const HALVING_SLICE_BYTES_MAX: u64 = 8 << 20;

/// The minimum size of a message of a weighted call, if the call is so short that fewer bytes make
/// more slices.
const WEIGHTED_MESSAGE_BYTES_MIN: usize = 16 << 10;

/// Slices of a weighted call, as long as its messages do not become too small: nothing returns
/// before the first has been sent, and a rank that only sends or only receives then waits.
const WEIGHTED_SLICES: u64 = 128;

/// The largest chunk that waits for a late rank in one piece: a message's length has 32 bits.
const LATE_CHUNK_BYTES_MAX: u64 = 1 << 30;

/// The channels of a call over messages, and its slice: bytes of the vector, or of each block.
/// `wanted` are the channels that a rule or a plugin requests.
pub fn schedule(
    question: &Question,
    tuning: &Tuning,
    algorithm: Algorithm,
    wanted: Option<u32>,
) -> (usize, usize) {
    let channels = channels(question, tuning.channels, wanted);
    let slice_bytes = tuning
        .slice_bytes
        .unwrap_or_else(|| slice_bytes(question, tuning, algorithm, channels));
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
    tuning: &Tuning,
    algorithm: Algorithm,
    channels: usize,
) -> usize {
    if algorithm == Algorithm::Stragglar {
        // One slice: steps that wait for the late rank would delay the slices behind it, which need
        // not wait yet.
        let largest = LATE_CHUNK_BYTES_MAX * (question.world_size as u64).max(2);
        let whole = question.bytes.min(largest).next_multiple_of(64);
        return usize::try_from(whole).unwrap_or(usize::MAX);
    }
    let message_bytes = || message_bytes(question, tuning, algorithm);
    let chunk_bytes = tuning.chunk_bytes.unwrap_or_else(message_bytes);
    chunk_bytes * channels * chunks(question, algorithm)
}

/// What a message of a pipelined schedule carries.
fn message_bytes(question: &Question, tuning: &Tuning, algorithm: Algorithm) -> usize {
    let is_between_hosts = question.hosts == question.world_size;
    match algorithm {
        _ if question.is_weighted => weighted_message_bytes(question),
        Algorithm::Rabenseifner
            if is_between_hosts
                && tuning.constants.is_oversubscribed()
                && question.bytes <= HALVING_SLICE_BYTES_MAX =>
        {
            let whole = question.bytes.div_ceil(question.world_size as u64);
            whole.next_multiple_of(64) as usize
        }
        Algorithm::Rabenseifner => HALVING_MESSAGE_BYTES,
        Algorithm::Ring if is_between_hosts => RING_MESSAGE_BYTES,
        Algorithm::RecursiveDoubling if is_between_hosts => PAIR_MESSAGE_BYTES,
        _ => MESSAGE_BYTES,
    }
}

/// What an evenly owned message of a weighted call carries.
fn weighted_message_bytes(question: &Question) -> usize {
    let bytes = question.bytes / WEIGHTED_SLICES / question.world_size as u64;
    bytes.clamp(WEIGHTED_MESSAGE_BYTES_MIN as u64, MESSAGE_BYTES as u64) as usize
}

/// Into how many chunks a slice of the vector is divided.
fn chunks(question: &Question, algorithm: Algorithm) -> usize {
    match (question.collective, algorithm) {
        (
            Collective::AllReduce,
            Algorithm::Ring | Algorithm::Direct | Algorithm::Rabenseifner | Algorithm::Hierarchical,
        )
        | (Collective::Broadcast | Collective::Reduce, Algorithm::Direct) => question.world_size,
        (Collective::Broadcast | Collective::Reduce, Algorithm::Hierarchical)
        | (Collective::AllReduce, Algorithm::MultiLeader) => {
            question.world_size.div_ceil(question.hosts.max(1))
        }
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
            group,
            ..Question::new(Collective::AllReduce, bytes, 4)
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
}
