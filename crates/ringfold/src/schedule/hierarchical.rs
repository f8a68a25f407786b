//! Hierarchical: ranks reduce within their domain first, so that a cache line crosses to another
//! domain once per domain and not once per rank.
//!
//! A domain is a set of ranks that share a last-level cache or a socket; the `n` ranks are in
//! `spec.domains` domains of equal size, in rank order. The vector has a chunk for each member of a
//! domain. Each member first reduces its chunk over its domain in rank order and publishes the
//! partial sum. The member then reduces the chunk over the domains in domain order, reading from
//! its counterpart in each, and publishes the result for its own domain. Every member thus leads
//! for one chunk, and a rank waits for `m + d` peers instead of `n`. All counterparts compute the
//! same expression: all ranks have the same bits, which are not those of `direct`.
//!
//! With one domain, or one rank in each, the schedule is that of `direct`.
//!
//! Source: the multi-leader hierarchies of Bayatpour et al., *Scalable reduction collectives with
//! data partitioning-based multi-leader design*, 2017.

#![forbid(unsafe_code)]

use super::action::{AwaitedPeers, StridedRanks};
use super::build::{Builder, input, output, scratch};
use super::spec::{Schedule, Spec};
use super::staged;

/// The phase in which all of a rank's inputs are published (the part before its own chunk may be
/// published a phase earlier).
const INPUTS: u8 = 1;
/// The phase in which a member's chunk is reduced over its domain.
const PARTIAL: u8 = 2;
/// The phase in which a member's chunk is reduced over all domains.
const RESULT: u8 = 3;

/// Reduces within the domain, then between domains, and distributes within the domain.
pub(super) fn all_reduce(spec: &Spec) -> Schedule {
    let (domains, size) = (spec.domains, spec.world_size / spec.domains);
    if domains == 1 || size == 1 {
        return staged::all_reduce(spec);
    }
    let own = spec.rank % size;
    let domain = StridedRanks {
        first: spec.rank - own,
        step: 1,
        count: size,
    };
    let counterparts = StridedRanks {
        first: own,
        step: size,
        count: domains,
    };
    let mut build = Builder::vector(spec, size);
    build.apart();
    staged::publish_all_but(&mut build, own, size, INPUTS);
    build.round(1);
    for peer in domain.others(spec.rank) {
        build.wait_for(AwaitedPeers::One(peer), INPUTS);
    }
    build.reduce_among(domain, input(own, 1), scratch(own, 1));
    build.publish(scratch(own, 1), PARTIAL);
    build.round(2);
    for peer in counterparts.others(spec.rank) {
        build.wait_for(AwaitedPeers::One(peer), PARTIAL);
    }
    build.reduce_among(counterparts, scratch(own, 1), output(own, 1));
    build.publish(output(own, 1), RESULT);
    build.round(3);
    for peer in domain.others(spec.rank) {
        let chunk = peer - domain.first;
        build.fetch(peer, RESULT, chunk, output(chunk, 1));
    }
    build.finish(4)
}
