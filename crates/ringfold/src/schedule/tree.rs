//! Tree: a binomial tree towards and from the root (Thakur, Rabenseifner & Gropp, "Optimization of
//! collective communication operations in MPICH", 2005).
//!
//! Ranks are counted from the root. Upwards, in round `k` the ranks whose lowest set bit is `k`
//! send to the rank without that bit. Downwards, the same edges are used in the opposite direction
//! and in reverse order.

#![forbid(unsafe_code)]

use super::action::Span;
use super::build::{Builder, input, output};
use super::spec::{Schedule, Spec};

/// Reduces up to the root, then broadcasts down again.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    up(&mut build, spec, output(0, 1));
    let depth = depth(spec);
    down(&mut build, spec, depth, output(0, 1));
    build.finish(2 * depth)
}

/// Reduces up to the root.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    up(&mut build, spec, spec.result()(0, 1));
    build.finish(depth(spec))
}

/// Broadcasts down from the root.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    if spec.is_root() {
        down(&mut build, spec, 0, input(0, 1));
        build.copy(input(0, 1), output(0, 1));
    } else {
        down(&mut build, spec, 0, output(0, 1));
    }
    build.finish(depth(spec))
}

/// Returns the number of rounds in one direction.
fn depth(spec: &Spec) -> u32 {
    spec.world_size.next_power_of_two().trailing_zeros()
}

/// Folds the subtree into `partial` and sends the result to the parent.
fn up(build: &mut Builder, spec: &Spec, partial: Span) {
    let place = spec.relative();
    let mut with = input(0, 1);
    for bit in 0..depth(spec) {
        build.round(bit);
        if place >> bit & 1 == 1 {
            build.send(spec.absolute(place - (1 << bit)), with);
            return;
        }
        let child = place + (1 << bit);
        if child < spec.world_size {
            build.recv_reduce(spec.absolute(child), with, partial);
            with = partial;
        }
    }
}

/// Receives `whole`, except at the root, and sends it to the children.
fn down(build: &mut Builder, spec: &Spec, first_round: u32, whole: Span) {
    let place = spec.relative();
    let depth = depth(spec);
    let arrival = place.trailing_zeros().min(depth);
    for bit in (0..depth).rev() {
        build.round(first_round + depth - 1 - bit);
        if bit == arrival {
            build.recv(spec.absolute(place - (1 << bit)), whole);
        } else if bit < arrival && place + (1 << bit) < spec.world_size {
            build.send(spec.absolute(place + (1 << bit)), whole);
        }
    }
}
