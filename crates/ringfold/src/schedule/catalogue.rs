//! The methods of each collective, and the generators of their schedules.

#![forbid(unsafe_code)]

use super::between_hosts::{blocks, leader, vectors};
use super::build::{Builder, ByRound, input, output};
use super::spec::{Schedule, Spec};
use super::{
    direct, flat, one_shot, point, rabenseifner, recursive_doubling, registered, ring, staged,
    stragglar, tree,
};
use crate::error::{Error, Result};
use crate::types::{Access, Algorithm, Collective, Method};

use Collective::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Recv, Reduce, ReduceScatter,
    Scatter, Send, SendRecv,
};
use Method::{
    Claim, Direct, Flat, Hierarchical, Leader, MultiLeader, OneShot, Push, Rabenseifner,
    RecursiveDoubling, Ring, Serve, Stragglar, Tree,
};

/// A collective, a method for it, and the generator of its schedules for two or more ranks.
type CatalogueEntry = (Collective, Method, fn(&Spec) -> Schedule);

/// Methods over messages. `recursive_doubling` over blocks needs a power of two ranks.
const MESSAGES: &[CatalogueEntry] = &[
    (AllReduce, Flat, flat::all_reduce),
    (AllReduce, Ring, |spec| ring::ALL_REDUCE.whole(spec)),
    (AllReduce, Tree, tree::all_reduce),
    (AllReduce, RecursiveDoubling, recursive_doubling::all_reduce),
    (AllReduce, Rabenseifner, rabenseifner::all_reduce),
    (AllReduce, Direct, direct::all_reduce),
    (AllReduce, OneShot, one_shot::all_reduce),
    (AllReduce, Hierarchical, vectors::all_reduce),
    (AllReduce, Stragglar, stragglar::all_reduce),
    (AllReduce, Leader, leader::all_reduce),
    (AllReduce, MultiLeader, vectors::all_reduce_in_pairs),
    (Broadcast, Flat, flat::broadcast),
    (Broadcast, Ring, ring::broadcast),
    (Broadcast, Tree, tree::broadcast),
    (Broadcast, Direct, direct::broadcast),
    (Broadcast, Hierarchical, vectors::broadcast),
    (Broadcast, Leader, leader::broadcast),
    (Reduce, Flat, flat::reduce),
    (Reduce, Ring, ring::reduce),
    (Reduce, Tree, tree::reduce),
    (Reduce, Direct, direct::reduce),
    (Reduce, Hierarchical, vectors::reduce),
    (Reduce, Leader, leader::reduce),
    (AllGather, Ring, |spec| ring::ALL_GATHER.whole(spec)),
    (AllGather, RecursiveDoubling, recursive_doubling::all_gather),
    (AllGather, Direct, direct::all_gather),
    (AllGather, Hierarchical, blocks::all_gather),
    (AllGather, Leader, leader::all_gather),
    (ReduceScatter, Ring, |spec| ring::REDUCE_SCATTER.whole(spec)),
    (
        ReduceScatter,
        RecursiveDoubling,
        recursive_doubling::reduce_scatter,
    ),
    (ReduceScatter, Direct, direct::reduce_scatter),
    (ReduceScatter, Hierarchical, blocks::reduce_scatter),
    (ReduceScatter, Leader, leader::reduce_scatter),
    (Gather, Flat, flat::gather),
    (Gather, Direct, flat::gather),
    (Gather, Leader, leader::gather),
    (Scatter, Flat, flat::scatter),
    (Scatter, Direct, flat::scatter),
    (Scatter, Leader, leader::scatter),
    (AllToAll, Flat, direct::all_to_all),
    (AllToAll, Direct, direct::all_to_all),
    (AllToAll, Hierarchical, blocks::all_to_all),
    (Barrier, RecursiveDoubling, recursive_doubling::barrier),
    (Barrier, Direct, direct::barrier),
    (Barrier, Leader, leader::barrier),
    (Send, Direct, point::send),
    (Recv, Direct, point::recv),
    (SendRecv, Direct, point::sendrecv),
];

