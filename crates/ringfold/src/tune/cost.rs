//! What a collective should cost: closed forms in α, β and γ (Hockney, 1994; Thakur, Rabenseifner & Gropp, 2005), with
//! the overhead of further messages set apart from the latency (Culler et al., LogP, 1993).
//!
//! An algorithm is priced by four [`Terms`] that are counted, not fitted: a test counts them from the schedules. Links are
//! full duplex, each rank has one port, and reductions do not overlap with messages. What this does not know: contention
//! in the network, the pipelining of slices (except where an algorithm lives from it: the ring's broadcast and reduce), and
//! more ranks than cores. So it ranks algorithms; it does not replace measuring.

#![forbid(unsafe_code)]

pub mod weighted;

use crate::schedule::{Access, Schedule, Spec, stragglar};
use crate::types::{Collective, Method};

/// Most slices that [`predict`] assumes for a pipelined chain.
const MAX_SLICES: f64 = 64.0;

/// What a machine's messages, copies and reductions cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// α: from the sending of an empty message until it is received.
    pub alpha_us: f64,
    /// What a rank spends on each further message that is under way at the same time.
    pub overhead_us: f64,
    /// β: the inverse of a link's bandwidth.
    pub beta_us_per_byte: f64,
    /// γ: combining two operands.
    pub gamma_us_per_byte: f64,
    /// From a publication until a peer has seen it.
    pub hop_us: f64,
    /// Copying to or from published memory, on one core.
    pub copy_us_per_byte: f64,
    /// The same when all ranks of the host do it at once, for each rank: the inverse of the host's memory bandwidth.
    pub memory_us_per_byte: f64,
}

impl Default for Costs {
    /// A 100 Gbit/s network with TCP's latency, and a host that copies 10 GB/s on a core and 40 GB/s on all.
    fn default() -> Costs {
        Costs {
            alpha_us: 5.0,
            overhead_us: 0.5,
            beta_us_per_byte: 8e-5,
            gamma_us_per_byte: 5e-5,
            hop_us: 0.3,
            copy_us_per_byte: 1e-4,
            memory_us_per_byte: 2.5e-5,
        }
    }
}

/// What an algorithm needs, on the rank that needs most in each round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Messages, or publications, that wait for each other. (For `stragglar`, and no power of two ranks, a bound.)
    pub hops: f64,
    /// Messages through one port.
    pub messages: f64,
    /// Bytes through one port, or copied to and from published memory, as a multiple of the collective's size.
    pub bytes: f64,
    /// Bytes reduced, as a multiple of the collective's size.
    pub reduced: f64,
}

/// The time of one call. `bytes` is the collective's size as nccl-tests counts it: the larger of a rank's two buffers.
/// `None` if there is no such schedule.
pub fn predict(
    collective: Collective,
    algorithm: Method,
    access: Access,
    world_size: u32,
    bytes: u64,
    costs: &Costs,
) -> Option<f64> {
    let terms = terms(collective, algorithm, access, world_size)?;
    let size = bytes as f64;
    let n = f64::from(world_size);
    if access != Access::Messages {
        return Some(over_shared_time(&terms, world_size, size, costs));
    }
    if is_chain(collective, algorithm) && world_size > 1 {
        let reduces = f64::from(u8::from(collective.reduces()));
        let per_hop = size * (costs.beta_us_per_byte + reduces * costs.gamma_us_per_byte);
        let best = ((n - 2.0) * per_hop / costs.alpha_us).sqrt().round();
        let slices = best.clamp(1.0, MAX_SLICES);
        return Some((n - 2.0 + slices) * (costs.alpha_us + per_hop / slices));
    }
    let waiting = terms.hops * costs.alpha_us + (terms.messages - terms.hops) * costs.overhead_us;
    let moving = terms.bytes * costs.beta_us_per_byte + terms.reduced * costs.gamma_us_per_byte;
    Some(waiting + size * moving)
}

/// Whether the algorithm is worth anything only in slices, which follow each other along a chain.
fn is_chain(collective: Collective, algorithm: Method) -> bool {
    algorithm == Method::Ring && matches!(collective, Collective::Broadcast | Collective::Reduce)
}

/// What [`predict`] says, for ranks that sit in domains.
pub fn predict_for(spec: &Spec, bytes: u64, costs: &Costs) -> Option<f64> {
    let Spec {
        collective,
        access,
        world_size,
        ..
    } = *spec;
    if !is_hierarchical(spec) {
        return predict(collective, spec.method(), access, world_size, bytes, costs);
    }
    Some(over_shared_time(
        &terms_for(spec)?,
        world_size,
        bytes as f64,
        costs,
    ))
}

