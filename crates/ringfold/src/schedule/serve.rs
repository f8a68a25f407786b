//! Serve: exposed buffers are processed by any rank that runs.
//!
//! [`push`](super::push) for ranks that outnumber their cores, as [`claim`](super::claim) is
//! `direct` for them. Each rank announces the location of its input and output. A rank that then
//! sees those of all others claims blocks, one after the other: it reads a block from all inputs,
//! reduces it in rank order and stores the result into all outputs. So a rank that has no core
//! finds everything done when it gets one. No rank returns before all blocks are done, because
//! until then a peer may work in its memory. The order of additions does not depend on the claims,
//! so the bits are those of `direct`.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::{Peers, Ranks, Schedule, Spec};

/// The phase in which it is known where the buffers lie.
const EXPOSED: u8 = 0;

/// All inputs reduced into all outputs, by any rank.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    served(spec, Ranks::All, Ranks::All)
}

/// The root's input copied into all outputs, by any rank.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    served(spec, Ranks::One(spec.root), Ranks::All)
}

/// All inputs reduced into the root's output, by any rank.
pub(super) fn reduce(spec: &Spec) -> Schedule {
    served(spec, Ranks::All, Ranks::One(spec.root))
}

fn served(spec: &Spec, sources: Ranks, targets: Ranks) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.expose(EXPOSED);
    build.wait_for(Peers::Others, EXPOSED);
    build.serve(sources, input(0, 1), targets, output(0, 1));
    build.await_served(output(0, 1));
    build.finish(1)
}