/// Methods over published memory.
const STAGED: &[CatalogueEntry] = &[
    (AllReduce, Direct, staged::all_reduce),
    (AllReduce, OneShot, staged::all_reduce_at_once),
    (AllReduce, Claim, staged::all_reduce_by_any),
    (Broadcast, Direct, staged::broadcast),
    (Reduce, Flat, staged::reduce_at_root),
    (Reduce, Direct, staged::reduce),
    (AllGather, Direct, staged::all_gather),
    (ReduceScatter, Direct, staged::reduce_scatter),
    (Gather, Direct, staged::gather),
    (Scatter, Direct, staged::scatter),
    (AllToAll, Direct, staged::all_to_all),
    (Barrier, Direct, staged::barrier),
];

/// Methods in registered buffers.
const REGISTERED: &[CatalogueEntry] = &[
    (AllReduce, Push, registered::all_reduce),
    (AllReduce, Serve, registered::all_reduce),
    (Broadcast, Push, registered::broadcast),
    (Broadcast, Serve, registered::broadcast),
    (Reduce, Push, registered::reduce),
    (Reduce, Serve, registered::reduce),
    (AllGather, Push, registered::all_gather),
    (ReduceScatter, Push, registered::reduce_scatter),
    (Gather, Push, registered::gather),
    (Scatter, Push, registered::scatter),
    (AllToAll, Push, registered::all_to_all),
];

/// Returns the entries of a collective with this access, in the order of [`Method::ALL`].
fn entries(
    collective: Collective,
    access: Access,
) -> impl Iterator<Item = &'static CatalogueEntry> {
    let table = match access {
        Access::Messages => MESSAGES,
        Access::Staged => STAGED,
        Access::Registered => REGISTERED,
        // Devices do all but the sums, which follow no steps.
        Access::Slots => &[],
    };
    table
        .iter()
        .filter(move |(served, ..)| *served == collective)
}

impl Schedule {
    /// Generates the schedule of `spec`'s rank. Fails with `Unsupported` if the algorithm does not
    /// exist for the collective with this access.
    pub fn new(spec: Spec) -> Result<Schedule> {
        check(&spec)?;
        let mut served = entries(spec.collective, spec.access);
        match served.find(|(_, method, _)| *method == spec.method()) {
            None => Err(unsupported(&spec)),
            Some(_) if spec.world_size == 1 => Ok(alone(&spec)),
            Some((.., generate)) => Ok(generate(&spec)),
        }
    }

    /// Returns the methods of a collective with this access, in the order of [`Method::ALL`].
    pub fn methods(collective: Collective, access: Access) -> impl Iterator<Item = Method> {
        entries(collective, access).map(|(_, method, _)| *method)
    }

    /// Whether a method exists for a collective with this access.
    pub fn exists(collective: Collective, method: Method, access: Access) -> bool {
        Schedule::methods(collective, access).any(|served| served == method)
    }
}

/// Returns the round-by-round generator of a spec, if it has one. Checks the spec.
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

/// Checks the ranks, hosts and limits of a spec.
fn check(spec: &Spec) -> Result<()> {
    let n = spec.world_size;
    if spec.rank >= n || spec.root >= n {
        return Err(Error::InvalidArgument(format!(
            "rank {} and root {} must be below the world size {n}",
            spec.rank, spec.root
        )));
    }
    if !spec.hosts.fits(n) {
        return Err(Error::InvalidArgument(format!(
            "the host list is not for {n} ranks"
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
            "stragglar supports at most {} ranks, not {n}; use ring, rabenseifner",
            stragglar::WORLD_SIZE_MAX
        )));
    }
    Ok(())
}

/// Returns the schedule of one rank without peers: its result is its input.
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

/// Returns the error for a method that does not exist, with the methods that do.
fn unsupported(spec: &Spec) -> Error {
    let names: Vec<_> = Schedule::methods(spec.collective, spec.access)
        .map(Method::name)
        .collect();
    let advice = if names.is_empty() {
        "no algorithm exists; use another medium".to_owned()
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
