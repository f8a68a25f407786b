//! One shot: every rank sends its input to every rank, and each rank reduces all inputs. One step,
//! `n` times the traffic.
//!
//! All ranks combine in the order of the canonical tree, so all have the same bits, which are those
//! of [`direct`](super::direct).

#![forbid(unsafe_code)]

use super::build::{Builder, input, output, scratch};
use super::spec::{Schedule, Spec};

/// Reduces all inputs on every rank.
///
/// Among two, the result stays in scratch until its end: in place, it would overwrite the input
/// that is still being sent.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let (own, result) = (input(0, 1), output(0, 1));
    let into = match spec.world_size {
        2 => scratch(0, 1),
        _ => result,
    };
    let mut build = Builder::vector(spec, 1);
    let send = |build: &mut Builder| build.send_each(spec.others(), |_| own);
    build.fold_among(&spec.peers(), &[own], send, |_| into);
    if into != result {
        build.copy(into, result);
    }
    build.finish(1)
}