/// What [`terms`] says, for ranks that sit in domains.
pub fn terms_for(spec: &Spec) -> Option<Terms> {
    if !is_hierarchical(spec) {
        return terms(spec.collective, spec.method(), spec.access, spec.world_size);
    }
    Some(hierarchical(spec.world_size, spec.domains))
}

/// The terms of `hierarchical` for ranks that sit in several domains of several ranks each.
pub fn hierarchical(world_size: u32, domains: u32) -> Terms {
    let domains = f64::from(domains);
    let size = f64::from(world_size) / domains;
    Terms {
        hops: 3.0,
        messages: 3.0,
        bytes: 2.0,
        reduced: (size + domains - 2.0) / size,
    }
}

/// Whether there is more than one level.
fn is_hierarchical(spec: &Spec) -> bool {
    spec.method() == Method::Hierarchical
        && spec.collective == Collective::AllReduce
        && spec.access != Access::Messages
        && spec.domains > 1
        && spec.domains < spec.world_size
}

/// The time of a call over shared memory.
fn over_shared_time(terms: &Terms, world_size: u32, size: f64, costs: &Costs) -> f64 {
    let at_least = f64::from(world_size) * costs.memory_us_per_byte;
    let copy = costs.copy_us_per_byte.max(at_least);
    let gamma = costs.gamma_us_per_byte.max(at_least);
    terms.hops * costs.hop_us + size * (terms.bytes * copy + terms.reduced * gamma)
}

/// The closed forms, in one slice. `None` if there is no such schedule.
pub fn terms(
    collective: Collective,
    algorithm: Method,
    access: Access,
    world_size: u32,
) -> Option<Terms> {
    let served = Schedule::methods(collective, access).contains(&algorithm);
    let paired = algorithm == Method::RecursiveDoubling
        && matches!(
            collective,
            Collective::AllGather | Collective::ReduceScatter
        );
    let is_too_large = algorithm == Method::Stragglar && world_size > stragglar::WORLD_SIZE_MAX;
    if !served || world_size == 0 || (paired && !world_size.is_power_of_two()) || is_too_large {
        return None;
    }
    if world_size == 1 {
        return Some(Terms::default());
    }
    let [hops, messages, bytes, reduced] = match access {
        Access::Messages => over_messages(collective, algorithm, world_size)?,
        Access::Staged | Access::Registered => {
            over_shared_memory(collective, algorithm, world_size)?
        }
    };
    Some(Terms {
        hops,
        messages,
        bytes,
        reduced,
    })
}

