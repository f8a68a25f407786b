//! Published memory: ranks of one host publish data, which others copy or reduce in place.
//!
//! The schedules are [`direct`](super::direct), [`flat`](super::flat) and
//! [`one_shot`](super::one_shot) with staged access, and `claim`: `direct` with dynamic assignment.
//! Reductions are in the order of the canonical tree, so all of them give the same bits.

#![forbid(unsafe_code)]

use super::action::{AwaitedPeers, RankRange};
use super::build::{Builder, input, output};
use super::spec::{Schedule, Spec};

/// The phase in which data that is published in one piece is available.
const WHOLE: u8 = 0;
/// The phase in which all of a rank's inputs for others are published (the part before its own
/// chunk may be published a phase earlier).
const INPUTS: u8 = 1;
/// The phase in which a rank's own reduced chunk is published.
const REDUCED: u8 = 2;
/// The round in which peers' publications are read if no step follows. The round before stays free,
/// so that the next slice is published before any rank waits for this one.
const READ_ROUND: u32 = 2;
/// The round in which any rank reduces and collects a slice. The rounds before stay free, so that
/// further slices are published before any rank waits for this one: a rank with a core uses it.
const COMBINE_ROUND: u32 = 3;

/// Reduces each rank's own chunk, then copies the sums to all other ranks.
///
/// The owner stores the sum where it has read the parts, so that each line of a slot moves back and
/// forth between two ranks only. Otherwise the last writer of a line, or another reader of it,
/// would have to be invalidated before the next write, which costs more than all other steps.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let own = spec.rank;
    let mut build = Builder::vector(spec, spec.world_size);
    publish_others(&mut build, spec);
    build.round(1);
    build.wait_for(AwaitedPeers::Others, INPUTS);
    build.reduce_from(input(own, 1), output(own, 1));
    build.give_back(output(own, 1), REDUCED);
    build.round(2);
    for peer in spec.others() {
        build.wait_for(AwaitedPeers::One(peer), REDUCED);
        build.take_back(peer, output(peer, 1));
    }
    build.finish(3)
}

/// Reduces all inputs on every rank, from complete publications: one synchronisation.
pub(super) fn all_reduce_at_once(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.publish(input(0, 1), WHOLE);
    build.wait_for(AwaitedPeers::Others, WHOLE);
    build.reduce_from(input(0, 1), output(0, 1));
    build.finish(1)
}

/// `claim`: any rank that runs reduces published inputs.
///
/// For ranks that outnumber their cores. All ranks publish their input. A rank that then finds all
/// inputs published claims blocks, one after the other, and reduces them as a tree in rank 0's
/// published memory; so no rank waits for one without a core. When all blocks are reduced, all
/// ranks copy the result. The order of additions does not depend on the claims.
pub(super) fn all_reduce_by_any(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.publish(input(0, 1), WHOLE);
    build.round(COMBINE_ROUND);
    build.wait_for(AwaitedPeers::Others, WHOLE);
    let sources = (RankRange::all(spec.world_size), input(0, 1));
    build.combine(sources, (RankRange::one(0), input(0, 1)));
    build.collect(output(0, 1));
    build.finish(COMBINE_ROUND + 1)
}

/// Copies the root's data to all ranks.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    if spec.is_root() {
        build.publish(input(0, 1), WHOLE);
        build.copy(input(0, 1), output(0, 1));
    } else {
        build.round(READ_ROUND);
        build.fetch(spec.root, WHOLE, 0, output(0, 1));
    }
    build.finish(READ_ROUND + 1)
}

/// Reduces each rank's own chunk, then copies the sums to the root.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let reduced = spec.result()(spec.rank, 1);
    let mut build = Builder::vector(spec, spec.world_size);
    publish_others(&mut build, spec);
    build.round(1);
    build.wait_for(AwaitedPeers::Others, INPUTS);
    build.reduce_from(input(spec.rank, 1), reduced);
    if spec.is_root() {
        build.round(2);
        for peer in spec.others() {
            build.fetch(peer, REDUCED, peer, output(peer, 1));
        }
    } else {
        build.publish(reduced, REDUCED);
    }
    build.finish(3)
}

/// Reduces the workers' published data at the root.
pub(super) fn reduce_at_root(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    if spec.is_root() {
        build.wait_for(AwaitedPeers::Others, WHOLE);
        build.reduce_from(input(0, 1), output(0, 1));
    } else {
        build.publish(input(0, 1), WHOLE);
    }
    build.finish(1)
}

/// Copies each rank's published block to all other ranks.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, 1, spec.world_size);
    build.publish(input(0, 1), WHOLE);
    build.copy(input(0, 1), output(spec.rank, 1));
    fetch_others(build, spec, WHOLE, 0)
}

/// Reduces each rank's own block.
pub(super) fn reduce_scatter(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, spec.world_size, 1);
    publish_others(&mut build, spec);
    build.round(READ_ROUND);
    build.wait_for(AwaitedPeers::Others, INPUTS);
    build.reduce_from(input(spec.rank, 1), output(0, 1));
    build.finish(READ_ROUND + 1)
}

/// Copies the published blocks to the root.
pub(super) fn gather(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, 1, spec.world_size);
    if spec.is_root() {
        build.copy(input(0, 1), output(spec.rank, 1));
        return fetch_others(build, spec, WHOLE, 0);
    }
    build.publish(input(0, 1), WHOLE);
    build.finish(READ_ROUND + 1)
}

/// Copies each rank's block from the root.
pub(super) fn scatter(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, spec.world_size, 1);
    if spec.is_root() {
        publish_others(&mut build, spec);
        build.copy(input(spec.rank, 1), output(0, 1));
    } else {
        build.round(READ_ROUND);
        build.fetch(spec.root, INPUTS, spec.rank, output(0, 1));
    }
    build.finish(READ_ROUND + 1)
}

/// Copies each rank's blocks from the publications of all other ranks.
pub(super) fn all_to_all(spec: &Spec) -> Schedule {
    let (own, n) = (spec.rank, spec.world_size);
    let mut build = Builder::blocks(spec, n, n);
    publish_others(&mut build, spec);
    build.copy(input(own, 1), output(own, 1));
    fetch_others(build, spec, INPUTS, own)
}

/// Lets no rank leave before all have entered; transfers no data.
pub(super) fn barrier(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.publish(input(0, 0), WHOLE);
    build.wait_for(AwaitedPeers::Others, WHOLE);
    build.finish(1)
}

/// Ends a schedule that collects block `block` of each peer, as published in `phase`.
fn fetch_others(mut build: Builder, spec: &Spec, phase: u8, block: u32) -> Schedule {
    build.round(READ_ROUND);
    for peer in spec.others() {
        build.fetch(peer, phase, block, output(peer, 1));
    }
    build.finish(READ_ROUND + 1)
}

/// Publishes all inputs except this rank's own chunk, which no other rank reads: the part before it
/// one phase earlier if chunks follow.
fn publish_others(build: &mut Builder, spec: &Spec) {
    let (own, last) = (spec.rank, spec.world_size - 1);
    if own > 0 {
        let phase = if own < last { INPUTS - 1 } else { INPUTS };
        build.publish(input(0, own), phase);
    }
    if own < last {
        build.publish(input(own + 1, last - own), INPUTS);
    }
}
