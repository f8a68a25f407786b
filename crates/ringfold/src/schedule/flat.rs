//! Flat: master and workers, with all data through the root in one message for each worker and
//! direction.
//!
//! The root combines the workers' data and its own in the order of the canonical tree. Workers do
//! not wait for each other.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::spec::{Schedule, Spec};

/// Reduces to the root, then broadcasts from the root.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    reduce_to_root(&mut build, spec);
    build.round(1);
    if spec.is_root() {
        build.send_each(spec.others(), |_| output(0, 1));
    } else {
        build.recv(spec.root, output(0, 1));
    }
    build.finish(2)
}

/// Sends the workers' data to the root, which combines it.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    reduce_to_root(&mut build, spec);
    build.finish(1)
}

/// Sends the root's data to every worker.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    if spec.is_root() {
        build.send_each(spec.others(), |_| input(0, 1));
        build.copy(input(0, 1), output(0, 1));
    } else {
        build.recv(spec.root, output(0, 1));
    }
    build.finish(1)
}

/// Sends every worker's block to the root.
pub(super) fn gather(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, 1, spec.world_size);
    if spec.is_root() {
        build.recv_each(spec.others(), |peer| output(peer, 1));
        build.copy(input(0, 1), output(spec.rank, 1));
    } else {
        build.send(spec.root, input(0, 1));
    }
    build.finish(1)
}

/// Sends every worker its block from the root.
pub(super) fn scatter(spec: &Spec) -> Schedule {
    let mut build = Builder::blocks(spec, spec.world_size, 1);
    if spec.is_root() {
        build.send_each(spec.others(), |peer| input(peer, 1));
        build.copy(input(spec.rank, 1), output(0, 1));
    } else {
        build.recv(spec.root, output(0, 1));
    }
    build.finish(1)
}

fn reduce_to_root(build: &mut Builder, spec: &Spec) {
    match spec.is_root() {
        true => build.fold_among(&spec.peers(), &[input(0, 1)], |_| {}, |_| output(0, 1)),
        false => build.send(spec.root, input(0, 1)),
    }
}