/// Hops, messages, bytes, reduced.
fn over_messages(collective: Collective, algorithm: Method, world_size: u32) -> Option<[f64; 4]> {
    use Collective::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Recv, Reduce, ReduceScatter,
        Scatter, Send, SendRecv,
    };
    use Method::{Direct, Flat, OneShot, Rabenseifner, RecursiveDoubling, Ring, Stragglar, Tree};
    let n = f64::from(world_size);
    let peers = n - 1.0;
    let share = peers / n;
    // A binomial tree has `levels` rounds, and its longest path is `depth`.
    let depth = f64::from(world_size.ilog2());
    let levels = f64::from(world_size.next_power_of_two().ilog2());
    // The core of the pairwise algorithms has 2^depth ranks; the others fold, in a round before it and one after it.
    let core_share = 1.0 - (-depth).exp2();
    let fold = if levels > depth { 1.0 } else { 0.0 };
    Some(match (collective, algorithm) {
        (AllReduce, Flat) => [2.0, 2.0 * peers, 2.0 * peers, peers],
        (AllReduce, Ring) => [2.0 * peers, 2.0 * peers, 2.0 * share, share],
        (AllReduce, Tree) => [2.0 * depth, 2.0 * levels, 2.0 * levels, levels],
        (AllReduce, RecursiveDoubling) => {
            // Opposite places in the core are both folded into only when more than half of it is.
            let both = f64::from(u8::from(n > 1.5 * depth.exp2()));
            let rounds = depth + 2.0 * fold;
            [depth + fold + both, rounds, rounds, depth + fold]
        }
        (AllReduce, Rabenseifner) => {
            let rounds = 2.0 * (depth + fold);
            [rounds, rounds, 2.0 * (core_share + fold), core_share + fold]
        }
        (AllReduce | Reduce, Direct) => [2.0, 2.0 * peers, 2.0 * share, share],
        (AllReduce, OneShot) => [1.0, peers, peers, peers],
        (AllReduce, Stragglar) if world_size == 2 => [1.0; 4],
        (AllReduce, Stragglar) => {
            let after = f64::from(stragglar::rounds_after_arrival(world_size));
            if world_size.is_power_of_two() {
                let rounds = peers - 1.0 + after;
                [1.5 * n - 3.0 + depth, rounds, rounds / peers, 2.0]
            } else {
                // Hand the sums to the hubs, then wait for each round: how long the longest chain is follows no formula.
                let rounds = peers + after;
                [rounds, rounds, rounds / peers, 1.0 + share_of_others(peers)]
            }
        }
        (Broadcast, Flat) => [1.0, peers, peers, 0.0],
        (Broadcast, Ring) => [peers, peers, peers, 0.0],
        (Broadcast, Tree) => [depth, levels, levels, 0.0],
        (Broadcast, Direct) => [peers.min(2.0), 2.0 * peers, 2.0 * share, 0.0],
        (Reduce, Flat) => [1.0, peers, peers, peers],
        (Reduce, Ring) => [peers, peers, peers, peers],
        (Reduce, Tree) => [depth, levels, levels, levels],
        (AllGather, Ring) => [peers, peers, share, 0.0],
        (AllGather, RecursiveDoubling) => [depth, depth, share, 0.0],
        (ReduceScatter, Ring) => [peers, peers, share, share],
        (ReduceScatter, RecursiveDoubling) => [depth, depth, share, share],
        (ReduceScatter, Direct) => [1.0, peers, share, share],
        (AllGather | Gather | Scatter | AllToAll, _) => [1.0, peers, share, 0.0],
        (Barrier, RecursiveDoubling) => [levels, levels, 0.0, 0.0],
        (Barrier, _) => [1.0, peers, 0.0, 0.0],
        (Send | Recv | SendRecv, _) => [1.0, 1.0, 1.0, 0.0],
        (AllReduce | Broadcast | Reduce | ReduceScatter, _) => return None,
    })
}

/// What each of `peers` ranks reduces of a vector that they reduce and scatter among themselves.
fn share_of_others(peers: f64) -> f64 {
    (peers - 1.0) / peers
}

/// Hops, messages (the same), bytes copied to and from published or exposed memory, reduced.
fn over_shared_memory(
    collective: Collective,
    algorithm: Method,
    world_size: u32,
) -> Option<[f64; 4]> {
    let n = f64::from(world_size);
    let share = (n - 1.0) / n;
    let [hops, bytes, reduced] = match (collective, algorithm) {
        (Collective::AllReduce, Method::Push) => [2.0, share, share],
        (Collective::Reduce | Collective::ReduceScatter, Method::Push) => [2.0, 0.0, share],
        (Collective::Gather | Collective::Scatter, Method::Push) => [2.0, 1.0 / n, 0.0],
        (_, Method::Push) => [2.0, 1.0, 0.0],
        // The last to come may find that it does everything.
        (Collective::AllReduce, Method::Serve) => [2.0, n - 1.0, n - 1.0],
        (Collective::Reduce, Method::Serve) => [2.0, 0.0, n - 1.0],
        (_, Method::Serve) => [2.0, n, 0.0],
        (Collective::AllReduce, Method::OneShot) | (Collective::Reduce, Method::Flat) => {
            [1.0, 1.0, n - 1.0]
        }
        // The last to come may find that it combines everything.
        (Collective::AllReduce, Method::Claim) => [2.0, 2.0, n - 1.0],
        (Collective::AllReduce, _) => [2.0, 3.0 * share, share],
        (Collective::Reduce, _) => [2.0, 1.0 + share, share],
        (Collective::ReduceScatter, _) => [1.0, share, share],
        (Collective::Broadcast, _) => [1.0, 2.0, 0.0],
        (Collective::AllToAll, _) => [1.0, 2.0 * share, 0.0],
        (Collective::AllGather | Collective::Gather | Collective::Scatter, _) => [1.0, 1.0, 0.0],
        (Collective::Barrier, _) => [1.0, 0.0, 0.0],
        (Collective::Send | Collective::Recv | Collective::SendRecv, _) => return None,
    };
    Some([hops, hops, bytes, reduced])
}

#[cfg(test)]
mod tests;
