//! Which algorithm, medium, slice size and number of channels a call gets: policy, as one pure function.
//!
//! The answer depends only on what all ranks know alike, so that all of them choose the same; the choice is part of the
//! call that ranks compare.

use crate::error::{Error, Result};
use crate::schedule::{Medium, Schedule, ll_bytes_max};
use crate::tune::Limits;
use crate::tune::limits::NEVER;
use crate::types::{Algorithm, Collective, Protocol};

/// What the choice is made from. The same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// What is called.
    pub collective: Collective,
    /// Bytes of the vector, or of all blocks together.
    pub bytes: u64,
    /// The number of ranks.
    pub world_size: usize,
    /// How many domains of equal size (last-level caches, sockets) the ranks sit in, in rank order; 1 where that is not so.
    pub domains: usize,
    /// Bytes that one rank can publish in one slice, if all ranks are on one host.
    pub slot_bytes: Option<usize>,
    /// Whether counts differ from rank to rank.
    pub is_uneven: bool,
    /// Whether each pair has counts that no third rank knows.
    pub is_pairwise: bool,
    /// An algorithm that the caller insists on.
    pub algorithm: Option<Algorithm>,
    /// A slice size that the caller insists on.
    pub slice_bytes: Option<usize>,
    /// A number of channels that the caller insists on.
    pub channels: Option<usize>,
    /// Whether the communicator has ownership weights.
    pub is_weighted: bool,
    /// Whether rings go around slow ranks.
    pub goes_around: bool,
    /// The thresholds of the communicator.
    pub limits: Limits,
}

/// How a call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Over messages or published memory.
    pub medium: Medium,
    /// How its bytes travel.
    pub protocol: Protocol,
    /// The pipeline's unit: bytes of the vector, or of each block.
    pub slice_bytes: usize,
    /// Independent pipelines.
    pub channels: usize,
    /// How to work in all ranks' buffers, if it turns out that all are registered; `None` to not ask.
    pub tries: Option<Algorithm>,
    /// Whether results that lie apart from their inputs are stored past the caches.
    pub streams: bool,
    /// Whether the communicator's ownership weights say who owns how much.
    pub is_weighted: bool,
}

/// Up to here latency decides between messages.
const LATENCY_BYTES_MAX: u64 = 32 << 10;

/// Ranks that read each other's lines in about the time of one transfer: as many misses as a core has in flight, and a few.
const FLAT_RANKS_MAX: usize = 16;

/// Bytes for each domain below which two levels beat one: above, each byte that is read once more costs more than a wait.
/// Taken from published measurements (two sockets of 64 cores), and not measured here.
const DOMAIN_BYTES_MAX: u64 = 64 << 10;

/// What one message of a pipelined schedule carries: large enough for few system calls, small enough to stay in cache.
const MESSAGE_BYTES: usize = 256 << 10;

/// The same for halving and doubling, whose first and last messages carry half a slice: smaller slices keep the link busy
/// while a rank waits for its partner.
const HALVING_MESSAGE_BYTES: usize = 64 << 10;

/// The least that a message of a weighted call carries, where the call is so short that fewer bytes make more slices.
const WEIGHTED_MESSAGE_BYTES_MIN: usize = 16 << 10;

/// Slices of a weighted call, as far as its messages do not become too small: nothing comes back before the first has gone
/// out, and what has only one way to go then waits.
const WEIGHTED_SLICES: u64 = 128;

/// The largest chunk that waits for a late rank in one piece: a message's length has 32 bits.
const LATE_CHUNK_BYTES_MAX: u64 = 1 << 30;

/// Ranks from which on they read from a root side by side what it alone would have to copy.
const PULLED_SCATTER_RANKS_MIN: usize = 3;

/// Decides.
pub fn choose(question: &Question) -> Result<Choice> {
    let is_weighted = goes_by_weights(question);
    let (algorithm, medium) = match is_weighted {
        true => (Algorithm::Direct, Medium::Messages),
        false => algorithm(question)?,
    };
    let channels = if medium == Medium::Shared {
        1
    } else {
        question.channels.unwrap_or(1)
    };
    let slice_bytes = match medium {
        Medium::Shared => shared_slice_bytes(question, algorithm),
        Medium::Messages => question
            .slice_bytes
            .unwrap_or_else(|| message_slice_bytes(question, algorithm, is_weighted, channels)),
    };
    let is_left_to_us = question.algorithm.is_none() && question.slice_bytes.is_none();
    Ok(Choice {
        algorithm,
        medium,
        protocol: match algorithm.is_zero_copy() {
            true => Protocol::ZeroCopy,
            false if !is_weighted && goes_by_ll(question, algorithm, medium) => Protocol::Ll,
            false => Protocol::Simple,
        },
        slice_bytes,
        channels,
        tries: (is_left_to_us && medium == Medium::Shared)
            .then(|| in_registered(question.collective, question.bytes, &question.limits))
            .flatten(),
        streams: question.bytes >= question.limits.stream_bytes_min,
        is_weighted,
    })
}

