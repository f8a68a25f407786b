//! Messages between two ranks.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::spec::{Schedule, Spec};

/// Sends the whole input to the peer.
pub(super) fn send(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.send(spec.root, input(0, 1));
    build.finish(1)
}

/// Receives the whole output from the peer.
pub(super) fn recv(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.recv(spec.root, output(0, 1));
    build.finish(1)
}

/// Sends to the next rank and receives from the previous one.
pub(super) fn sendrecv(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.recv(spec.before(1), output(0, 1));
    build.send(spec.after(1), input(0, 1));
    build.finish(1)
}
