//! The scheduler: the number of channels and the chunk size of a call over messages.
//!
//! A channel is an independent pipeline with its own connections and rings. Each channel costs
//! messages, wakes and a share of a core, so a call uses as many as its size keeps busy, and
//! grouped calls share them. The inputs are equal on all ranks: the size, the number of ranks, the
//! number of grouped calls ([`Question::group`]), and the maximum. The number of calls in
//! progress is not an input, because ranks would disagree on it. `docs/explanation/channels.md` has
//! the measured curve.
//!
//! The idea is NCCL's (`topoGetAlgoInfo` removes channels while each has too few bytes); the
//! numbers are measured here.

#![forbid(unsafe_code)]

use super::{Question, Tuning};
use crate::types::{Algorithm, Collective};

/// Maximum number of channels of a communicator. Each channel is a connection to every peer.
pub const CHANNELS_MAX: usize = 64;

/// Default minimum of the bytes that a call moves on each channel. Below this size, the messages of
/// another pipeline cost more than it saves.
const CHANNEL_BYTES_MIN: u64 = 2 << 20;

/// The size of one message of a pipelined schedule: large enough for few system calls, small enough
/// to stay in cache.
const MESSAGE_BYTES: usize = 256 << 10;

/// Message size between hosts with one rank each of a ring, in which a rank has one message in
/// flight in each direction, and of calls that only move data, which need not stay in the cache.
const MOVED_MESSAGE_BYTES: usize = 512 << 10;

/// Message size of pairs that exchange whole slices between hosts with one rank each. Messages that
/// fit one system call are fastest.
const PAIR_MESSAGE_BYTES: usize = 1 << 20;

/// Message size of halving and doubling, whose first and last messages carry half a slice. Smaller
/// slices keep the link busy while a rank waits for its partner.
const HALVING_MESSAGE_BYTES: usize = 64 << 10;

/// The largest call that is one slice in halving and doubling between hosts that share cores.
/// Nothing runs beside a waiting rank of such hosts, and each further slice adds waits. This size
/// still fits the caches.
const HALVING_SLICE_BYTES_MAX: u64 = 8 << 20;

/// Minimum message size of a weighted call, which limits the number of slices of a short call.
const WEIGHTED_MESSAGE_BYTES_MIN: usize = 16 << 10;

/// Number of slices of a weighted call, unless its messages become too small. No result returns
/// before the first slice has been sent; until then, a rank that only sends or only receives waits.
const WEIGHTED_SLICES: u64 = 128;

/// Maximum chunk size of a call that waits for a late rank in one slice: a message's length has 32
/// bits.
const LATE_CHUNK_BYTES_MAX: u64 = 1 << 30;

/// Returns the default maximum of channels: one for each of the `rails`.
pub fn of_rails(rails: usize) -> usize {
    rails.clamp(1, CHANNELS_MAX)
}

/// Returns the number of channels of a call over messages, and its slice size in bytes of the
/// vector, or of each block. `wanted` is the number of channels that a rule or a plugin requests.
pub fn schedule(
    question: &Question,
    tuning: &Tuning,
    algorithm: Algorithm,
    wanted: Option<u32>,
) -> (usize, usize) {
    let channels = channels(question, tuning.channels_max, wanted);
    let slice_bytes = tuning
        .slice_bytes
        .unwrap_or_else(|| slice_bytes(question, tuning, algorithm, channels));
    (channels, slice_bytes)
}

/// Returns the requested number of channels, or else the number that the call keeps busy, up to its
/// share of the maximum `most`; either is clamped to 1 to `most`.
fn channels(question: &Question, most: usize, wanted: Option<u32>) -> usize {
    let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let number = match wanted {
        Some(wanted) => count(wanted.into()),
        None => {
            let share = most / count(question.group.max(1).into());
            share.min(count(question.bytes / CHANNEL_BYTES_MIN))
        }
    };
    number.clamp(1, most)
}

/// Returns the slice size: one chunk for each part of the schedule and each channel.
fn slice_bytes(
    question: &Question,
    tuning: &Tuning,
    algorithm: Algorithm,
    channels: usize,
) -> usize {
    if algorithm == Algorithm::Stragglar {
        // One slice: steps that wait for the late rank would delay later slices, which need not
        // wait yet.
        let largest = LATE_CHUNK_BYTES_MAX * (question.world_size as u64).max(2);
        let whole = question.bytes.min(largest).next_multiple_of(64);
        return usize::try_from(whole).unwrap_or(usize::MAX);
    }
    message_bytes(question, tuning, algorithm) * channels * chunks(question, algorithm)
}

/// Returns the message size of a pipelined schedule.
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
        Algorithm::Ring if is_between_hosts => MOVED_MESSAGE_BYTES,
        Algorithm::Flat | Algorithm::Direct
            if is_between_hosts && !question.collective.reduces() =>
        {
            MOVED_MESSAGE_BYTES
        }
        Algorithm::RecursiveDoubling if is_between_hosts => PAIR_MESSAGE_BYTES,
        _ => MESSAGE_BYTES,
    }
}

/// Returns the size of an evenly owned message of a weighted call.
fn weighted_message_bytes(question: &Question) -> usize {
    let bytes = question.bytes / WEIGHTED_SLICES / question.world_size as u64;
    bytes.clamp(WEIGHTED_MESSAGE_BYTES_MIN as u64, MESSAGE_BYTES as u64) as usize
}

/// Returns the number of chunks in a slice of the vector.
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

    /// Returns the number of channels of an all-reduce of `bytes` bytes in a group of `group`
    /// calls.
    fn taken(bytes: u64, group: u32, most: usize, wanted: Option<u32>) -> usize {
        let question = Question {
            group,
            ..Question::new(Collective::AllReduce, bytes, 4)
        };
        channels(&question, most, wanted)
    }

    #[test]
    fn a_call_takes_as_many_channels_as_its_size_keeps_busy() {
        for (bytes, due) in [
            (0, 1),
            (8, 1),
            (3 << 20, 1),
            (4 << 20, 2),
            (16 << 20, 8),
            (1 << 40, 8),
        ] {
            assert_eq!(taken(bytes, 1, 8, None), due, "{bytes} B");
        }
        assert_eq!(taken(1 << 30, 1, of_rails(0), None), 1);
        assert_eq!(taken(1 << 30, 1, of_rails(4), None), 4);
        assert_eq!(taken(1 << 30, 1, of_rails(100), None), CHANNELS_MAX);
    }

    #[test]
    fn calls_made_together_share_channels() {
        for (group, due) in [(1, 8), (2, 4), (3, 2), (8, 1), (1000, 1)] {
            assert_eq!(taken(1 << 30, group, 8, None), due, "{group} calls");
        }
    }

    #[test]
    fn a_wish_holds_up_to_the_maximum() {
        for (wanted, due) in [(0, 1), (3, 3), (64, 4), (u32::MAX, 4)] {
            assert_eq!(taken(8, 1, 4, Some(wanted)), due, "{wanted}");
        }
    }
}
