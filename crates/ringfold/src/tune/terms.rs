//! The terms of each algorithm as closed forms: hops, messages, bytes and reductions.
//!
//! The closed forms in α, β and γ ([`cost`](super::cost)), which `ringfold schedule` prints and the
//! simulator is compared with, and the tuner's [`model`](super::model) are all priced from this one
//! table. The terms are counted, not fitted: a test counts them from the schedules. All terms are
//! for one slice. Bytes are multiples of the collective's size, which is the larger of a rank's two
//! buffers, as nccl-tests counts it.

#![forbid(unsafe_code)]

mod two_levels;

use crate::schedule::{Access, Schedule, Spec, stragglar};
use crate::types::{Collective, Method};

/// The hops and loads of an algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostTerms {
    /// Length of the longest chain of messages or publications that wait for each other. (For
    /// `stragglar`, if the number of ranks is no power of two, a bound.)
    pub hops: f64,
    /// Load of the busiest rank in each round, summed over all rounds. With dynamic assignment that
    /// is the last rank to arrive, which may have to do everything.
    pub busiest: Load,
    /// Load of all ranks together. (For `stragglar` a bound.)
    pub all: Load,
    /// The parts of the vector that the busiest rank reads or overwrites in shared memory, right
    /// after a peer has written or read them.
    pub fresh: f64,
    /// The part of these terms within the hosts, for a schedule of two levels.
    pub within: Option<Within>,
}

/// The terms of a schedule of two levels within the hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Within {
    /// Hops within the hosts, as [`CostTerms::hops`].
    pub hops: f64,
    /// Load of the busiest rank, as [`CostTerms::busiest`].
    pub busiest: Load,
    /// Load of all ranks, as [`CostTerms::all`].
    pub all: Load,
}

/// The parameters of the terms.
#[derive(Clone, Copy, Debug)]
pub struct TermParameters {
    /// The collective.
    pub collective: Collective,
    /// The method.
    pub method: Method,
    /// How ranks reach their peers' data.
    pub access: Access,
    /// The number of ranks.
    pub world_size: u32,
    /// The number of hosts, assumed to have equally many ranks.
    pub hosts: u32,
    /// The number of runs of consecutive ranks of one host, at least that of hosts. Runs are
    /// assumed to be equally long, and hosts to alternate.
    pub runs: u32,
}

impl From<&Spec> for TermParameters {
    fn from(spec: &Spec) -> TermParameters {
        TermParameters {
            collective: spec.collective,
            method: spec.method(),
            access: spec.access,
            world_size: spec.world_size,
            hosts: spec.hosts.count(),
            runs: spec.hosts.runs(),
        }
    }
}

/// The work of a rank, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Messages sent through a port, or publications.
    pub messages: f64,
    /// Bytes sent through a port, or copied to and from published memory, as a multiple of the
    /// collective's size.
    pub bytes: f64,
    /// Bytes reduced, as a multiple of the collective's size.
    pub reduced: f64,
}

/// Messages, bytes, and bytes reduced.
type LoadCounts = [f64; 3];

impl From<LoadCounts> for Load {
    fn from([messages, bytes, reduced]: LoadCounts) -> Load {
        Load {
            messages,
            bytes,
            reduced,
        }
    }
}

impl Load {
    /// Returns `count` times this load.
    pub fn times(self, count: f64) -> Load {
        Load {
            messages: self.messages * count,
            bytes: self.bytes * count,
            reduced: self.reduced * count,
        }
    }

    /// Returns this load without `part`.
    pub fn without(self, part: Load) -> Load {
        Load {
            messages: self.messages - part.messages,
            bytes: self.bytes - part.bytes,
            reduced: self.reduced - part.reduced,
        }
    }

    /// Returns the sum of this load and `more`.
    fn and(self, more: Load) -> Load {
        self.without(more.times(-1.0))
    }

    /// Returns the bytes that are copied or reduced.
    pub fn moved(self) -> f64 {
        self.bytes + self.reduced
    }
}

impl CostTerms {
    /// Returns the terms of a collective's schedules; `None` if none exists for this number of
    /// ranks. Rank and root do not matter.
    pub fn of(case: impl Into<TermParameters>) -> Option<CostTerms> {
        use Collective::{AllGather, ReduceScatter};
        let case = case.into();
        let (collective, algorithm, n) = (case.collective, case.method, case.world_size);
        // Devices do all but the sums, which follow no schedule.
        let is_served =
            case.access == Access::Slots || Schedule::exists(collective, algorithm, case.access);
        // A message holds several blocks, which are contiguous only among a power of two ranks.
        let is_paired = algorithm == Method::RecursiveDoubling
            && matches!(collective, AllGather | ReduceScatter);
        let is_too_large = algorithm == Method::Stragglar && n > stragglar::WORLD_SIZE_MAX;
        if !is_served || n == 0 || (is_paired && !n.is_power_of_two()) || is_too_large {
            return None;
        }
        match case.access {
            _ if n == 1 => Some(CostTerms::default()),
            Access::Messages if is_two_levels(algorithm) => CostTerms::two_levels(&case),
            Access::Messages => over_messages(collective, algorithm, n),
            Access::Slots => Some(by_slots(collective, n)),
            _ => over_shared_memory(collective, algorithm, n),
        }
    }

