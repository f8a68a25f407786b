//! Direct: every rank exchanges data with every other, and each owns a chunk.
//!
//! Reductions are made by the chunk's owner in rank order, over messages as over published memory,
//! so that both media give the same bits. Peers are served starting with the next rank, so that no
//! rank is the first of all others.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output, scratch};
use super::{Access, Cut, Peers, Schedule, Span, Spec, flat};

/// The phase in which all of a rank's inputs are published (the part before its own chunk may come
/// a phase earlier).
const INPUTS: u8 = 1;
/// The round in which peers' publications are read when nothing follows, and in which sums come
/// back as messages. The round before stays free, so that the next slice is published, or sent,
/// before any rank waits for this one.
const READ_ROUND: u32 = 2;
/// The phase in which a rank's own reduced chunk is published.
const REDUCED: u8 = 2;

/// Each rank reduces its own chunk, then all ranks collect the chunks of the others.
///
/// Through published memory the owner stores the sum where it has read the parts, so that each line
/// of a slot moves back and forth between two ranks only. Otherwise the last writer of a line, or
/// another reader of it, would have to be invalidated before the next write, which costs more than
/// all the rest.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let own = spec.rank;
    let mut build = Builder::vector(spec, spec.world_size);
    match spec.access {
        Access::Messages => {
            reduce_own(&mut build, spec, output(own, 1));
            build.round(READ_ROUND);
            for peer in spec.others() {
                build.recv(peer, output(peer, 1));
            }
            for peer in spec.others() {
                build.send(peer, output(own, 1));
            }
            build.finish(READ_ROUND + 1)
        }
        _ => {
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
    }
}

/// Messages: the root scatters chunks and every rank passes its chunk on (van de Geijn's scatter
/// and all-gather). Shared: all ranks copy from the root.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let (own, root, n) = (spec.rank, spec.root, spec.world_size);
    if spec.access != Access::Messages {
        let mut build = Builder::vector(spec, 1);
        if own == root {
            build.publish(input(0, 1), 0);
            build.copy(input(0, 1), output(0, 1));
        } else {
            build.round(READ_ROUND);
            build.wait_for(Peers::One(root), 0);
            build.copy_from(root, 0, output(0, 1));
        }
        return build.finish(READ_ROUND + 1);
    }
    let mut build = Builder::vector(spec, n);
    if own == root {
        for peer in spec.others() {
            build.send(peer, input(peer, 1));
        }
        build.round(1);
        for peer in spec.others() {
            build.send(peer, input(own, 1));
        }
        build.copy(input(0, n), output(0, n));
    } else {
        build.recv(root, output(own, 1));
        build.round(1);
        for peer in spec.others() {
            build.recv(peer, output(peer, 1));
        }
        for peer in spec.others().filter(|&peer| peer != root) {
            build.send(peer, output(own, 1));
        }
    }
    build.finish(2)
}

/// Each rank reduces its own chunk, the root collects them.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let (own, root) = (spec.rank, spec.root);
    let reduced = if own == root {
        output(own, 1)
    } else {
        scratch(own, 1)
    };
    let mut build = Builder::vector(spec, spec.world_size);
    match spec.access {
        Access::Messages => {
            reduce_own(&mut build, spec, reduced);
            build.round(1);
            if own == root {
                for peer in spec.others() {
                    build.recv(peer, output(peer, 1));
                }
            } else {
                build.send(root, reduced);
            }
            build.finish(2)
        }
        _ => {
            publish_others(&mut build, spec);
            build.round(1);
            build.wait_for(Peers::Others, INPUTS);
            build.reduce_from(input(own, 1), reduced);
            if own == root {
                build.round(2);
                for peer in spec.others() {
                    build.wait_for(Peers::One(peer), REDUCED);
                    build.copy_from(peer, peer, output(peer, 1));
                }
            } else {
                build.publish(reduced, REDUCED);
            }
            build.finish(3)
        }
    }
}

/// Every rank sends its block to every rank, by ascending distance.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let own = input(0, 1);
    let mut build = Builder::new(spec, Cut::Blocks(1), Cut::Blocks(spec.world_size));
    match spec.access {
        Access::Messages => {
            for distance in 1..spec.world_size {
                build.round(distance - 1);
                let (next, previous) = (spec.after(distance), spec.before(distance));
                build.recv(previous, output(previous, 1));
                build.send(next, own);
                if distance == 1 {
                    build.copy(own, output(spec.rank, 1));
                }
            }
            build.finish(spec.world_size - 1)
        }
        _ => {
            build.publish(own, 0);
            build.copy(own, output(spec.rank, 1));
            build.round(READ_ROUND);
            for peer in spec.others() {
                build.wait_for(Peers::One(peer), 0);
                build.copy_from(peer, 0, output(peer, 1));
            }
            build.finish(READ_ROUND + 1)
        }
    }
}

