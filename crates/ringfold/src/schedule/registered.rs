//! Registered buffers: the ranks work in each other's buffers, which all ranks have mapped.
//!
//! With work by the owner (`push`), each rank announces the location of its input and output and
//! waits for the announcements of all others. The rank then reads its share of the work from all
//! inputs and stores the result into all outputs. Every byte is read once and written once, the
//! minimum of an all-reduce: 2·n·S bytes for all ranks together. No rank returns before all have
//! announced that they are done, because until then a peer may work in its memory.
//!
//! Work by any rank that runs (`serve`) is for ranks that outnumber their cores. A rank that sees
//! the buffers of all others claims blocks one after the other, and reads, reduces and stores each.
//! A rank without a core thus finds the work done when it gets a core. No rank returns before all
//! blocks are done.
//!
//! Reductions are in the order of the canonical tree, whichever rank claims a block, so the
//! bits are those of [`direct`](super::direct).

#![forbid(unsafe_code)]

use super::action::{AwaitedPeers, RankRange, Span};
use super::build::{Builder, input, output};
use super::spec::{Schedule, Spec};
use crate::types::Assignment;

/// The phase in which the locations of a rank's buffers are known.
const EXPOSED: u8 = 0;
/// The phase in which a rank has finished its accesses to all others' memory.
const DONE: u8 = 1;

/// Reduces all inputs into all outputs.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let all = RankRange::all(spec.world_size);
    over_vector(spec, all, all)
}

/// Copies the root's input into all outputs.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    over_vector(
        spec,
        RankRange::one(spec.root),
        RankRange::all(spec.world_size),
    )
}

/// Reduces all inputs into the root's output.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    over_vector(
        spec,
        RankRange::all(spec.world_size),
        RankRange::one(spec.root),
    )
}

/// Stores each rank's block to all ranks.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let (own, all) = (RankRange::one(spec.rank), RankRange::all(spec.world_size));
    let mut build = exposed(Builder::blocks(spec, 1, spec.world_size));
    build.combine((own, input(0, 1)), (all, output(spec.rank, 1)));
    done_with_all(build)
}

/// Reduces each rank's own block.
pub(super) fn reduce_scatter(spec: &Spec) -> Schedule {
    let (own, all) = (RankRange::one(spec.rank), RankRange::all(spec.world_size));
    let mut build = exposed(Builder::blocks(spec, spec.world_size, 1));
    build.combine((all, input(spec.rank, 1)), (own, output(0, 1)));
    done_with_all(build)
}

/// Stores each rank's block to the root.
pub(super) fn gather(spec: &Spec) -> Schedule {
    let (own, root) = (RankRange::one(spec.rank), RankRange::one(spec.root));
    let build = exposed(Builder::blocks(spec, 1, spec.world_size));
    with_root(
        spec,
        build,
        (own, input(0, 1)),
        (root, output(spec.rank, 1)),
    )
}

/// Reads each rank's block from the root.
pub(super) fn scatter(spec: &Spec) -> Schedule {
    let (own, root) = (RankRange::one(spec.rank), RankRange::one(spec.root));
    let build = exposed(Builder::blocks(spec, spec.world_size, 1));
    with_root(
        spec,
        build,
        (root, input(spec.rank, 1)),
        (own, output(0, 1)),
    )
}

/// Reads each rank's blocks from all ranks.
pub(super) fn all_to_all(spec: &Spec) -> Schedule {
    let (own, n) = (spec.rank, spec.world_size);
    let mut build = exposed(Builder::blocks(spec, n, n));
    for peer in std::iter::once(own).chain(spec.others()) {
        let source = (RankRange::one(peer), input(own, 1));
        build.combine(source, (RankRange::one(own), output(peer, 1)));
    }
    done_with_all(build)
}

/// Combines all of `sources` into all of `targets`: each owner its chunk, or any rank the whole.
fn over_vector(spec: &Spec, sources: RankRange, targets: RankRange) -> Schedule {
    let (chunks, own) = match spec.assignment {
        Assignment::Owner => (spec.world_size, spec.rank),
        Assignment::Dynamic => (1, 0),
    };
    let mut build = exposed(Builder::vector(spec, chunks));
    build.combine((sources, input(own, 1)), (targets, output(own, 1)));
    if spec.assignment == Assignment::Owner {
        return done_with_all(build);
    }
    build.collect(output(own, 1));
    build.finish(1)
}

/// Starts a schedule: all ranks learn the locations of all buffers.
fn exposed(mut build: Builder) -> Builder {
    build.expose(EXPOSED);
    build.wait_for(AwaitedPeers::Others, EXPOSED);
    build
}

/// Ends a schedule in which all ranks work in the memory of all.
fn done_with_all(mut build: Builder) -> Schedule {
    build.publish(input(0, 0), DONE);
    build.wait_for(AwaitedPeers::Others, DONE);
    build.finish(1)
}

/// Moves a block from or to the root, in whose memory alone the others work.
fn with_root(
    spec: &Spec,
    mut build: Builder,
    source: (RankRange, Span),
    target: (RankRange, Span),
) -> Schedule {
    build.combine(source, target);
    if spec.is_root() {
        build.wait_for(AwaitedPeers::Others, DONE);
    } else {
        build.publish(input(0, 0), DONE);
    }
    build.finish(1)
}
