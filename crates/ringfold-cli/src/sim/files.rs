//! `--csv` and `--json`: everything that was simulated, for other programs.

use std::path::Path;

use anyhow::Result;
use ringfold::internals::simulate::{Payload, Report};
use serde_json::{Value as Json, json};

use super::outcome::Outcome;
use super::units::micros;
use super::vary::Variation;
use crate::launch::itself;
use crate::output::{self, Column, Csv};

/// The columns, in the order that other programs rely on.
const COLUMNS: [Column<Outcome>; 19] = [
    ("variant", |of| of.variant.clone()),
    ("key", |of| {
        of.value
            .as_ref()
            .map_or(String::new(), |value| value.key.clone())
    }),
    ("value", |of| {
        of.value
            .as_ref()
            .map_or(String::new(), |value| value.text.clone())
    }),
    ("collective", |of| of.scenario().collective.to_string()),
    ("algorithm", |of| of.summary.algorithm()),
    ("ranks", |of| of.scenario().ranks.to_string()),
    ("bytes", |of| of.scenario().bytes.to_string()),
    ("dtype", |of| of.scenario().dtype.to_string()),
    ("op", |of| of.scenario().op.to_string()),
    ("seed", |of| of.scenario().seed.to_string()),
    ("time_us", |of| micros(of.summary.finished_ps)),
    ("results_us", |of| micros(of.summary.results_ps)),
    ("algbw_gbps", |of| rate(of.summary.algbw_gbps())),
    ("busbw_gbps", |of| rate(of.summary.busbw_gbps())),
    ("messages", |of| of.summary.messages.to_string()),
    ("sent_bytes", |of| of.summary.sent_bytes.to_string()),
    ("events", |of| {
        of.summary
            .events
            .map_or(String::new(), |events| events.to_string())
    }),
    ("failed_ranks", |of| of.summary.failed_ranks.to_string()),
    ("broken_promises", |of| {
        of.summary.broken_promises.to_string()
    }),
];

fn rate(gbps: f64) -> String {
    format!("{gbps:.6}")
}

/// Creates the CSV; `-` is standard output.
pub fn csv(path: &Path) -> Result<Csv<Outcome>> {
    Csv::create(path, COLUMNS.to_vec())
}

/// Writes all outcomes; `-` is standard output.
pub fn write_json(path: &Path, sweep: Option<&Variation>, outcomes: &[Outcome]) -> Result<()> {
    let document = json!({
        "ringfold_version": env!("CARGO_PKG_VERSION"),
        "args": itself::recorded(),
        "sweep": sweep.map(|sweep| &sweep.key),
        "simulations": outcomes.iter().map(simulation).collect::<Vec<_>>(),
    });
    output::write_json(output::open(path)?, &document)
}

fn simulation(outcome: &Outcome) -> Json {
    let (summary, scenario) = (&outcome.summary, outcome.scenario());
    let mut simulation = json!({
        "variant": outcome.variant,
        "value": outcome.value.as_ref().map(|value| &value.text),
        "scenario": {
            "collective": scenario.collective.name(),
            "algorithm": summary.algorithm(),
            "dtype": scenario.dtype.name(),
            "op": scenario.op.name(),
            "root": scenario.root,
            "ranks": scenario.ranks,
            "bytes": scenario.bytes,
            "slice_bytes": scenario.slice_bytes.filter(|&bytes| bytes != u64::MAX),
            "weights": scenario.weights,
            "policy": scenario.straggler.map_or("off", |policy| policy.target.name()),
            "seed": scenario.seed,
            "payload": match scenario.payload {
                Payload::Real => "real",
                Payload::Hollow => "hollow",
            },
            "alpha_us": us(scenario.network.links.alpha_ps),
            "bandwidth_ps_per_byte": scenario.network.links.ps_per_byte,
            "reduce_us": us(scenario.compute.reduce_ps),
            "reduce_ps_per_byte": scenario.compute.reduce_ps_per_byte,
        },
        "time_us": us(summary.finished_ps),
        "results_us": us(summary.results_ps),
        "limit_us": summary.limit_ps.map(us),
        "of_limit": summary.of_limit(),
        "algbw_gbps": summary.algbw_gbps(),
        "busbw_gbps": summary.busbw_gbps(),
        "events": summary.events,
    });
    if let (Some(whole), Some(Json::Object(details))) = (
        simulation.as_object_mut(),
        outcome.report.as_ref().map(details),
    ) {
        whole.extend(details);
    }
    simulation
}

fn us(ps: u64) -> f64 {
    ps as f64 / 1e6
}

/// Data that only the engine provides.
fn details(report: &Report) -> Json {
    json!({
        "chunks": report.chunks.iter().map(|chunk| json!({
            "chunk": chunk.chunk,
            "owner": chunk.owner,
            "complete_us": us(chunk.complete_ps),
        })).collect::<Vec<_>>(),
        "ranks": report.ranks.iter().enumerate().map(|(rank, part)| json!({
            "rank": rank,
            "finished_us": us(part.finished_ps),
            "error": part.outcome.as_ref().err().map(ToString::to_string),
            "sent_bytes": part.sent_bytes,
            "sent_messages": part.sent_messages,
            "reduce_us": us(part.reduce_ps),
            "waited_us": us(part.waited_ps),
            "blame_us": us(report.blame_ps.get(rank).copied().unwrap_or(0)),
        })).collect::<Vec<_>>(),
        "links": report.links.iter().map(|link| json!({
            "from": link.from,
            "to": link.to,
            "messages": link.messages,
            "bytes": link.bytes,
            "busy_us": us(link.busy_ps),
        })).collect::<Vec<_>>(),
        "critical_path": report.critical_path.iter().map(|part| json!({
            "rank": part.rank,
            "peer": part.peer,
            "kind": part.kind.name(),
            "begin_us": us(part.begin_ps),
            "end_us": us(part.end_ps),
        })).collect::<Vec<_>>(),
        "promises": report.promises.iter().map(|promise| json!({
            "promise": format!("{:?}", promise.promise),
            "at_us": us(promise.at_ps),
            "rank": promise.rank,
            "what": promise.what,
        })).collect::<Vec<_>>(),
    })
}
