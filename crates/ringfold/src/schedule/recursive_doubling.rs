//! Recursive doubling: pairs at doubling distance exchange their partial results (Thakur,
//! Rabenseifner & Gropp, 2005).
//!
//! Both partners reduce the same two values, so all ranks end with the same bits. The partial
//! result is being sent while its successor arrives, so partial results alternate between the
//! output and scratch.

#![forbid(unsafe_code)]

use super::action::Span;
use super::build::{Builder, input, output, scratch};
use super::halving::{self, Halving};
use super::spec::{Schedule, Spec};

/// Generates the schedule for any number of ranks; ranks beyond a power of two fold.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let depth = Halving::new(spec.world_size).depth();
    halving::all_reduce(spec, 1, depth, |build, halving, place, started| {
        let first = halving.fold_rounds();
        let mut partial = if started { output(0, 1) } else { input(0, 1) };
        for bit in 0..depth {
            build.round(first + bit);
            let peer = halving.rank_at(place ^ (1 << bit));
            if (depth - bit).is_multiple_of(2) {
                build.recv_reduce(peer, partial, scratch(0, 1));
                build.send(peer, partial);
                partial = scratch(0, 1);
            } else if bit == 0 {
                // By alternation this round writes the output, which, in place or after a fold, is
                // being sent.
                build.recv(peer, scratch(0, 1));
                build.send(peer, partial);
                build.reduce(partial, scratch(0, 1), output(0, 1));
                partial = output(0, 1);
            } else {
                build.recv_reduce(peer, partial, output(0, 1));
                build.send(peer, partial);
                partial = output(0, 1);
            }
        }
    })
}

/// Exchanges the blocks of ever larger neighbourhoods among a power of two ranks.
pub(super) fn all_gather(spec: &Spec) -> Schedule {
    let rank = spec.rank;
    let depth = spec.world_size.ilog2();
    let mut build = Builder::blocks(spec, 1, spec.world_size).in_one_slice();
    for bit in 0..depth {
        build.round(bit);
        let peer = rank ^ (1 << bit);
        build.recv(peer, output(peer >> bit << bit, 1 << bit));
        if bit == 0 {
            build.send(peer, input(0, 1));
            build.copy(input(0, 1), output(rank, 1));
        } else {
            build.send(peer, output(rank >> bit << bit, 1 << bit));
        }
    }
    build.finish(depth)
}

/// Reduces by halving among a power of two ranks: each sends the blocks that its peer's side owns.
pub(super) fn reduce_scatter(spec: &Spec) -> Schedule {
    let rank = spec.rank;
    let depth = spec.world_size.ilog2();
    let mut build = Builder::blocks(spec, spec.world_size, 1).in_one_slice();
    let mut partial: fn(u32, u32) -> Span = input;
    for bit in (0..depth).rev() {
        build.round(depth - 1 - bit);
        let peer = rank ^ (1 << bit);
        let (kept, given) = (rank >> bit << bit, peer >> bit << bit);
        let into = if bit == 0 {
            output(0, 1)
        } else {
            scratch(kept, 1 << bit)
        };
        build.recv_reduce(peer, partial(kept, 1 << bit), into);
        build.send(peer, partial(given, 1 << bit));
        partial = scratch;
    }
    build.finish(depth)
}

/// Notifies by dissemination (Hensgen, Finkel & Manber, 1988): in round `k` each rank notifies the
/// one `2^k` after it.
///
/// The chunks hold no elements and only make a round's send wait for the receive of the round
/// before.
pub(super) fn barrier(spec: &Spec) -> Schedule {
    let depth = spec.world_size.next_power_of_two().trailing_zeros();
    let mut build = Builder::vector(spec, depth);
    for bit in 0..depth {
        build.round(bit);
        build.recv(spec.before(1 << bit), scratch(bit, 1));
        let known = if bit == 0 {
            input(0, 1)
        } else {
            scratch(bit - 1, 1)
        };
        build.send(spec.after(1 << bit), known);
    }
    build.finish(depth)
}
