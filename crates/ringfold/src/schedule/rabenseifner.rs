//! Rabenseifner: reduce-scatter by recursive halving, then all-gather by recursive doubling
//! (Rabenseifner, "Optimization of collective reduction operations", 2004).
//!
//! The vector has a chunk for each place in the core. Halving starts with the farthest pairs. Each
//! rank keeps the half that contains its own chunk; the part it sends is disjoint from the part
//! that it receives.

#![forbid(unsafe_code)]

use super::build::{input, output};
use super::halving::{self, Halving};
use super::spec::{Schedule, Spec};

/// Generates the schedule for any number of ranks; ranks beyond a power of two fold.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let Halving { core, .. } = Halving::new(spec.world_size);
    let depth = core.ilog2();
    halving::all_reduce(spec, core, 2 * depth, |build, halving, place, started| {
        let first = halving.fold_rounds();
        let mut partial = if started { output } else { input };
        for bit in (0..depth).rev() {
            build.round(first + depth - 1 - bit);
            let other = place ^ (1 << bit);
            let (kept, given) = (place >> bit << bit, other >> bit << bit);
            let peer = halving.rank_at(other);
            build.recv_reduce(peer, partial(kept, 1 << bit), output(kept, 1 << bit));
            build.send(peer, partial(given, 1 << bit));
            partial = output;
        }
        for bit in 0..depth {
            build.round(first + depth + bit);
            let other = place ^ (1 << bit);
            let peer = halving.rank_at(other);
            build.recv(peer, output(other >> bit << bit, 1 << bit));
            build.send(peer, output(place >> bit << bit, 1 << bit));
        }
    })
}
