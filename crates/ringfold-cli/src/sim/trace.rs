//! `--trace`: a simulation as a timeline that Perfetto and Chrome show.
//!
//! The Trace Event Format: a rank is a process, a lane a thread, an event a complete slice (`X`),
//! times are microseconds. An arrow (a flow from `s` to `f`) leads from each message's sending to
//! its receiving.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use ringfold::internals::simulate::{Report, TimelineLane, TraceEvent};
use serde_json::{Value, json};

use crate::plot::events;

/// Writes the report's trace.
pub fn write(path: &Path, report: &Report) -> Result<()> {
    let slices = report.trace.iter().map(slice);
    events::write(
        path,
        names(report)
            .into_iter()
            .chain(slices)
            .chain(arrows(report)),
    )
}

/// What processes and threads are called, in the order of ranks and lanes.
fn names(report: &Report) -> Vec<Value> {
    let lanes: BTreeSet<_> = report
        .trace
        .iter()
        .map(|event| (event.rank, event.lane))
        .collect();
    let ranks: BTreeSet<usize> = lanes.iter().map(|(rank, _)| *rank).collect();
    let ranks = ranks.into_iter().map(|rank| {
        let name = format!("rank {rank}");
        ("process", json!({"ph": "M", "pid": rank}), name, rank)
    });
    let lanes = lanes.into_iter().map(|(rank, lane)| {
        let event = json!({"ph": "M", "pid": rank, "tid": lane as u32});
        ("thread", event, lane.name().to_owned(), lane as usize)
    });
    let events = ranks.chain(lanes).flat_map(|(kind, event, name, order)| {
        let name = ("name", json!({"name": name}));
        let order = ("sort_index", json!({"sort_index": order}));
        [name, order].map(|(what, args)| {
            let mut event = event.clone();
            event["name"] = format!("{kind}_{what}").into();
            event["args"] = args;
            event
        })
    });
    events.collect()
}

fn slice(event: &TraceEvent) -> Value {
    let name = match event.peer {
        Some(peer) => format!("{} {peer}", event.lane.name()),
        None => event.lane.name().to_owned(),
    };
    json!({
        "ph": "X",
        "name": name,
        "cat": event.lane.name(),
        "pid": event.rank,
        "tid": event.lane as u32,
        "ts": event.begin_ps as f64 / 1e6,
        "dur": (event.end_ps - event.begin_ps) as f64 / 1e6,
        "args": {"peer": event.peer, "bytes": event.bytes, "slice": event.slice},
    })
}

/// The start of an arrow at each sending, and its end at the receiving. From one rank to another,
/// messages are received in the order in which they are sent.
fn arrows(report: &Report) -> Vec<Value> {
    let ends = |lane: TimelineLane, pair: fn(&TraceEvent) -> Option<(usize, usize)>| {
        let mut ends: BTreeMap<(usize, usize), Vec<u64>> = BTreeMap::new();
        for event in report.trace.iter().filter(|event| event.lane == lane) {
            if let Some(pair) = pair(event) {
                ends.entry(pair).or_default().push(event.begin_ps);
            }
        }
        ends.values_mut().for_each(|times| times.sort_unstable());
        ends
    };
    let sent = ends(TimelineLane::Transmit, |event| {
        Some((event.rank, event.peer?))
    });
    let received = ends(TimelineLane::Receive, |event| {
        Some((event.peer?, event.rank))
    });
    let mut arrows = Vec::new();
    for (&(from, to), begins) in &sent {
        // Of a rank that died, messages may be lost; the rest cannot be matched.
        let ends = received
            .get(&(from, to))
            .filter(|ends| ends.len() == begins.len());
        for (begin, end) in begins.iter().zip(ends.into_iter().flatten()) {
            let number = arrows.len() / 2;
            let end_of = |ph: &str, rank: usize, lane: TimelineLane, ps: u64| {
                json!({
                    "ph": ph,
                    "bp": "e",
                    "name": "message",
                    "cat": "message",
                    "id": number,
                    "pid": rank,
                    "tid": lane as u32,
                    "ts": ps as f64 / 1e6,
                })
            };
            arrows.push(end_of("s", from, TimelineLane::Transmit, *begin));
            arrows.push(end_of("f", to, TimelineLane::Receive, *end));
        }
    }
    arrows
}
