//! Claim: published inputs are reduced by any rank that runs.
//!
//! For ranks that outnumber their cores. All ranks publish their input. A rank that then finds all
//! of them published claims blocks, one after the other, and reduces them in rank order in the
//! place where rank 0 published; so no rank waits for one that has no core. When all blocks are
//! reduced, all ranks copy the result. The order of additions does not depend on the claims, so the
//! bits are those of [`direct`](super::direct).

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::{Peers, Schedule, Spec};

/// The phase in which the inputs are published.
const INPUTS: u8 = 0;
/// The round in which a slice is reduced and collected. Those before stay free, so that further
/// slices are published before any rank waits for this one: a rank that has a core uses it.
const COMBINE_ROUND: u32 = 3;

/// All inputs reduced, by any rank.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.publish(input(0, 1), INPUTS);
    build.round(COMBINE_ROUND);
    build.wait_for(Peers::Others, INPUTS);
    build.combine(0, 1);
    build.collect(output(0, 1));
    build.finish(COMBINE_ROUND + 1)
}
