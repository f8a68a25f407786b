//! Rabenseifner: reduce-scatter by recursive halving, then all-gather by recursive doubling
//! (Rabenseifner, "Optimization of collective reduction operations", 2004).
//!
//! The vector has a chunk for each place in the core. Halving starts with the nearest pairs, so
//! partial results are combined in the order of the canonical tree among a power of two ranks. In
//! round `k` each rank keeps the half that bit `k` of its place selects; the part it sends is
//! disjoint from the part that it receives. At the end, a place has the chunk whose number has the
//! place's bits in reverse order.

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
        // The chunks of a place after the first `bits` rounds.
        let part = |place: u32, bits: u32| {
            let reversed = match bits {
                0 => 0,
                _ => place.reverse_bits() >> (u32::BITS - bits),
            };
            (reversed << (depth - bits), 1 << (depth - bits))
        };
        for bit in 0..depth {
            build.round(first + bit);
            let other = place ^ (1 << bit);
            let (kept, given) = (part(place, bit + 1), part(other, bit + 1));
            let peer = halving.rank_at(other);
            build.recv_reduce(peer, partial(kept.0, kept.1), output(kept.0, kept.1));
            build.send(peer, partial(given.0, given.1));
            partial = output;
        }
        for bit in (0..depth).rev() {
            build.round(first + 2 * depth - 1 - bit);
            let other = place ^ (1 << bit);
            let (known, missing) = (part(place, bit + 1), part(other, bit + 1));
            let peer = halving.rank_at(other);
            build.recv(peer, output(missing.0, missing.1));
            build.send(peer, output(known.0, known.1));
        }
    })
}
