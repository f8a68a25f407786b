//! One shot: every rank sends its input to every rank, and each rank reduces all inputs. One step,
//! `n` times the traffic.
//!
//! All ranks reduce in rank order, so all have the same bits, which are those of
//! [`direct`](super::direct).

#![forbid(unsafe_code)]

use super::build::{Builder, input, output, scratch};
use super::spec::{Schedule, Spec};

/// Reduces all inputs on every rank.
///
/// The fold stays in scratch until its end: in place, the result would overwrite the input that is
/// still being sent.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let (own, partial, rank) = (input(0, 1), scratch(0, 1), spec.rank);
    let mut build = Builder::vector(spec, 1);
    if rank == 0 {
        build.recv_reduce(1, own, partial);
    } else {
        build.recv(0, partial);
    }
    build.send_each(spec.others(), |_| own);
    for peer in 1..spec.world_size {
        if peer == rank {
            build.reduce(partial, own, partial);
        } else if (rank, peer) != (0, 1) {
            build.recv_reduce(peer, partial, partial);
        }
    }
    build.copy(partial, output(0, 1));
    build.finish(1)
}