    /// Returns terms with equal loads on all ranks.
    fn alike(hops: f64, each: LoadCounts, ranks: f64) -> CostTerms {
        CostTerms {
            all: Load::from(each).times(ranks),
            ..CostTerms::apart(hops, each, each)
        }
    }

    /// Returns terms with different loads on the ranks.
    fn apart(hops: f64, busiest: LoadCounts, all: LoadCounts) -> CostTerms {
        CostTerms {
            hops,
            busiest: busiest.into(),
            all: all.into(),
            fresh: 0.0,
            within: None,
        }
    }
}

/// Whether slices follow each other along a chain of ranks; the algorithm depends on this
/// pipelining.
pub fn is_chain(collective: Collective, algorithm: Method) -> bool {
    algorithm == Method::Ring && matches!(collective, Collective::Broadcast | Collective::Reduce)
}

/// Whether ranks exchange within hosts first, and then between them.
pub fn is_two_levels(method: Method) -> bool {
    matches!(
        method,
        Method::Hierarchical | Method::Leader | Method::MultiLeader
    )
}

/// Returns the terms of one level over messages.
fn over_messages(collective: Collective, algorithm: Method, world_size: u32) -> Option<CostTerms> {
    use Collective::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Recv, Reduce, ReduceScatter,
        Scatter, Send, SendRecv,
    };
    use Method::{Direct, Flat, OneShot, RecursiveDoubling, Ring, Tree};
    let n = f64::from(world_size);
    let p = n - 1.0;
    let share = p / n;
    // A binomial tree has `levels` rounds, and its longest path is `depth`.
    let depth = f64::from(world_size.ilog2());
    let levels = f64::from(world_size.next_power_of_two().ilog2());
    let reduces = f64::from(u8::from(collective.reduces()));
    let alike = |hops, each| CostTerms::alike(hops, each, n);
    let apart = CostTerms::apart;
    Some(match (collective, algorithm) {
        (AllReduce, Flat) => apart(2.0, [2.0 * p, 2.0 * p, p], [2.0 * p, 2.0 * p, p]),
        (AllReduce, Tree) => apart(
            2.0 * depth,
            [2.0 * levels, 2.0 * levels, levels],
            [2.0 * p, 2.0 * p, p],
        ),
        (AllReduce, Ring) => alike(2.0 * p, [2.0 * p, 2.0 * share, share]),
        (AllReduce, Direct) => alike(2.0, [2.0 * p, 2.0 * share, share]),
        (AllReduce, OneShot) => alike(1.0, [p, p, p]),
        (AllReduce, _) => return folded(algorithm, world_size),
        (Broadcast | Reduce, Flat) => apart(1.0, [p, p, reduces * p], [p, p, reduces * p]),
        (Broadcast | Reduce, Ring) => apart(p, [p, p, reduces * p], [p, p, reduces * p]),
        (Broadcast | Reduce, Tree) => apart(
            depth,
            [levels, levels, reduces * levels],
            [p, p, reduces * p],
        ),
        (Broadcast, Direct) => apart(p.min(2.0), [2.0 * p, 2.0 * share, 0.0], [n * p, p, 0.0]),
        (Reduce, Direct) => apart(
            2.0,
            [2.0 * p, 2.0 * share, share],
            [(n + 1.0) * p, p * (1.0 + 1.0 / n), p],
        ),
        (AllGather | ReduceScatter, RecursiveDoubling) => {
            alike(depth, [depth, share, reduces * share])
        }
        (AllGather | ReduceScatter, Ring) => alike(p, [p, share, reduces * share]),
        (AllGather | ReduceScatter | AllToAll, _) => alike(1.0, [p, share, reduces * share]),
        (Gather | Scatter, _) => apart(1.0, [p, share, 0.0], [p, share, 0.0]),
        (Barrier, RecursiveDoubling) => alike(levels, [levels, 0.0, 0.0]),
        (Barrier, _) => alike(1.0, [p, 0.0, 0.0]),
        (Send | Recv | SendRecv, _) => alike(1.0, [1.0, 1.0, 0.0]),
        (Broadcast | Reduce, _) => return None,
    })
}

/// Returns the terms of all-reduces that fold the ranks beyond a core into it, in a round before it
/// and one after it.
fn folded(algorithm: Method, world_size: u32) -> Option<CostTerms> {
    let n = f64::from(world_size);
    let depth = f64::from(world_size.ilog2());
    // The core has 2^depth ranks.
    let core = depth.exp2();
    let fold = f64::from(u8::from(n > core));
    let others = n - core;
    Some(match algorithm {
        Method::RecursiveDoubling => {
            // Both places of an opposite pair in the core have a folded rank only if more than half
            // of the core has one.
            let both = f64::from(u8::from(n > 1.5 * core));
            let (rounds, pairs) = (depth + 2.0 * fold, core * depth);
            CostTerms::apart(
                depth + fold + both,
                [rounds, rounds, depth + fold],
                [pairs + 2.0 * others, pairs + 2.0 * others, pairs + others],
            )
        }
        Method::Rabenseifner => {
            let rounds = 2.0 * (depth + fold);
            let reduced = (core - 1.0) / core + fold;
            let all = core - 1.0 + others;
            let messages = 2.0 * (core * depth + others);
            CostTerms::apart(
                rounds,
                [rounds, 2.0 * reduced, reduced],
                [messages, 2.0 * all, all],
            )
        }
        Method::Stragglar => stragglar_terms(world_size),
        _ => return None,
    })
}

