//! Ring: neighbours pass chunks around (Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", 2009).
//!
//! The reduction of chunk `c` starts at rank `c + 1`, goes once around and ends at rank `c`, its owner. The gathering
//! starts there and goes around once more. Every rank sends to the next and receives from the previous one only, and in
//! a round it receives a chunk other than the one that it sends.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::{Schedule, Spec};

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