/// Each rank reduces its own block.
pub(super) fn reduce_scatter(spec: &Spec) -> Schedule {
    let n = spec.world_size;
    let mut build = Builder::new(spec, Cut::Blocks(n), Cut::Blocks(1));
    match spec.access {
        Access::Messages => {
            reduce_own(&mut build, spec, output(0, 1));
            build.finish(1)
        }
        _ => {
            publish_others(&mut build, spec);
            build.round(READ_ROUND);
            build.wait_for(Peers::Others, INPUTS);
            build.reduce_from(input(spec.rank, 1), output(0, 1));
            build.finish(READ_ROUND + 1)
        }
    }
}

/// The root collects the blocks.
pub(super) fn gather(spec: &Spec) -> Schedule {
    if spec.access == Access::Messages {
        return flat::gather(spec);
    }
    let own = input(0, 1);
    let mut build = Builder::new(spec, Cut::Blocks(1), Cut::Blocks(spec.world_size));
    if spec.rank == spec.root {
        build.copy(own, output(spec.rank, 1));
        build.round(READ_ROUND);
        for peer in spec.others() {
            build.wait_for(Peers::One(peer), 0);
            build.copy_from(peer, 0, output(peer, 1));
        }
    } else {
        build.publish(own, 0);
    }
    build.finish(READ_ROUND + 1)
}

/// Each rank fetches its block from the root.
pub(super) fn scatter(spec: &Spec) -> Schedule {
    if spec.access == Access::Messages {
        return flat::scatter(spec);
    }
    let mut build = Builder::new(spec, Cut::Blocks(spec.world_size), Cut::Blocks(1));
    if spec.rank == spec.root {
        publish_others(&mut build, spec);
        build.copy(input(spec.rank, 1), output(0, 1));
    } else {
        build.round(READ_ROUND);
        build.wait_for(Peers::One(spec.root), INPUTS);
        build.copy_from(spec.root, spec.rank, output(0, 1));
    }
    build.finish(READ_ROUND + 1)
}

/// Messages: pairs by ascending distance. Shared: all ranks publish and fetch.
pub(super) fn all_to_all(spec: &Spec) -> Schedule {
    let (own, n) = (spec.rank, spec.world_size);
    let mut build = Builder::new(spec, Cut::Blocks(n), Cut::Blocks(n));
    match spec.access {
        Access::Messages => {
            for distance in 1..n {
                build.round(distance - 1);
                let (next, previous) = (spec.after(distance), spec.before(distance));
                build.recv(previous, output(previous, 1));
                build.send(next, input(next, 1));
                if distance == 1 {
                    build.copy(input(own, 1), output(own, 1));
                }
            }
            build.finish(n - 1)
        }
        _ => {
            publish_others(&mut build, spec);
            build.copy(input(own, 1), output(own, 1));
            build.round(READ_ROUND);
            for peer in spec.others() {
                build.wait_for(Peers::One(peer), INPUTS);
                build.copy_from(peer, own, output(peer, 1));
            }
            build.finish(READ_ROUND + 1)
        }
    }
}

/// No rank leaves before all have entered; no data.
pub(super) fn barrier(spec: &Spec) -> Schedule {
    let nothing = input(0, 0);
    let mut build = Builder::vector(spec, 1);
    match spec.access {
        Access::Messages => {
            for peer in spec.others() {
                build.recv(peer, nothing);
            }
            for peer in spec.others() {
                build.send(peer, nothing);
            }
        }
        _ => {
            build.publish(nothing, 0);
            build.wait_for(Peers::Others, 0);
        }
    }
    build.finish(1)
}

/// Sends every peer its chunk and reduces the own chunk in rank order into `into`. One round.
///
/// The receives share one chunk of scratch, so each waits for the one before; the sends are issued
/// before the first wait, otherwise no rank would ever receive.
fn reduce_own(build: &mut Builder, spec: &Spec, into: Span) {
    let own = spec.rank;
    let partial = scratch(own, 1);
    if own == 0 {
        build.recv_reduce(1, input(0, 1), into);
    } else {
        build.recv(0, partial);
    }
    for peer in spec.others() {
        build.send(peer, input(peer, 1));
    }
    for peer in 1..own {
        build.recv_reduce(peer, partial, partial);
    }
    if own > 0 {
        build.reduce(partial, input(own, 1), into);
    }
    for peer in (own + 1).max(2)..spec.world_size {
        build.recv_reduce(peer, into, into);
    }
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
