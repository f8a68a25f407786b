//! Push: the ranks work in each other's buffers, which all of them have mapped.
//!
//! Each rank announces the location of its input and output, sees those of all others, and then
//! reads its share of the work from all inputs and stores the result into all outputs. Every byte
//! is read once and written once, the minimum of an all-reduce: 2·n·S bytes for all ranks together.
//! No rank returns before all have announced that they are done, because until then a peer may work
//! in its memory.
//!
//! Reductions are in rank order, so the bits are those of [`direct`](super::direct).

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::{Cut, Peers, Ranks, Schedule, Spec};

/// The phase in which it is known where the buffers lie.
const EXPOSED: u8 = 0;
/// The phase in which a rank is done with the memory of all others.
const DONE: u8 = 1;

/// Each rank reduces its chunk for all.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let (own, cut) = (spec.rank, Cut::Vector(spec.world_size));
    let mut build = exposed(spec, cut, cut);
    build.push_from(Ranks::All, input(own, 1), Ranks::All, output(own, 1));
    done_with_all(build)
}

/// Each rank copies its chunk of the root's buffer to all.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let (own, cut) = (spec.rank, Cut::Vector(spec.world_size));
    let mut build = exposed(spec, cut, cut);
    let root = Ranks::One(spec.root);
    build.push_from(root, input(own, 1), Ranks::All, output(own, 1));
    done_with_all(build)
}

/// Each rank reduces its chunk for the root.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let (own, cut) = (spec.rank, Cut::Vector(spec.world_size));
    let mut build = exposed(spec, cut, cut);
    let root = Ranks::One(spec.root);
    build.push_from(Ranks::All, input(own, 1), root, output(own, 1));
    done_with_all(build)
}

/// Each rank gives its block to all.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let own = spec.rank;
    let mut build = exposed(spec, Cut::Blocks(1), Cut::Blocks(spec.world_size));
    build.push_from(Ranks::One(own), input(0, 1), Ranks::All, output(own, 1));
    done_with_all(build)
}

/// Each rank reduces its own block.
pub(super) fn reduce_scatter(spec: &Spec) -> Schedule {
    let own = spec.rank;
    let mut build = exposed(spec, Cut::Blocks(spec.world_size), Cut::Blocks(1));
    build.push_from(Ranks::All, input(own, 1), Ranks::One(own), output(0, 1));
    done_with_all(build)
}

/// Each rank gives its block to the root.
pub(super) fn gather(spec: &Spec) -> Schedule {
    let mut build = exposed(spec, Cut::Blocks(1), Cut::Blocks(spec.world_size));
    let (own, root) = (Ranks::One(spec.rank), Ranks::One(spec.root));
    build.push_from(own, input(0, 1), root, output(spec.rank, 1));
    done_with_root(spec, build)
}

/// Each rank takes its block from the root.
pub(super) fn scatter(spec: &Spec) -> Schedule {
    let mut build = exposed(spec, Cut::Blocks(spec.world_size), Cut::Blocks(1));
    let (own, root) = (Ranks::One(spec.rank), Ranks::One(spec.root));
    build.push_from(root, input(spec.rank, 1), own, output(0, 1));
    done_with_root(spec, build)
}

/// Each rank takes its blocks from all.
pub(super) fn all_to_all(spec: &Spec) -> Schedule {
    let (own, cut) = (spec.rank, Cut::Blocks(spec.world_size));
    let mut build = exposed(spec, cut, cut);
    for peer in std::iter::once(own).chain(spec.others()) {
        let source = Ranks::One(peer);
        build.push_from(source, input(own, 1), Ranks::One(own), output(peer, 1));
    }
    done_with_all(build)
}

/// The beginning of all: everybody knows where everybody's buffers lie.
fn exposed(spec: &Spec, input: Cut, output: Cut) -> Builder {
    let mut build = Builder::new(spec, input, output);
    build.expose(EXPOSED);
    build.wait_for(Peers::Others, EXPOSED);
    build
}

/// The end where everybody works in everybody's memory.
fn done_with_all(mut build: Builder) -> Schedule {
    build.publish(input(0, 0), DONE);
    build.wait_for(Peers::Others, DONE);
    build.finish(1)
}

/// The end where everybody works in the root's memory only.
fn done_with_root(spec: &Spec, mut build: Builder) -> Schedule {
    if spec.rank == spec.root {
        build.wait_for(Peers::Others, DONE);
    } else {
        build.publish(input(0, 0), DONE);
    }
    build.finish(1)
}
