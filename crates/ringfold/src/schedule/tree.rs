//! Tree: a binomial tree towards and from the root (Thakur, Rabenseifner & Gropp, "Optimization of
//! collective communication operations in MPICH", 2005).
//!
//! Upwards, round `k` joins neighbouring blocks of `2^k` ranks, so partial results are combined in
//! the order of the canonical tree, whichever rank is the root. Downwards, ranks are counted from
//! the root: in the last round but `k`, a rank sends to the one `2^k` after it.

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

/// Combines the partial results of ever larger blocks of ranks, in the order of the canonical tree,
/// into `partial`. The result of a block is at the root if the root is in the block, else at the
/// block's first rank.
fn up(build: &mut Builder, spec: &Spec, partial: Span) {
    let holder = |bit: u32, of: u32| match spec.root >> bit == of {
        true => spec.root,
        false => of << bit,
    };
    let mut with = input(0, 1);
    for bit in 0..depth(spec) {
        build.round(bit);
        let own = spec.rank >> bit;
        let sibling = own ^ 1;
        if sibling << bit >= spec.world_size {
            continue;
        }
        let peer = holder(bit, sibling);
        if holder(bit + 1, own / 2) != spec.rank {
            build.send(peer, with);
            return;
        }
        build.recv_reduce(peer, with, partial);
        with = partial;
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
