//! Which method carries out which collective, and who writes the schedule.

#![forbid(unsafe_code)]

use super::build::{Builder, ByRound, input, output};
use super::spec::{Schedule, Spec};
use super::{
    direct, flat, hierarchical, one_shot, point, rabenseifner, recursive_doubling, registered,
    ring, staged, stragglar, tree,
};
use crate::error::{Error, Result};
use crate::types::{Access, Algorithm, Collective, Method};

use Collective::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Recv, Reduce, ReduceScatter,
    Scatter, Send, SendRecv,
};

/// A method that carries out a collective, and who writes the schedules of two ranks and more.
type Entry = (Collective, Method, fn(&Spec) -> Schedule);

/// Over messages. `recursive_doubling` over blocks needs a power of two ranks besides.
const MESSAGES: &[Entry] = &[
    (AllReduce, Method::Flat, flat::all_reduce),
    (AllReduce, Method::Ring, |spec| ring::ALL_REDUCE.whole(spec)),
    (AllReduce, Method::Tree, tree::all_reduce),
    (
        AllReduce,
        Method::RecursiveDoubling,
        recursive_doubling::all_reduce,
    ),
    (AllReduce, Method::Rabenseifner, rabenseifner::all_reduce),
    (AllReduce, Method::Direct, direct::all_reduce),
    (AllReduce, Method::OneShot, one_shot::all_reduce),
    (AllReduce, Method::Stragglar, stragglar::all_reduce),
    (Broadcast, Method::Flat, flat::broadcast),
    (Broadcast, Method::Ring, ring::broadcast),
    (Broadcast, Method::Tree, tree::broadcast),
    (Broadcast, Method::Direct, direct::broadcast),
    (Reduce, Method::Flat, flat::reduce),
    (Reduce, Method::Ring, ring::reduce),
    (Reduce, Method::Tree, tree::reduce),
    (Reduce, Method::Direct, direct::reduce),
    (AllGather, Method::Ring, |spec| ring::ALL_GATHER.whole(spec)),
    (
        AllGather,
        Method::RecursiveDoubling,
        recursive_doubling::all_gather,
    ),
    (AllGather, Method::Direct, direct::all_gather),
    (ReduceScatter, Method::Ring, |spec| {
        ring::REDUCE_SCATTER.whole(spec)
    }),
    (
        ReduceScatter,
        Method::RecursiveDoubling,
        recursive_doubling::reduce_scatter,
    ),
    (ReduceScatter, Method::Direct, direct::reduce_scatter),
    (Gather, Method::Flat, flat::gather),
    (Gather, Method::Direct, flat::gather),
    (Scatter, Method::Flat, flat::scatter),
    (Scatter, Method::Direct, flat::scatter),
    (AllToAll, Method::Direct, direct::all_to_all),
    (
        Barrier,
        Method::RecursiveDoubling,
        recursive_doubling::barrier,
    ),
    (Barrier, Method::Direct, direct::barrier),
    (Send, Method::Direct, point::send),
    (Recv, Method::Direct, point::recv),
    (SendRecv, Method::Direct, point::sendrecv),
];

/// Over published memory.
const STAGED: &[Entry] = &[
    (AllReduce, Method::Direct, staged::all_reduce),
    (AllReduce, Method::OneShot, staged::all_reduce_at_once),
    (AllReduce, Method::Hierarchical, hierarchical::all_reduce),
    (AllReduce, Method::Claim, staged::all_reduce_by_any),
    (Broadcast, Method::Direct, staged::broadcast),
    (Reduce, Method::Flat, staged::reduce_at_root),
    (Reduce, Method::Direct, staged::reduce),
    (AllGather, Method::Direct, staged::all_gather),
    (ReduceScatter, Method::Direct, staged::reduce_scatter),
    (Gather, Method::Direct, staged::gather),
    (Scatter, Method::Direct, staged::scatter),
    (AllToAll, Method::Direct, staged::all_to_all),
    (Barrier, Method::Direct, staged::barrier),
];

/// In registered buffers.
const REGISTERED: &[Entry] = &[
    (AllReduce, Method::Push, registered::all_reduce),
    (AllReduce, Method::Serve, registered::all_reduce),
    (Broadcast, Method::Push, registered::broadcast),
    (Broadcast, Method::Serve, registered::broadcast),
    (Reduce, Method::Push, registered::reduce),
    (Reduce, Method::Serve, registered::reduce),
    (AllGather, Method::Push, registered::all_gather),
    (ReduceScatter, Method::Push, registered::reduce_scatter),
    (Gather, Method::Push, registered::gather),
    (Scatter, Method::Push, registered::scatter),
    (AllToAll, Method::Push, registered::all_to_all),
];