fn stragglar_terms(world_size: u32) -> CostTerms {
    let n = f64::from(world_size);
    let p = n - 1.0;
    if world_size == 2 {
        return CostTerms::alike(1.0, [1.0; 3], n);
    }
    let after = f64::from(stragglar::rounds_after_arrival(world_size));
    let (hops, rounds, reduced) = if world_size.is_power_of_two() {
        let rounds = p - 1.0 + after;
        (1.5 * n - 3.0 + n.log2(), rounds, 2.0)
    } else {
        // The sums go to the hubs, and then each round waits for the one before: the longest chain
        // has no closed form. Before that, each of the others reduces its part of their
        // reduce-scatter.
        (p + after, p + after, 1.0 + (p - 1.0) / p)
    };
    CostTerms::alike(hops, [rounds, rounds / p, reduced], n)
}

/// Returns the terms of calls whose data devices move through slots: each rank reduces its share,
/// in place, and sees the words of all others before and after.
fn by_slots(collective: Collective, world_size: u32) -> CostTerms {
    let n = f64::from(world_size);
    let share = (n - 1.0) / n;
    let (hops, reduced) = match collective.reduces() {
        true => (2.0, share),
        false => (1.0, 0.0),
    };
    CostTerms {
        // The devices have just written it.
        fresh: reduced,
        ..CostTerms::alike(hops, [hops, 0.0, reduced], n)
    }
}

/// Returns the terms over shared memory, with one publication per hop.
fn over_shared_memory(
    collective: Collective,
    algorithm: Method,
    world_size: u32,
) -> Option<CostTerms> {
    use Collective::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    use Method::{Claim, Flat, OneShot, Push, Serve};
    let n = f64::from(world_size);
    let p = n - 1.0;
    let share = p / n;
    let alike = |hops, bytes, reduced| CostTerms::alike(hops, [hops, bytes, reduced], n);
    // The root, or with dynamic assignment the last rank to arrive, does more than the others.
    let apart = |hops, [bytes, reduced]: [f64; 2], [all_bytes, all_reduced]: [f64; 2]| {
        let all = [n * hops, all_bytes, all_reduced];
        CostTerms::apart(hops, [hops, bytes, reduced], all)
    };
    let terms = match (collective, algorithm) {
        (AllReduce, Push) => alike(2.0, share, share),
        (Reduce | ReduceScatter, Push) => alike(2.0, 0.0, share),
        (Gather | Scatter, Push) => alike(2.0, 1.0 / n, 0.0),
        (_, Push) => alike(2.0, 1.0, 0.0),
        (AllReduce, Serve) => apart(2.0, [p, p], [p, p]),
        (Reduce, Serve) => apart(2.0, [0.0, p], [0.0, p]),
        (_, Serve) => apart(2.0, [n, 0.0], [p, 0.0]),
        (AllReduce, Claim) => apart(2.0, [2.0, p], [2.0 * n, p]),
        (AllReduce, OneShot) => alike(1.0, 1.0, p),
        (AllReduce, _) => alike(2.0, 3.0 * share, share),
        // Only the root reduces, only the others publish.
        (Reduce, Flat) => apart(1.0, [1.0, p], [p, p]),
        // Each rank publishes all but its own part, and its sum; the root copies the others' sums.
        (Reduce, _) => apart(2.0, [1.0 + share, share], [p * (1.0 + 2.0 / n), p]),
        (ReduceScatter, _) => alike(1.0, share, share),
        (Broadcast, _) => apart(1.0, [2.0, 0.0], [n, 0.0]),
        (AllToAll, _) => alike(1.0, 2.0 * share, 0.0),
        (AllGather, _) => alike(1.0, 1.0, 0.0),
        (Gather | Scatter, _) => apart(1.0, [1.0, 0.0], [2.0 * share, 0.0]),
        (Barrier, _) => alike(1.0, 0.0, 0.0),
        _ => return None,
    };
    let fresh = match (collective, algorithm) {
        // All data of all others, and a store over the rank's own data, which the peers have read.
        (AllReduce, OneShot) => p + 0.5,
        (Reduce, Flat) => p,
        (AllReduce | Reduce, _) => 2.0 * share,
        (Gather | Scatter, Push) => 1.0 / n,
        (Broadcast, _) => 1.0,
        _ => share,
    };
    Some(CostTerms { fresh, ..terms })
}

#[cfg(test)]
mod tests;
