//! Serve: what is exposed is worked off by whoever runs.
//!
//! [`push`](super::push) for ranks that outnumber their cores, as [`claim`](super::claim) is `direct` for them. Each rank says
//! where its input and output lie. Whoever then hears the same from all others claims blocks, one after the other: it reads a
//! block from all inputs, combines it in rank order and stores the result into all outputs. So a rank that has no core finds
//! everything done when it gets one. Nobody returns before all blocks are done, because until then somebody may work in its
//! memory. The order of additions does not depend on who claims what, so the bits are those of `direct`.

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::{Peers, Ranks, Schedule, Spec};

/// The phase in which it is known where the buffers lie.
const EXPOSED: u8 = 0;

/// All inputs combined into all outputs, by anybody.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    served(spec, Ranks::All, Ranks::All)
}

/// The root's input copied into all outputs, by anybody.
pub(super) fn broadcast(spec: &Spec) -> Schedule {
    served(spec, Ranks::One(spec.root), Ranks::All)
}

/// All inputs combined into the root's output, by anybody.
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
