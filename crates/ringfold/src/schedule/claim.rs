//! Claim: what is published is combined by whoever runs.
//!
//! For ranks that outnumber their cores. Everybody publishes its input. Whoever then finds all of
//! them there claims blocks, one after the other, and combines them in rank order in the place
//! where rank 0 published; so nobody waits for a rank that has no core. When all blocks are
//! combined, everybody copies the result. The order of additions does not depend on who claims
//! what, so the bits are those of [`direct`](super::direct).

#![forbid(unsafe_code)]

use super::build::{Builder, input, output};
use super::{Peers, Schedule, Spec};

/// The phase in which the inputs are published.
const INPUTS: u8 = 0;
/// The round in which a slice is combined and collected. Those before stay free, so that further
/// slices are published before anybody waits for this one: a rank that has a core uses it.
const COMBINE_ROUND: u32 = 3;

/// All inputs combined, by anybody.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let mut build = Builder::vector(spec, 1);
    build.publish(input(0, 1), INPUTS);
    build.round(COMBINE_ROUND);
    build.wait_for(Peers::Others, INPUTS);
    build.combine(0, 1);
    build.collect(output(0, 1));
    build.finish(COMBINE_ROUND + 1)
}