/// Whether a call is one for which ownership weights are: an all-reduce that no other way was asked for, above what latency
/// decides. What may go the tiny way where all ranks share a host goes as it would without.
fn goes_by_weights(question: &Question) -> bool {
    let tiny_bytes_max = match question.slot_bytes {
        Some(_) => question.limits.one_shot_bytes_max,
        None => 0,
    };
    let is_large = question.bytes > LATENCY_BYTES_MAX.max(tiny_bytes_max);
    question.is_weighted
        && question.collective == Collective::AllReduce
        && match question.algorithm {
            None => is_large,
            Some(asked) => asked == Algorithm::Direct,
        }
}

/// Whether the payload travels with what announces it.
fn goes_by_ll(question: &Question, algorithm: Algorithm, medium: Medium) -> bool {
    let most = ll_bytes_max(question.collective, algorithm, medium, question.world_size);
    let is_even = !question.is_uneven && !question.is_pairwise;
    is_even && most.is_some_and(|most| question.bytes <= most)
}

/// How a call of this size works in the buffers of all ranks, where all are registered.
pub fn in_registered(collective: Collective, bytes: u64, limits: &Limits) -> Option<Algorithm> {
    let serves = |way| Schedule::algorithms(collective, Medium::Shared).contains(&way);
    let is_served = (limits.serve_bytes_min..=limits.serve_bytes_max).contains(&bytes);
    if is_served && serves(Algorithm::Serve) {
        return Some(Algorithm::Serve);
    }
    (bytes >= limits.push_bytes_min && serves(Algorithm::Push)).then_some(Algorithm::Push)
}

/// Whether a call is for the ring that goes around slow ranks: one that no other way was asked for, above what latency
/// decides, of enough ranks that there is one to go around.
pub fn goes_around(question: &Question) -> bool {
    let asked = question.algorithm;
    let is_large = asked.is_some() || question.bytes > LATENCY_BYTES_MAX;
    let is_ring = matches!(
        question.collective,
        Collective::AllReduce | Collective::ReduceScatter
    ) && asked.is_none_or(|asked| asked == Algorithm::Ring);
    question.goes_around && is_ring && is_large && question.world_size > 2
}

fn algorithm(question: &Question) -> Result<(Algorithm, Medium)> {
    if goes_around(question) {
        return Ok((Algorithm::Ring, Medium::Messages));
    }
    let shared = if question.slot_bytes.is_some() && !question.is_pairwise {
        Schedule::algorithms(question.collective, Medium::Shared)
    } else {
        &[]
    };
    let messages = Schedule::algorithms(question.collective, Medium::Messages);
    if let Some(asked) = question.algorithm {
        if shared.contains(&asked) {
            return Ok((asked, Medium::Shared));
        }
        if messages.contains(&asked) {
            return Ok((asked, Medium::Messages));
        }
        let names: Vec<_> = shared
            .iter()
            .chain(messages)
            .map(|algorithm| algorithm.name())
            .collect();
        let text = format!(
            "no {} by `{asked}` here; one of {}",
            question.collective,
            names.join(", ")
        );
        return Err(Error::Unsupported(text));
    }
    if shared.contains(&Algorithm::Pull)
        && question.bytes
            >= pull_bytes_min(&question.limits, question.collective, question.world_size)
    {
        return Ok((Algorithm::Pull, Medium::Shared));
    }
    if shared.contains(&Algorithm::Hierarchical) && prefers_hierarchy(question) {
        return Ok((Algorithm::Hierarchical, Medium::Shared));
    }
    if shared.contains(&Algorithm::OneShot) && question.bytes <= question.limits.one_shot_bytes_max
    {
        return Ok((Algorithm::OneShot, Medium::Shared));
    }
    if shared.contains(&Algorithm::Flat) && question.bytes <= question.limits.one_shot_bytes_max {
        return Ok((Algorithm::Flat, Medium::Shared));
    }
    if shared.contains(&Algorithm::Claim) && question.bytes >= question.limits.claim_bytes_min {
        return Ok((Algorithm::Claim, Medium::Shared));
    }
    if shared.contains(&Algorithm::Direct) {
        return Ok((Algorithm::Direct, Medium::Shared));
    }
    let best = preferences(question)
        .iter()
        .find(|algorithm| messages.contains(algorithm));
    let first = best.or(messages.first()).copied();
    first
        .map(|algorithm| (algorithm, Medium::Messages))
        .ok_or_else(|| {
            Error::Unsupported(format!(
                "{} between ranks of several hosts",
                question.collective
            ))
        })
}

/// From which size on a collective is pulled. Where a rank that reads is no quicker than two that copy side by side, never.
pub fn pull_bytes_min(limits: &Limits, collective: Collective, world_size: usize) -> u64 {
    match collective {
        Collective::AllReduce | Collective::ReduceScatter => limits.pull_bytes_min,
        Collective::AllGather | Collective::AllToAll => limits.pull_copy_bytes_min,
        Collective::Scatter if world_size >= PULLED_SCATTER_RANKS_MIN => limits.pull_copy_bytes_min,
        _ => NEVER,
    }
}

