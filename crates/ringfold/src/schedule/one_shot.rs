//! One shot: every rank sends its input to every rank, and each reduces by itself. One step, `n`
//! times the traffic.
//!
//! All ranks reduce in rank order, so all have the same bits, and the same as
//! [`direct`](super::direct) gives.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output, scratch};
use super::{Access, Peers, Schedule, Spec};

/// All ranks reduce everything.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    let (own, result, partial) = (input(0, 1), output(0, 1), scratch(0, 1));
    match spec.access {
        Access::Messages => {
            // The fold stays in scratch to its end: in place, the result would overwrite what is
            // still being sent.
            let rank = spec.rank;
            if rank == 0 {
                build.recv_reduce(1, own, partial);
            } else {
                build.recv(0, partial);
            }
            for peer in spec.others() {
                build.send(peer, own);
            }
            for peer in 1..spec.world_size {
                if peer == rank {
                    build.reduce(partial, own, partial);
                } else if (rank, peer) != (0, 1) {
                    build.recv_reduce(peer, partial, partial);
                }
            }
            build.copy(partial, result);
        }
        _ => {
            build.publish(own, 0);
            build.wait_for(Peers::Others, 0);
            build.reduce_from(own, result);
        }
    }
    build.finish(1)
}
