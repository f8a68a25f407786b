//! Ring: neighbours pass chunks around (Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms
//! for clusters of workstations", 2009).
//!
//! The reduction of chunk `c` starts at rank `c + 1`, goes once around and ends at rank `c`, its
//! owner. The gathering starts at the owner and goes around once more. Every rank sends only to the
//! next and receives only from the previous rank, and in a round the received chunk differs from
//! the sent one. Long schedules are generated round by round, to simulate worlds whose steps are
//! too many to store.

#![forbid(unsafe_code)]

use super::build::{Builder, ByRound, input, output, scratch};
use super::spec::{BufferCut, Schedule, Spec};

/// Reduce-scatter in rounds `0..n-1`, all-gather in rounds `n-1..2n-2`.
pub(super) const ALL_REDUCE: ByRound = ByRound {
    cuts: |n| (BufferCut::Vector(n), BufferCut::Vector(n)),
    rounds: |n| 2 * (n - 1),
    write: |build, spec, round| {
        let gathered = round.checked_sub(spec.world_size - 1);
        match gathered {
            None => {
                let (sent, received) = (spec.before(round + 1), spec.before(round + 2));
                let known = if round == 0 { input } else { output };
                build.recv_reduce(spec.before(1), input(received, 1), output(received, 1));
                build.send(spec.after(1), known(sent, 1));
            }
            Some(round) => {
                build.recv(spec.before(1), output(spec.before(round + 1), 1));
                build.send(spec.after(1), output(spec.before(round), 1));
            }
        }
    },
};

/// Sends along a pipelined chain from the root, one round per hop; the engine's slices fill it.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let place = spec.relative();
    let mut build = Builder::vector(spec, 1);
    if place > 0 {
        build.round(place - 1);
        build.recv(spec.before(1), output(0, 1));
    }
    if place < spec.world_size - 1 {
        build.round(place);
        let known = if place == 0 { input } else { output };
        build.send(spec.after(1), known(0, 1));
    }
    if place == 0 {
        build.copy(input(0, 1), output(0, 1));
    }
    build.finish(spec.world_size - 1)
}

/// Reduces along a pipelined chain towards the root, from the rank after it once around.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let n = spec.world_size;
    // The hop on which this rank sends; the root, the last rank, has none.
    let place = (spec.relative() + n - 1) % n;
    let partial = spec.result()(0, 1);
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

/// Passes each block once around, in `n-1` rounds.
pub(super) const ALL_GATHER: ByRound = ByRound {
    cuts: |n| (BufferCut::Blocks(1), BufferCut::Blocks(n)),
    rounds: |n| n - 1,
    write: |build, spec, round| {
        build.recv(spec.before(1), output(spec.before(round + 1), 1));
        if round == 0 {
            build.send(spec.after(1), input(0, 1));
            build.copy(input(0, 1), output(spec.rank, 1));
        } else {
            build.send(spec.after(1), output(spec.before(round), 1));
        }
    },
};

/// The first half of [`ALL_REDUCE`], over blocks.
pub(super) const REDUCE_SCATTER: ByRound = ByRound {
    cuts: |n| (BufferCut::Blocks(n), BufferCut::Blocks(1)),
    rounds: |n| n - 1,
    write: |build, spec, round| {
        let (sent, received) = (spec.before(round + 1), spec.before(round + 2));
        let into = if round == spec.world_size - 2 {
            output(0, 1)
        } else {
            scratch(received, 1)
        };
        build.recv_reduce(spec.before(1), input(received, 1), into);
        let known = if round == 0 { input } else { scratch };
        build.send(spec.after(1), known(sent, 1));
    },
};
