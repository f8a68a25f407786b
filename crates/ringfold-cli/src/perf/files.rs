//! `--csv` and `--json`: all results, for other programs.

use std::time::SystemTime;

use ringfold::Stats;
use serde_json::{Map, Value, json};

use super::arguments::PerfArguments;
use super::table;
use crate::bench::{Measurement, Participant, stats};
use crate::launch::itself;
use crate::output::Column;

/// The version of nccl-tests' JSON format that ours follows.
const JSON_VERSION: u32 = 3;

/// The columns, in the order that other programs rely on.
const COLUMNS: [Column<Measurement>; 20] = [
    ("collective", |row| row.collective.to_string()),
    ("algorithm", |row| row.algorithm.clone()),
    ("transport", |row| row.transport.clone()),
    ("ranks", |row| row.world_size.to_string()),
    ("bytes", |row| row.size.bytes.to_string()),
    ("count", |row| row.size.count.to_string()),
    ("dtype", |row| row.case.dtype.to_string()),
    ("op", |row| row.case.op.unwrap_or("none").to_owned()),
    ("in_place", |row| row.in_place.to_string()),
    ("iterations", |row| row.times_us.len().to_string()),
    ("first_us", |row| micros(row.first_us)),
    ("min_us", |row| micros(row.min_us())),
    ("median_us", |row| micros(row.median_us())),
    ("p99_us", |row| micros(row.percentile_us(99.0))),
    ("max_us", |row| micros(row.max_us())),
    ("algbw_gbps", |row| rate(row.algbw_gbps())),
    ("busbw_gbps", |row| rate(row.busbw_gbps())),
    ("wrong", |row| {
        row.wrong.map_or(String::new(), |wrong| wrong.to_string())
    }),
    ("low_us", |row| micros(row.estimate_us().low)),
    ("high_us", |row| micros(row.estimate_us().high)),
];

/// Further columns at the end, with `--device`.
const DEVICE_COLUMNS: [Column<Measurement>; 3] = [
    ("limit_us", |row| row.limit_us.map_or(String::new(), micros)),
    ("of_limit_percent", |row| {
        row.of_limit_percent().map_or(String::new(), micros)
    }),
    ("blocking", |row| u8::from(row.has_barriers).to_string()),
];

/// Returns the columns of the CSV.
pub fn columns(arguments: &PerfArguments) -> Vec<Column<Measurement>> {
    match arguments.on.device {
        None => COLUMNS.to_vec(),
        Some(_) => [&COLUMNS[..], &DEVICE_COLUMNS].concat(),
    }
}

fn micros(value: f64) -> String {
    format!("{value:.3}")
}

fn rate(value: f64) -> String {
    format!("{value:.6}")
}

/// A run of the command, and its results so far.
pub struct PerfRun<'a> {
    pub arguments: &'a PerfArguments,
    pub sizes: Vec<u64>,
    pub participants: Vec<Participant>,
    pub start_time: String,
    /// The measurements, kept for the JSON and the plot only.
    pub rows: Vec<Measurement>,
    /// Number of wrong elements.
    pub wrong: u64,
    busbw_sum_gbps: f64,
    placements: u64,
}

impl<'a> PerfRun<'a> {
    /// Starts a run now.
    pub fn begin(
        arguments: &'a PerfArguments,
        sizes: Vec<u64>,
        participants: Vec<Participant>,
    ) -> PerfRun<'a> {
        PerfRun {
            arguments,
            sizes,
            participants,
            start_time: table::utc(SystemTime::now()),
            rows: Vec::new(),
            wrong: 0,
            busbw_sum_gbps: 0.0,
            placements: 0,
        }
    }

    /// Adds the measurement of one placement.
    pub fn add(&mut self, row: Measurement) {
        self.wrong += row.wrong.unwrap_or(0);
        self.busbw_sum_gbps += row.busbw_gbps();
        self.placements += 1;
        if self.arguments.json.is_some() || self.arguments.plot.is_some() {
            self.rows.push(row);
        }
    }

    /// Returns the mean bus bandwidth over all sizes and placements.
    pub fn average_busbw_gbps(&self) -> f64 {
        self.busbw_sum_gbps / self.placements.max(1) as f64
    }
}

