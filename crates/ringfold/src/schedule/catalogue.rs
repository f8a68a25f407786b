//! Which algorithm carries out which collective over which medium, and who writes the schedule.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::{Cut, Medium, Schedule, Spec, direct, one_shot, ring};
use crate::error::{Error, Result};
use crate::types::{Algorithm, Collective};

use Algorithm::{Direct, OneShot, Ring};

/// The algorithms that [`generate`] serves.
pub(super) fn algorithms(collective: Collective, medium: Medium) -> &'static [Algorithm] {
    match (collective, medium) {
        (Collective::AllReduce, Medium::Messages) => &[Ring, Direct, OneShot],
        (Collective::AllReduce, Medium::Shared) => &[Direct, OneShot],
        (Collective::Barrier, _) => &[Direct],
        _ => &[],
    }
}

/// The schedule that a checked spec asks for.
pub(super) fn generate(spec: &Spec) -> Result<Schedule> {
    check(spec)?;
    let served = algorithms(spec.collective, spec.medium);
    if !served.contains(&spec.algorithm) {
        return Err(unsupported(spec, served));
    }
    if spec.world_size == 1 {
        return Ok(alone(spec));
    }
    Ok(match (spec.collective, spec.algorithm) {
        (Collective::AllReduce, Ring) => ring::all_reduce(spec),
        (Collective::AllReduce, Direct) => direct::all_reduce(spec),
        (Collective::AllReduce, OneShot) => one_shot::all_reduce(spec),
        (Collective::Barrier, Direct) => direct::barrier(spec),
        _ => return Err(unsupported(spec, served)),
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
    if matches!(spec.collective, Collective::Send | Collective::Recv) && spec.root == spec.rank {
        return Err(Error::InvalidArgument(format!(
            "rank {} cannot {} to or from itself",
            spec.rank, spec.collective
        )));
    }
    Ok(())
}

/// What one rank does without peers: its result is its input.
fn alone(spec: &Spec) -> Schedule {
    let cut = cut_alone(spec.collective);
    let mut build = Builder::new(spec, cut, cut);
    if spec.collective != Collective::Barrier {
        build.copy(input(0, 1), output(0, 1));
    }
    build.finish(1)
}

fn cut_alone(collective: Collective) -> Cut {
    match collective {
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::Gather
        | Collective::Scatter
        | Collective::AllToAll => Cut::Blocks(1),
        _ => Cut::Vector(1),
    }
}

/// The refusal, with the algorithms that would do.
fn unsupported(spec: &Spec, served: &[Algorithm]) -> Error {
    let names: Vec<_> = served.iter().map(|algorithm| algorithm.name()).collect();
    let advice = if names.is_empty() {
        "nothing does; use another medium".to_owned()
    } else {
        format!("use {}", names.join(", "))
    };
    Error::Unsupported(format!(
        "{} over {} has no algorithm `{}`; {advice}",
        spec.collective, spec.medium, spec.algorithm
    ))
}