/// What carries out a collective with this access, in the order of [`Method::ALL`].
fn entries(collective: Collective, access: Access) -> impl Iterator<Item = &'static Entry> {
    let table = match access {
        Access::Messages => MESSAGES,
        Access::Staged => STAGED,
        Access::Registered => REGISTERED,
    };
    table
        .iter()
        .filter(move |(served, ..)| *served == collective)
}

impl Schedule {
    /// The schedule of `spec`'s rank. `Unsupported` when the algorithm does not serve the
    /// collective with this access.
    pub fn new(spec: Spec) -> Result<Schedule> {
        check(&spec)?;
        let mut served = entries(spec.collective, spec.access);
        match served.find(|(_, method, _)| *method == spec.method()) {
            None => Err(unsupported(&spec)),
            Some(_) if spec.world_size == 1 => Ok(alone(&spec)),
            Some((.., generate)) => Ok(generate(&spec)),
        }
    }

    /// What carries out a collective with this access, in the order of [`Method::ALL`].
    pub fn methods(collective: Collective, access: Access) -> impl Iterator<Item = Method> {
        entries(collective, access).map(|(_, method, _)| *method)
    }

    /// Whether a method carries out a collective with this access.
    pub fn exists(collective: Collective, method: Method, access: Access) -> bool {
        Schedule::methods(collective, access).any(|served| served == method)
    }
}

/// How a checked spec's schedules are written round by round, if they can be.
pub(super) fn by_round(spec: &Spec) -> Result<Option<&'static ByRound>> {
    check(spec)?;
    let is_whole = spec.access != Access::Messages || spec.world_size == 1;
    Ok(match (spec.collective, spec.algorithm) {
        _ if is_whole => None,
        (AllReduce, Algorithm::Ring) => Some(&ring::ALL_REDUCE),
        (AllGather, Algorithm::Ring) => Some(&ring::ALL_GATHER),
        (ReduceScatter, Algorithm::Ring) => Some(&ring::REDUCE_SCATTER),
        _ => None,
    })
}

/// Ranks that exist.
fn check(spec: &Spec) -> Result<()> {
    let n = spec.world_size;
    if spec.rank >= n || spec.root >= n {
        return Err(Error::InvalidArgument(format!(
            "rank {} and root {} must be below the world size {n}",
            spec.rank, spec.root
        )));
    }
    if spec.domains == 0 || !n.is_multiple_of(spec.domains) {
        return Err(Error::InvalidArgument(format!(
            "{n} ranks do not sit in {} domains of equal size",
            spec.domains
        )));
    }
    if matches!(spec.collective, Send | Recv) && spec.root == spec.rank {
        return Err(Error::InvalidArgument(format!(
            "rank {} cannot {} to or from itself",
            spec.rank, spec.collective
        )));
    }
    if spec.algorithm == Algorithm::RecursiveDoubling
        && matches!(spec.collective, AllGather | ReduceScatter)
        && !n.is_power_of_two()
    {
        return Err(Error::Unsupported(format!(
            "{} by recursive_doubling needs a power of two ranks, not {n}; use ring, direct",
            spec.collective
        )));
    }
    if spec.algorithm == Algorithm::Stragglar && n > stragglar::WORLD_SIZE_MAX {
        return Err(Error::Unsupported(format!(
            "stragglar serves {} ranks at most, not {n}; use ring, rabenseifner",
            stragglar::WORLD_SIZE_MAX
        )));
    }
    Ok(())
}

/// What one rank does without peers: its result is its input.
fn alone(spec: &Spec) -> Schedule {
    let mut build = match spec.collective {
        AllGather | ReduceScatter | Gather | Scatter | AllToAll => Builder::blocks(spec, 1, 1),
        _ => Builder::vector(spec, 1),
    };
    if spec.collective != Barrier {
        build.copy(input(0, 1), output(0, 1));
    }
    build.finish(1)
}

/// The refusal, with the algorithms that would do.
fn unsupported(spec: &Spec) -> Error {
    let names: Vec<_> = Schedule::methods(spec.collective, spec.access)
        .map(Method::name)
        .collect();
    let advice = if names.is_empty() {
        "nothing does; use another medium".to_owned()
    } else {
        format!("use {}", names.join(", "))
    };
    Error::Unsupported(format!(
        "{} over {} has no algorithm `{}`; {advice}",
        spec.collective,
        spec.access.medium(),
        spec.method()
    ))
}
