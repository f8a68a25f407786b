//! Which method carries out which collective, and who writes the schedule.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::rounds::ByRound;
use super::{Access, Cut, Schedule, Spec};
use super::{
    claim, direct, flat, hierarchical, one_shot, point, push, rabenseifner, recursive_doubling,
    ring, serve, stragglar, tree,
};
use crate::error::{Error, Result};
use crate::types::{Algorithm, Collective, Method};

use Algorithm::{RecursiveDoubling, Ring, Stragglar};
use Collective::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Recv, Reduce, ReduceScatter,
    Scatter, Send, SendRecv,
};

/// What [`generate`] serves. `recursive_doubling` over blocks needs a power of two ranks besides.
pub(super) fn methods(collective: Collective, access: Access) -> &'static [Method] {
    use Method::{
        Claim, Direct, Flat, Hierarchical, OneShot, Push, Rabenseifner, RecursiveDoubling, Ring,
        Serve, Stragglar, Tree,
    };
    match (collective, access) {
        (AllReduce, Access::Messages) => &[
            Flat,
            Ring,
            Tree,
            RecursiveDoubling,
            Rabenseifner,
            Direct,
            OneShot,
            Stragglar,
        ],
        (AllReduce, Access::Staged) => &[Direct, OneShot, Hierarchical, Claim],
        (Reduce, Access::Staged) => &[Flat, Direct],
        (Broadcast | Reduce, Access::Messages) => &[Flat, Ring, Tree, Direct],
        (AllGather | ReduceScatter, Access::Messages) => &[Ring, RecursiveDoubling, Direct],
        (Gather | Scatter, Access::Messages) => &[Flat, Direct],
        (Barrier, Access::Messages) => &[RecursiveDoubling, Direct],
        (AllToAll | Send | Recv | SendRecv, Access::Messages) => &[Direct],
        (Send | Recv | SendRecv, Access::Staged) => &[],
        (_, Access::Staged) => &[Direct],
        (AllReduce | Broadcast | Reduce, Access::Registered) => &[Push, Serve],
        (Send | Recv | SendRecv | Barrier, Access::Registered) => &[],
        (_, Access::Registered) => &[Push],
    }
}

/// The schedule that a checked spec asks for.
pub(super) fn generate(spec: &Spec) -> Result<Schedule> {
    check(spec)?;
    let served = methods(spec.collective, spec.access);
    if !served.contains(&spec.method()) {
        return Err(unsupported(spec, served));
    }
    if spec.world_size == 1 {
        return Ok(alone(spec));
    }
    let generator = generator(spec.collective, spec.method());
    Ok(generator.ok_or_else(|| unsupported(spec, served))?(spec))
}

/// Who writes the schedules of two ranks and more.
fn generator(collective: Collective, method: Method) -> Option<fn(&Spec) -> Schedule> {
    use Method::{
        Claim, Direct, Flat, Hierarchical, OneShot, Push, Rabenseifner, RecursiveDoubling, Ring,
        Serve, Stragglar, Tree,
    };
    Some(match (collective, method) {
        (AllReduce, Flat) => flat::all_reduce,
        (AllReduce, Ring) => |spec| ring::ALL_REDUCE.whole(spec),
        (AllReduce, Tree) => tree::all_reduce,
        (AllReduce, RecursiveDoubling) => recursive_doubling::all_reduce,
        (AllReduce, Rabenseifner) => rabenseifner::all_reduce,
        (AllReduce, Direct) => direct::all_reduce,
        (AllReduce, OneShot) => one_shot::all_reduce,
        (AllReduce, Stragglar) => stragglar::all_reduce,
        (AllReduce, Hierarchical) => hierarchical::all_reduce,
        (AllReduce, Claim) => claim::all_reduce,
        (Broadcast, Flat) => flat::broadcast,
        (Broadcast, Ring) => ring::broadcast,
        (Broadcast, Tree) => tree::broadcast,
        (Broadcast, Direct) => direct::broadcast,
        (Reduce, Flat) => flat::reduce,
        (Reduce, Ring) => ring::reduce,
        (Reduce, Tree) => tree::reduce,
        (Reduce, Direct) => direct::reduce,
        (AllGather, Ring) => |spec| ring::ALL_GATHER.whole(spec),
        (AllGather, RecursiveDoubling) => recursive_doubling::all_gather,
        (AllGather, Direct) => direct::all_gather,
        (ReduceScatter, Ring) => |spec| ring::REDUCE_SCATTER.whole(spec),
        (ReduceScatter, RecursiveDoubling) => recursive_doubling::reduce_scatter,
        (ReduceScatter, Direct) => direct::reduce_scatter,
        (Gather, Flat) => flat::gather,
        (Gather, Direct) => direct::gather,
        (Scatter, Flat) => flat::scatter,
        (Scatter, Direct) => direct::scatter,
        (AllReduce, Serve) => serve::all_reduce,
        (Broadcast, Serve) => serve::broadcast,
        (Reduce, Serve) => serve::reduce,
        (AllReduce, Push) => push::all_reduce,
        (Broadcast, Push) => push::broadcast,
        (Reduce, Push) => push::reduce,
        (AllGather, Push) => push::all_gather,
        (ReduceScatter, Push) => push::reduce_scatter,
        (Gather, Push) => push::gather,
        (Scatter, Push) => push::scatter,
        (AllToAll, Push) => push::all_to_all,
        (AllToAll, Direct) => direct::all_to_all,
        (Barrier, RecursiveDoubling) => recursive_doubling::barrier,
        (Barrier, Direct) => direct::barrier,
        (Send, Direct) => point::send,
        (Recv, Direct) => point::recv,
        (SendRecv, Direct) => point::sendrecv,
        _ => return None,
    })
}

/// How a checked spec's schedules are written round by round, if they can be.
pub(super) fn by_round(spec: &Spec) -> Result<Option<&'static ByRound>> {
    check(spec)?;
    let is_whole = spec.access != Access::Messages || spec.world_size == 1;
    Ok(match (spec.collective, spec.algorithm) {
        _ if is_whole => None,
        (AllReduce, Ring) => Some(&ring::ALL_REDUCE),
        (AllGather, Ring) => Some(&ring::ALL_GATHER),
        (ReduceScatter, Ring) => Some(&ring::REDUCE_SCATTER),
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
    if spec.algorithm == RecursiveDoubling
        && matches!(spec.collective, AllGather | ReduceScatter)
        && !n.is_power_of_two()
    {
        return Err(Error::Unsupported(format!(
            "{} by recursive_doubling needs a power of two ranks, not {n}; use ring, direct",
            spec.collective
        )));
    }
    if spec.algorithm == Stragglar && n > stragglar::WORLD_SIZE_MAX {
        return Err(Error::Unsupported(format!(
            "stragglar serves {} ranks at most, not {n}; use ring, rabenseifner",
            stragglar::WORLD_SIZE_MAX
        )));
    }
    Ok(())
}

/// What one rank does without peers: its result is its input.
fn alone(spec: &Spec) -> Schedule {
    let cut = cut_alone(spec.collective);
    let mut build = Builder::new(spec, cut, cut);
    if spec.collective != Barrier {
        build.copy(input(0, 1), output(0, 1));
    }
    build.finish(1)
}

fn cut_alone(collective: Collective) -> Cut {
    match collective {
        AllGather | ReduceScatter | Gather | Scatter | AllToAll => Cut::Blocks(1),
        _ => Cut::Vector(1),
    }
}

/// The refusal, with the algorithms that would do.
fn unsupported(spec: &Spec, served: &[Method]) -> Error {
    let names: Vec<_> = served.iter().map(|method| method.name()).collect();
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
