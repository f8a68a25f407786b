//! Ring: neighbours pass chunks around (Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", 2009).
//!
//! The reduction of chunk `c` starts at rank `c + 1`, goes once around and ends at rank `c`, its owner. The gathering
//! starts there and goes around once more. Every rank sends to the next and receives from the previous one only, and in
//! a round it receives a chunk other than the one that it sends.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output, scratch};
use super::{Cut, Schedule, Spec};

/// Reduce-scatter in rounds `0..n-1`, all-gather in rounds `n-1..2n-2`.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let n = spec.world_size;
    let (next, previous) = (spec.after(1), spec.before(1));
    let mut build = Builder::vector(spec, n);
    for round in 0..n - 1 {
        build.round(round);
        let (sent, received) = (spec.before(round + 1), spec.before(round + 2));
        build.recv_reduce(previous, input(received, 1), output(received, 1));
        build.send(
            next,
            if round == 0 {
                input(sent, 1)
            } else {
                output(sent, 1)
            },
        );
    }
    for round in 0..n - 1 {
        build.round(n - 1 + round);
        build.recv(previous, output(spec.before(round + 1), 1));
        build.send(next, output(spec.before(round), 1));
    }
    build.finish(2 * (n - 1))
}

/// A pipelined chain from the root, one round a hop; the engine's slices fill it.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let place = spec.relative();
    let mut build = Builder::vector(spec, 1);
    if place > 0 {
        build.round(place - 1);
        build.recv(spec.before(1), output(0, 1));
    }
    if place < spec.world_size - 1 {
        build.round(place);
        let whole = if place == 0 {
            input(0, 1)
        } else {
            output(0, 1)
        };
        build.send(spec.after(1), whole);
    }
    if place == 0 {
        build.copy(input(0, 1), output(0, 1));
    }
    build.finish(spec.world_size - 1)
}

/// A pipelined chain towards the root, from the rank after it once around.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let n = spec.world_size;
    // The hop on which this rank sends; the root, which comes last, has none.
    let place = (spec.relative() + n - 1) % n;
    let partial = if spec.rank == spec.root {
        output(0, 1)
    } else {
        scratch(0, 1)
    };
    let mut build = Builder::vector(spec, 1);
    if place > 0 {
        build.round(place - 1);
        build.recv_reduce(spec.before(1), input(0, 1), partial);
    }
    if place < n - 1 {
        build.round(place);
        let known = if place == 0 { input(0, 1) } else { partial };
        build.send(spec.after(1), known);
    }
    build.finish(n - 1)
}

/// Each block goes once around.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let n = spec.world_size;
    let mut build = Builder::new(spec, Cut::Blocks(1), Cut::Blocks(n));
    for round in 0..n - 1 {
        build.round(round);
        build.recv(spec.before(1), output(spec.before(round + 1), 1));
        if round == 0 {
            build.send(spec.after(1), input(0, 1));
            build.copy(input(0, 1), output(spec.rank, 1));
        } else {
            build.send(spec.after(1), output(spec.before(round), 1));
        }
    }
    build.finish(n - 1)
}

/// The first half of [`all_reduce`], over blocks.
pub(super) fn reduce_scatter(spec: &Spec) -> Schedule {
    let n = spec.world_size;
    let mut build = Builder::new(spec, Cut::Blocks(n), Cut::Blocks(1));
    for round in 0..n - 1 {
        build.round(round);
        let (sent, received) = (spec.before(round + 1), spec.before(round + 2));
        let into = if round == n - 2 {
            output(0, 1)
        } else {
            scratch(received, 1)
        };
        build.recv_reduce(spec.before(1), input(received, 1), into);
        let known = if round == 0 {
            input(sent, 1)
        } else {
            scratch(sent, 1)
        };
        build.send(spec.after(1), known);
    }
    build.finish(n - 1)
}