/// Whether reducing within domains first pays: while waiting costs more than moving, and not for what few ranks get from
/// each other in one step.
fn prefers_hierarchy(question: &Question) -> bool {
    let domains = question.domains;
    let has_levels = domains > 1 && domains < question.world_size;
    let is_flat_quick =
        is_flat_quick(question.world_size) && question.bytes <= question.limits.one_shot_bytes_max;
    let bytes_max = DOMAIN_BYTES_MAX.saturating_mul(domains as u64);
    // Whoever has a core serves all domains where ranks outnumber cores.
    let is_crowded = question.limits.claim_bytes_min != NEVER;
    has_levels && !is_crowded && !is_flat_quick && question.bytes < bytes_max
}

/// Whether so few ranks read each other's lines at once as quickly as in two steps, whatever their domains.
pub fn is_flat_quick(world_size: usize) -> bool {
    world_size <= FLAT_RANKS_MAX
}

/// The algorithms over messages, best first; the first that serves the collective is taken.
fn preferences(question: &Question) -> &'static [Algorithm] {
    use Algorithm::{Direct, Flat, OneShot, Rabenseifner, RecursiveDoubling, Ring, Tree};
    let small = question.bytes <= LATENCY_BYTES_MAX;
    let power_of_two = question.world_size.is_power_of_two();
    match question.collective {
        Collective::AllReduce if small => &[RecursiveDoubling, Tree, Ring],
        // As few bytes as the ring's in a shorter chain.
        Collective::AllReduce if power_of_two => &[Rabenseifner, Ring],
        Collective::AllReduce => &[Ring],
        Collective::Broadcast | Collective::Reduce if small || question.world_size <= 2 => {
            &[Tree, Flat]
        }
        Collective::Broadcast | Collective::Reduce => &[Ring, Tree],
        Collective::AllGather | Collective::ReduceScatter
            if small && power_of_two && !question.is_uneven =>
        {
            &[RecursiveDoubling, Direct, Ring]
        }
        Collective::AllGather | Collective::ReduceScatter if small => &[Direct, Ring],
        Collective::AllGather | Collective::ReduceScatter => &[Ring],
        Collective::Gather | Collective::Scatter => &[Flat, Direct],
        Collective::Barrier => &[RecursiveDoubling, Tree, Direct],
        _ => &[Direct, OneShot],
    }
}

fn message_slice_bytes(
    question: &Question,
    algorithm: Algorithm,
    is_weighted: bool,
    channels: usize,
) -> usize {
    if algorithm == Algorithm::Stragglar {
        // One slice: what waits for the late rank would hold up the slices behind it, which need not wait yet.
        let largest = LATE_CHUNK_BYTES_MAX * (question.world_size as u64).max(2);
        let whole = question.bytes.min(largest).next_multiple_of(64);
        return usize::try_from(whole).unwrap_or(usize::MAX);
    }
    let bytes = match is_weighted {
        true => weighted_message_bytes(question),
        false => message_bytes(algorithm),
    };
    bytes * channels * chunks(question, algorithm)
}

fn message_bytes(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::Rabenseifner => HALVING_MESSAGE_BYTES,
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
        (Collective::AllReduce, Algorithm::Ring | Algorithm::Direct | Algorithm::Rabenseifner)
        | (Collective::Broadcast | Collective::Reduce, Algorithm::Direct) => question.world_size,
        _ => 1,
    }
}

fn shared_slice_bytes(question: &Question, algorithm: Algorithm) -> usize {
    let slot_bytes = question.slot_bytes.unwrap_or(usize::MAX);
    // Inputs and results have places of their own.
    let places = 1 + usize::from(algorithm == Algorithm::Hierarchical);
    let (collective, world_size) = (question.collective, question.world_size);
    let published =
        |wanted| published_slice_bytes(collective, world_size, slot_bytes / places, wanted);
    let limits = &question.limits;
    let slice = question
        .slice_bytes
        .unwrap_or(limits.shared_slice_bytes as usize);
    let one = published(slice);
    let is_rooted = collective.has_root() && !collective.reduces();
    // What fits one slice is one, whoever asks: it may go the tiny way.
    if is_rooted && question.slice_bytes.is_none() && block_bytes(question) > one as u64 {
        published(slice.min(limits.rooted_slice_bytes as usize))
    } else {
        one
    }
}

/// Bytes of the vector, or of each block.
fn block_bytes(question: &Question) -> u64 {
    match question.collective {
        Collective::Broadcast => question.bytes,
        _ => question.bytes / question.world_size as u64,
    }
}

/// The slice of a vector or of each block that is published when `wanted` would be best.
pub fn published_slice_bytes(
    collective: Collective,
    world_size: usize,
    slot_bytes: usize,
    wanted: usize,
) -> usize {
    let blocks = match collective {
        Collective::ReduceScatter | Collective::Scatter | Collective::AllToAll => world_size,
        _ => 1,
    };
    // Blocks begin at whole lines.
    let largest = slot_bytes / blocks / 64 * 64;
    wanted.clamp(64, largest.max(64))
}
