//! Published memory: ranks of one host publish what others read, and fetch or reduce it in place.
//!
//! These are [`direct`](super::direct), [`flat`](super::flat) and [`one_shot`](super::one_shot)
//! with staged access, and `claim`: `direct` with dynamic assignment. Reductions are in rank order,
//! so the bits are the same by all of them.

#![forbid(unsafe_code)]

use super::action::{Members, Peers};
use super::build::{Builder, input, output};
use super::spec::{Schedule, Spec};

/// The phase in which what is published as one piece is there.
const WHOLE: u8 = 0;
/// The phase in which all of a rank's inputs for others are published (the part before its own
/// chunk may come a phase earlier).
const INPUTS: u8 = 1;
/// The phase in which a rank's own reduced chunk is published.
const REDUCED: u8 = 2;
/// The round in which peers' publications are read when nothing follows. The round before stays
/// free, so that the next slice is published before any rank waits for this one.
const READ_ROUND: u32 = 2;
/// The round in which a slice is reduced and collected by any rank. Those before stay free, so that
/// further slices are published before any rank waits for this one: a rank that has a core uses it.
const COMBINE_ROUND: u32 = 3;

/// Each rank reduces its own chunk, then all ranks take the chunks of the others.
///
/// The owner stores the sum where it has read the parts, so that each line of a slot moves back and
/// forth between two ranks only. Otherwise the last writer of a line, or another reader of it,
/// would have to be invalidated before the next write, which costs more than all the rest.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let own = spec.rank;
    let mut build = Builder::vector(spec, spec.world_size);
    publish_others(&mut build, spec);
    build.round(1);
    build.wait_for(Peers::Others, INPUTS);
    build.reduce_from(input(own, 1), output(own, 1));
    build.give_back(output(own, 1), REDUCED);
    build.round(2);
    for peer in spec.others() {
        build.wait_for(Peers::One(peer), REDUCED);
        build.take_back(peer, output(peer, 1));
    }
    build.finish(3)
}

/// All ranks publish everything, and each reduces it: one synchronisation.
pub(super) fn all_reduce_at_once(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.publish(input(0, 1), WHOLE);
    build.wait_for(Peers::Others, WHOLE);
    build.reduce_from(input(0, 1), output(0, 1));
    build.finish(1)
}

/// `claim`: published inputs are reduced by any rank that runs.
///
/// For ranks that outnumber their cores. All ranks publish their input. A rank that then finds all
/// of them published claims blocks, one after the other, and reduces them in rank order in the
/// place where rank 0 published; so no rank waits for one that has no core. When all blocks are
/// reduced, all ranks copy the result. The order of additions does not depend on the claims.
pub(super) fn all_reduce_by_any(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.publish(input(0, 1), WHOLE);
    build.round(COMBINE_ROUND);
    build.wait_for(Peers::Others, WHOLE);
    let sources = (Members::all(spec.world_size), input(0, 1));
    build.combine(sources, (Members::one(0), input(0, 1)));
    build.collect(output(0, 1));
    build.finish(COMBINE_ROUND + 1)
}

/// All ranks copy from the root.
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

/// Each rank reduces its own chunk, the root collects them.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let reduced = spec.result()(spec.rank, 1);
    let mut build = Builder::vector(spec, spec.world_size);
    publish_others(&mut build, spec);
    build.round(1);
    build.wait_for(Peers::Others, INPUTS);
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

/// The workers publish, the root reduces everything.
pub(super) fn reduce_at_root(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    if spec.is_root() {
        build.wait_for(Peers::Others, WHOLE);
        build.reduce_from(input(0, 1), output(0, 1));
    } else {
        build.publish(input(0, 1), WHOLE);
    }
    build.finish(1)
}

/// All ranks publish their block and copy the others'.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, 1, spec.world_size);
    build.publish(input(0, 1), WHOLE);
    build.copy(input(0, 1), output(spec.rank, 1));
    fetch_others(build, spec, WHOLE, 0)
}

/// Each rank reduces its own block.
pub(super) fn reduce_scatter(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, spec.world_size, 1);
    publish_others(&mut build, spec);
    build.round(READ_ROUND);
    build.wait_for(Peers::Others, INPUTS);
    build.reduce_from(input(spec.rank, 1), output(0, 1));
    build.finish(READ_ROUND + 1)
}

/// The root copies the blocks.
pub(super) fn gather(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, 1, spec.world_size);
    if spec.is_root() {
        build.copy(input(0, 1), output(spec.rank, 1));
        return fetch_others(build, spec, WHOLE, 0);
    }
    build.publish(input(0, 1), WHOLE);
    build.finish(READ_ROUND + 1)
}

/// Each rank fetches its block from the root.
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

/// All ranks publish and fetch.
pub(super) fn all_to_all(spec: &Spec) -> Schedule {
    let (own, n) = (spec.rank, spec.world_size);
    let mut build = Builder::blocks(spec, n, n);
    publish_others(&mut build, spec);
    build.copy(input(own, 1), output(own, 1));
    fetch_others(build, spec, INPUTS, own)
}

/// No rank leaves before all have entered; no data.
pub(super) fn barrier(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.publish(input(0, 0), WHOLE);
    build.wait_for(Peers::Others, WHOLE);
    build.finish(1)
}

/// The end of what collects block `block` of each peer, as published in `phase`.
fn fetch_others(mut build: Builder, spec: &Spec, phase: u8, block: u32) -> Schedule {
    build.round(READ_ROUND);
    for peer in spec.others() {
        build.fetch(peer, phase, block, output(peer, 1));
    }
    build.finish(READ_ROUND + 1)
}

/// Publishes all inputs except the own chunk, which no other rank reads.
fn publish_others(build: &mut Builder, spec: &Spec) {
    publish_all_but(build, spec.rank, spec.world_size, INPUTS);
}

/// Publishes chunks `0..chunks` of the input except `own`; all of it is in phase `phase`, a part
/// maybe one earlier.
pub(super) fn publish_all_but(build: &mut Builder, own: u32, chunks: u32, phase: u8) {
    let last = chunks - 1;
    if own > 0 {
        let phase = if own < last { phase - 1 } else { phase };
        build.publish(input(0, own), phase);
    }
    if own < last {
        build.publish(input(own + 1, last - own), phase);
    }
}
