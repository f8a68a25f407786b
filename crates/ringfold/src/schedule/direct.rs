//! Direct: every rank exchanges data with every other rank, and each owns a chunk.
//!
//! A chunk's owner combines all ranks' copies in the order of the canonical tree, over messages as
//! over published memory ([`staged`](super::staged)) and in registered buffers
//! ([`registered`](super::registered)), so all of them give the same bits. Each rank serves the
//! next rank first, so that no rank is first for all others.

#![forbid(unsafe_code)]

use super::action::Span;
use super::build::{Builder, input, output};
use super::spec::{Schedule, Spec};

/// The round in which sums are returned. The round before stays free, so that the next slice is
/// sent before any rank waits for this one.
const SUMS_ROUND: u32 = 2;

/// Reduces each rank's own chunk, then sends the sums to all other ranks.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let own = output(spec.rank, 1);
    let mut build = Builder::vector(spec, spec.world_size);
    reduce_own(&mut build, spec, own);
    build.round(SUMS_ROUND);
    build.recv_each(spec.others(), |peer| output(peer, 1));
    build.send_each(spec.others(), |_| own);
    build.finish(SUMS_ROUND + 1)
}

/// Scatters chunks from the root; every rank then sends its chunk to all others (van de Geijn's
/// scatter and all-gather).
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let (own, root, n) = (spec.rank, spec.root, spec.world_size);
    let mut build = Builder::vector(spec, n);
    if spec.is_root() {
        build.send_each(spec.others(), |peer| input(peer, 1));
        build.round(1);
        build.send_each(spec.others(), |_| input(own, 1));
        build.copy(input(0, n), output(0, n));
    } else {
        build.recv(root, output(own, 1));
        build.round(1);
        build.recv_each(spec.others(), |peer| output(peer, 1));
        let others = spec.others().filter(|&peer| peer != root);
        build.send_each(others, |_| output(own, 1));
    }
    build.finish(2)
}

/// Reduces each rank's own chunk, then sends the sums to the root.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let reduced = spec.result()(spec.rank, 1);
    let mut build = Builder::vector(spec, spec.world_size);
    reduce_own(&mut build, spec, reduced);
    build.round(1);
    if spec.is_root() {
        build.recv_each(spec.others(), |peer| output(peer, 1));
    } else {
        build.send(spec.root, reduced);
    }
    build.finish(2)
}

/// Sends each rank's block to every other rank, by ascending distance.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let build = Builder::blocks(spec, 1, spec.world_size);
    exchange(build, spec, input(0, 1), |_| input(0, 1))
}

/// Reduces each rank's own block.
pub(super) fn reduce_scatter(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, spec.world_size, 1);
    reduce_own(&mut build, spec, output(0, 1));
    build.finish(1)
}

/// Exchanges blocks between all ranks, by ascending distance.
pub(super) fn all_to_all(spec: &Spec) -> Schedule {
    let build = Builder::blocks(spec, spec.world_size, spec.world_size);
    exchange(build, spec, input(spec.rank, 1), |peer| input(peer, 1))
}

/// Lets no rank leave before all have entered; transfers no data.
pub(super) fn barrier(spec: &Spec) -> Schedule {
    let nothing = input(0, 0);
    let mut build = Builder::vector(spec, 1);
    build.recv_each(spec.others(), |_| nothing);
    build.send_each(spec.others(), |_| nothing);
    build.finish(1)
}

/// Exchanges blocks with every rank, by ascending distance: sends the span that `given` returns,
/// receives the peer's block, and copies `own`.
fn exchange(mut build: Builder, spec: &Spec, own: Span, given: impl Fn(u32) -> Span) -> Schedule {
    for distance in 1..spec.world_size {
        build.round(distance - 1);
        let (next, previous) = (spec.after(distance), spec.before(distance));
        build.recv(previous, output(previous, 1));
        build.send(next, given(next));
        if distance == 1 {
            build.copy(own, output(spec.rank, 1));
        }
    }
    build.finish(spec.world_size - 1)
}

/// Sends every peer its chunk, and reduces this rank's chunk into `into`. One round.
fn reduce_own(build: &mut Builder, spec: &Spec, into: Span) {
    let send = |build: &mut Builder| build.send_each(spec.others(), |peer| input(peer, 1));
    build.fold_among(&spec.peers(), &[input(spec.rank, 1)], send, |_| into);
}