/// Returns the run in nccl-tests' format, with fields of ours beside those of nccl-tests.
pub fn document(run: &PerfRun, stats: Option<&[Stats]>) -> Value {
    let arguments = run.arguments;
    let mut config = json!({
        "minimum_bytes": run.sizes.first(),
        "maximum_bytes": run.sizes.last(),
        "warmup_iters": arguments.warmup_iters,
        "iterations": arguments.iters,
        "aggregated_iterations": 1,
        "validation": arguments.check,
        "blocking_collectives": arguments.blocking,
        "per_iter_timing": arguments.per_iter_timing,
        "average": arguments.average,
        "collective": arguments.collective.name(),
        "ranks": run.participants.len(),
        "devices": run.participants.iter().map(|participant| json!({
            "rank": participant.rank,
            "group": 0,
            "pid": participant.pid,
            "hostname": participant.hostname,
        })).collect::<Vec<_>>(),
    });
    match arguments.span.stepbytes {
        Some(bytes) => config["step_bytes"] = bytes.into(),
        None => config["step_factor"] = arguments.span.stepfactor.unwrap_or(2).into(),
    }
    if let Some(devices) = &arguments.on.device {
        let lane = arguments.on.config();
        config["device"] = devices.to_string().into();
        config["slot_bytes"] = lane.slot_bytes.into();
        config["slots"] = lane.depth.into();
        config["direct"] = lane.direct.into();
    }
    let mut document = json!({
        "version": JSON_VERSION,
        "ringfold_version": env!("CARGO_PKG_VERSION"),
        "start_time": run.start_time,
        "args": itself::recorded(),
        "env": environment(),
        "config": config,
        "results": results(arguments, &run.rows),
        "out_of_bounds": {"count": run.wrong, "okay": run.wrong == 0},
        "average_bus_bandwidth": {"bandwidth": run.average_busbw_gbps()},
        "errors": [],
        "end_time": table::utc(SystemTime::now()),
    });
    if let Some(stats) = stats {
        document["lateness"] = stats::document(stats);
    }
    document
}

/// Returns the variables that affect the measurement; never the secret.
fn environment() -> Map<String, Value> {
    std::env::vars()
        .filter(|(name, _)| name.starts_with("RINGFOLD_") && name != "RINGFOLD_SECRET")
        .map(|(name, value)| (name, value.into()))
        .collect()
}

fn results(arguments: &PerfArguments, rows: &[Measurement]) -> Vec<Value> {
    let mut results: Vec<Value> = Vec::new();
    for row in rows {
        // The row in place always follows the row out of place.
        if let (true, Some(last)) = (row.in_place, results.last_mut()) {
            add_placement(last, "in_place", arguments, row);
            continue;
        }
        let mut result = json!({
            "size": row.size.bytes,
            "count": row.size.count,
            "type": row.case.dtype.name(),
            "redop": row.case.op.unwrap_or("none"),
            "root": row.case.root.map_or(-1, |root| root as i64).to_string(),
            "in_place": null,
            "actual_iterations": row.times_us.len(),
        });
        add_placement(&mut result, "out_of_place", arguments, row);
        results.push(result);
    }
    results
}

fn add_placement(result: &mut Value, name: &str, arguments: &PerfArguments, row: &Measurement) {
    let estimate = row.estimate_us();
    result[name] = json!({
        "time": row.median_us(),
        "alg_bw": row.algbw_gbps(),
        "bus_bw": row.busbw_gbps(),
        "nwrong": row.wrong,
        "first_us": row.first_us,
        "min_us": row.min_us(),
        "median_us": row.median_us(),
        "low_us": estimate.low,
        "high_us": estimate.high,
        "p99_us": row.percentile_us(99.0),
        "max_us": row.max_us(),
        "algorithm": row.algorithm,
        "transport": row.transport,
    });
    if row.limit_us.is_some() {
        result[name]["limit_us"] = row.limit_us.into();
        result[name]["of_limit_percent"] = row.of_limit_percent().into();
    }
    if arguments.per_iter_timing == 1 {
        result[format!("{name}_per_iter")] = json!({
            "skipped_iterations": 0,
            "min_us": row.min_us(),
            "max_us": row.max_us(),
            "avg_us": row.mean_us(),
            "p50_us": row.percentile_us(50.0),
            "p95_us": row.percentile_us(95.0),
            "p99_us": row.percentile_us(99.0),
            "stdev_us": row.deviation_us(),
            "cv_pct": row.variation_percent(),
            "times_us": row.times_us,
        });
    }
}
