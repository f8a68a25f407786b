//! Direct: everybody talks to everybody, each rank serves its own chunk.
//!
//! Reductions are made by the chunk's owner in rank order, over messages as over published memory, so that both media
//! give the same bits. Peers are served starting with the next rank, so that nobody is everybody's first.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output, scratch};
use super::{Medium, Peers, Schedule, Span, Spec};

/// The phase in which all of a rank's inputs are published (the part before its own chunk may come a phase earlier).
const INPUTS: u8 = 1;
/// The phase in which a rank's own reduced chunk is published.
const REDUCED: u8 = 2;

/// Each rank reduces its own chunk, then all ranks collect the chunks of the others.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let own = spec.rank;
    let mut build = Builder::vector(spec, spec.world_size);
    match spec.medium {
        Medium::Messages => {
            reduce_own(&mut build, spec, output(own, 1));
            build.round(1);
            for peer in spec.others() {
                build.recv(peer, output(peer, 1));
            }
            for peer in spec.others() {
                build.send(peer, output(own, 1));
            }
            build.finish(2)
        }
        Medium::Shared => {
            publish_others(&mut build, spec);
            build.round(1);
            build.wait_for(Peers::Others, INPUTS);
            build.reduce_from(input(own, 1), output(own, 1));
            build.publish(output(own, 1), REDUCED);
            build.round(2);
            for peer in spec.others() {
                build.wait_for(Peers::One(peer), REDUCED);
                build.copy_from(peer, peer, output(peer, 1));
            }
            build.finish(3)
        }
    }
}

/// Nobody leaves before everybody has entered; no data.
pub(super) fn barrier(spec: &Spec) -> Schedule {
    let nothing = input(0, 0);
    let mut build = Builder::vector(spec, 1);
    match spec.medium {
        Medium::Messages => {
            for peer in spec.others() {
                build.recv(peer, nothing);
            }
            for peer in spec.others() {
                build.send(peer, nothing);
            }
        }
        Medium::Shared => {
            build.publish(nothing, 0);
            build.wait_for(Peers::Others, 0);
        }
    }
    build.finish(1)
}

/// Sends every peer its chunk and folds the own chunk in rank order into `into`. One round.
///
/// The receives share one chunk of scratch, so each waits for the one before; the sends are issued before the first
/// wait, or nobody would ever receive.
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

/// Publishes all inputs but the own chunk, which nobody else reads.
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
