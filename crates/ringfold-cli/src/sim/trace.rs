//! `--trace`: a simulation as a timeline that Perfetto and Chrome show.
//!
//! A rank is a process, and each of its lanes a track. An arrow leads from each message's sending
//! to its receiving.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use ringfold::internals::simulate::{Report, TimelineLane, TraceEvent};
use serde_json::{Value, json};

use crate::plot::events::{self, Moment, Track};

/// Writes the report's trace.
pub fn write(path: &Path, report: &Report) -> Result<()> {
    let slices = report.trace.iter().map(slice);
    let events = names(report).into_iter().chain(slices);
    events::write(path, events.chain(arrows(report)))
}

fn track(rank: usize, lane: TimelineLane) -> Track {
    Track {
        process: rank,
        number: lane as usize,
    }
}

fn us(ps: u64) -> f64 {
    ps as f64 / 1e6
}

/// Returns the names of ranks and lanes, in their order.
fn names(report: &Report) -> Vec<Value> {
    let events = report.trace.iter();
    let lanes: BTreeSet<_> = events.map(|event| (event.rank, event.lane)).collect();
    let ranks: BTreeSet<usize> = lanes.iter().map(|(rank, _)| *rank).collect();
    let ranks = ranks
        .into_iter()
        .flat_map(|rank| events::process(rank, &format!("rank {rank}")));
    let lanes = lanes
        .into_iter()
        .flat_map(|(rank, lane)| events::track(track(rank, lane), lane.name()));
    ranks.chain(lanes).collect()
}

fn slice(event: &TraceEvent) -> Value {
    let lane = event.lane.name();
    let name = match event.peer {
        Some(peer) => format!("{lane} {peer}"),
        None => lane.to_owned(),
    };
    let begin = (track(event.rank, event.lane), us(event.begin_ps));
    let args = json!({"peer": event.peer, "bytes": event.bytes, "slice": event.slice});
    events::slice(&name, lane, begin, us(event.end_ps), args)
}

/// Returns the arrows of all messages. From one rank to another, messages are received in the order
/// in which they are sent.
fn arrows(report: &Report) -> Vec<Value> {
    let ends = |lane: TimelineLane, pair: fn(&TraceEvent) -> Option<(usize, usize)>| {
        let mut ends: BTreeMap<(usize, usize), Vec<Moment>> = BTreeMap::new();
        for event in report.trace.iter().filter(|event| event.lane == lane) {
            if let Some(pair) = pair(event) {
                let moment = (track(event.rank, lane), us(event.begin_ps));
                ends.entry(pair).or_default().push(moment);
            }
        }
        for moments in ends.values_mut() {
            moments.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        }
        ends
    };
    let sent = ends(TimelineLane::Transmit, |event| {
        Some((event.rank, event.peer?))
    });
    let received = ends(TimelineLane::Receive, |event| {
        Some((event.peer?, event.rank))
    });
    events::messages(&sent, &received)
}
