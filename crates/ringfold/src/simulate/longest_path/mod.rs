//! The longest path: the time of a call by one pass over the rounds of its schedules, for worlds
//! that are too large for engines.
//!
//! Without contention, no decision depends on events during the call: the end of a step follows
//! from the steps before it, so the total time is the longest path through them. The pass follows
//! all ranks round by round. Between rounds, it keeps each rank's clock, the times until which the
//! rank's ports and server are busy, and its incomplete steps. Steps are generated when they are
//! due ([`rounds`](crate::schedule::rounds)), so memory grows with the ranks and not with the
//! steps.
//!
//! The pass yields the same times as [`run`](super::run()), to the picosecond, or none: if the
//! order of two messages at a port or of two reductions is not that of the rounds, [`longest_path`]
//! returns `Unsupported`, and the simulation must be run. A message may wait for a port if the
//! order is clear. The pass moves no data and checks no guarantee: use `run` for that.

mod pending;
mod rank;
mod round;
pub(super) mod source;

use super::scenario::{Disturbance, Scenario};
use super::{Links, Sending, prepare};
use crate::error::Result;
use crate::simulate::model::Ports;
pub use rank::RankOnPath;
use round::Pass;
use source::{StepSource, UnsupportedFeature, unsupported};

/// Result of the pass. All times are picoseconds since the ranks began.
#[derive(Clone, Debug, PartialEq)]
pub struct LongestPath {
    /// The scenario, with the tuner's choices filled in.
    pub scenario: Scenario,
    /// Time at which the last rank's call returned.
    pub finished_ps: u64,
    /// Completion time of the last reduction; `finished_ps` if nothing is reduced.
    pub results_ps: u64,
    /// Result of each rank.
    pub ranks: Vec<RankOnPath>,
}

/// Whether nothing in a scenario rules out a [`longest_path`]. Except in rings, the order of events
/// may still differ from that of the rounds, for example because of slow ranks.
pub fn fits_longest_path(scenario: &Scenario) -> bool {
    obstacle(scenario).is_none()
}

/// Simulates one call by a single pass. Deterministic; blocks for some 50 ns per message.
///
/// # Errors
///
/// `InvalidArgument` for impossible scenarios, `Unsupported` for those that need
/// `run`: see [`fits_longest_path`].
pub fn longest_path(scenario: &Scenario) -> Result<LongestPath> {
    let (resolved, choice) = prepare::checked(scenario)?;
    if let Some(what) = obstacle(scenario) {
        return Err(unsupported(what));
    }
    let source = StepSource::new(&prepare::spec(scenario, &choice))?;
    let longest_bytes = scenario.count() * scenario.dtype.size_bytes() as u64;
    // Rounded as by `Way::slice_bytes`.
    let slice_bytes = choice.slice_bytes.max(64) as u64 / 64 * 64;
    if longest_bytes > slice_bytes && !source.needs_one_slice() {
        return Err(unsupported("a call in several slices"));
    }
    if choice.channels > 1 {
        return Err(unsupported("several channels"));
    }
    let ranks = Pass::new(&resolved, &source)
        .run(source)
        .map_err(unsupported)?;
    let last = |of: fn(&RankOnPath) -> Option<u64>| ranks.iter().filter_map(of).max();
    let finished_ps = last(|rank| Some(rank.finished_ps)).unwrap_or(0);
    Ok(LongestPath {
        finished_ps,
        results_ps: last(|rank| rank.reduced_ps).unwrap_or(finished_ps),
        ranks,
        scenario: resolved,
    })
}

/// Returns a feature of the scenario that rules the pass out, because only time decides the order
/// in which operations wait.
fn obstacle(scenario: &Scenario) -> Option<UnsupportedFeature> {
    let network = &scenario.network;
    let local = network.local.iter();
    let has = |what: fn(&Links) -> bool| local.clone().chain([&network.links]).any(what);
    let breaks = |disturbance: &Disturbance| {
        matches!(
            disturbance,
            Disturbance::Stall { .. } | Disturbance::Dead { .. }
        )
    };
    if network.sending != Sending::Eager {
        Some("rendezvous")
    } else if network.ports != Ports::Full {
        Some("half-duplex ports")
    } else if !network.switches.is_empty() {
        Some("shared switches")
    } else if network.memory_ps_per_byte.is_some() || network.cores_per_host.is_some() {
        Some("hosts that share memory or cores")
    } else if network.cache_bytes.is_some() && scenario.compute.miss_ps_per_byte > 0 {
        Some("caches")
    } else if has(|links| !links.has_free_ends()) {
        Some("overheads on a processor")
    } else if network.segment_bytes.is_some() || has(|links| links.window_bytes.is_some()) {
        Some("messages in segments or windows")
    } else if has(|links| links.grants.is_some()) {
        Some("messages that need grants")
    } else if scenario.compute.has_turns() {
        Some("ranks that sleep")
    } else if scenario.devices.is_some() {
        Some("data on devices")
    } else if scenario.has_barriers {
        Some("barriers around the call")
    } else if scenario.disturbances.iter().any(breaks) {
        Some("ranks that stall or die")
    } else if scenario.weights.is_some() {
        Some("weighted ranks")
    } else if scenario.straggler.is_some() {
        Some("a straggler policy")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
