//! `ringfold metrics`: the counters of the running jobs of this host, for Prometheus.
//!
//! The text format 0.0.4: families in a fixed order, each with its type; counters end in `_total`
//! and use base units. A counter begins at 0 with its communicator.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Result;
use ringfold::internals::board::{Ended, Picture};

use super::jobs::{Process, RunningJob, Sample};
use super::serve;
use crate::output::{self, complain};

/// Print the counters of this host's running jobs in Prometheus' text format, or serve them
///
/// Without --listen, prints the counters once: to read, or for the textfile collector of
/// node_exporter. The jobs need no preparation, and none of their threads takes part; see `ringfold
/// top`. docs/reference/metrics.md lists the metrics.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct MetricsArguments {
    /// Serve the counters at http://ADDRESS/metrics until interrupted, for example at
    /// 127.0.0.1:9400
    ///
    /// There is no authentication: choose an address that only Prometheus reaches.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Add the lateness of each rank as every other rank measured it: one series for each pair of
    /// ranks
    #[arg(long)]
    peers: bool,
}

const EXAMPLES: &str = "\
Examples:
  ringfold metrics
  ringfold metrics --listen 127.0.0.1:9400
  ringfold metrics > ringfold.prom.new && mv ringfold.prom.new ringfold.prom";

/// Prints or serves the counters.
pub fn run(arguments: MetricsArguments) -> Result<u8> {
    let Some(address) = arguments.listen else {
        let sample = Sample::take(arguments.peers);
        warn(&sample);
        output::print(&text(&sample, arguments.peers))?;
        return Ok(0);
    };
    let peers = arguments.peers;
    serve::run(address, move || text(&Sample::take(peers), peers))
}

fn warn(sample: &Sample) {
    for (pid, why) in &sample.unreadable {
        complain(&format!("the board of process {pid} cannot be read: {why}"));
    }
}

/// A metric of a communicator of a process.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    values: fn(&Picture, u64) -> Vec<(String, f64)>,
}

const FAMILIES: [Family; 8] = [
    Family {
        name: "ringfold_calls_total",
        kind: "counter",
        help: "Completed calls.",
        values: |board, _| by_collective(board, |calls, _| calls),
    },
    Family {
        name: "ringfold_bytes_total",
        kind: "counter",
        help: "Bytes of the buffers of completed calls: the longer of input and output.",
        values: |board, _| by_collective(board, |_, bytes| bytes),
    },
    Family {
        name: "ringfold_wait_seconds_total",
        kind: "counter",
        help: "Time spent waiting for other ranks, in collectives that have ended.",
        values: |board, _| one(seconds(board.waited_ns)),
    },
    Family {
        name: "ringfold_last_total",
        kind: "counter",
        help: "Collectives in which this rank was the last to arrive.",
        values: |board, _| one(board.times_last as f64),
    },
    Family {
        name: "ringfold_begun",
        kind: "gauge",
        help: "The number of the last collective that was begun.",
        values: |board, _| one(board.begun as f64),
    },
    Family {
        name: "ringfold_finished",
        kind: "gauge",
        help: "The number of the last collective that is done.",
        values: |board, _| one(board.finished as f64),
    },
    Family {
        name: "ringfold_waiting_seconds",
        kind: "gauge",
        help: "How long this rank has waited in the call that it is in; 0 if it does not wait.",
        values: |board, at_ns| {
            let waiting = board.waiting.as_ref();
            one(waiting.map_or(0.0, |waiting| {
                seconds(at_ns.saturating_sub(waiting.since_ns))
            }))
        },
    },
    Family {
        name: "ringfold_failed",
        kind: "gauge",
        help: "1 if an error has ended the communicator.",
        values: |board, _| one(f64::from(u8::from(matches!(board.ended, Ended::Failed(_))))),
    },
];

fn one(value: f64) -> Vec<(String, f64)> {
    vec![(String::new(), value)]
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn by_collective(board: &Picture, of: fn(u64, u64) -> u64) -> Vec<(String, f64)> {
    let values = board.collectives.iter();
    let labelled = values.map(|(collective, calls, bytes)| {
        (
            format!(",collective=\"{collective}\""),
            of(*calls, *bytes) as f64,
        )
    });
    labelled.collect()
}

/// All counters of a sample.
fn text(sample: &Sample, peers: bool) -> String {
    let mut text = String::new();
    for family in &FAMILIES {
        let Family {
            name, kind, help, ..
        } = family;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, board) in boards(sample) {
            for (label, value) in (family.values)(board, sample.at_ns) {
                let _ = writeln!(text, "{name}{{{labels}{label}}} {value}");
            }
        }
    }
    if peers {
        text += &lateness(sample);
    }
    text
}

/// How late each rank was as each other one saw it.
fn lateness(sample: &Sample) -> String {
    let name = "ringfold_peer_late_seconds_total";
    let help = "How late `peer` was to the calls in which it was the last to arrive.";
    let mut text = format!("# HELP {name} {help}\n# TYPE {name} counter\n");
    for (labels, board) in boards(sample) {
        let others = board
            .peers
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != board.rank);
        for (rank, peer) in others {
            let late = seconds(peer.lateness_ns);
            let _ = writeln!(text, "{name}{{{labels},peer=\"{rank}\"}} {late}");
        }
    }
    text
}

/// All boards, with the labels of each: which communicator of which process. Two jobs never have
/// the same; neither have two communicators of a job. A process that is several ranks, one per
/// thread, has several boards of one communicator: in the largest one their ranks differ, in others
/// the second and later ones are numbered.
fn boards(sample: &Sample) -> impl Iterator<Item = (String, &Picture)> {
    let processes = sample.jobs.iter();
    let processes = processes.flat_map(|job| job.processes.iter().map(move |p| (job, p)));
    let boards =
        processes.flat_map(|(job, process)| process.boards.iter().map(move |b| (job, process, b)));
    let mut seen = BTreeMap::new();
    boards.map(move |(job, process, board)| {
        let labels = labels(job, process, board);
        let copy = seen.entry(labels.clone()).or_insert(0);
        *copy += 1;
        match *copy {
            1 => (labels, board),
            copy => (format!("{labels},copy=\"{copy}\""), board),
        }
    })
}

fn labels(job: &RunningJob, process: &Process, board: &Picture) -> String {
    let is_largest = (board.job, board.world_size) == (job.number, job.world_size);
    let rank = if is_largest { board.rank } else { process.rank };
    let (name, pid, host) = (job.name(), process.pid, escaped(&board.host));
    let communicator = board.job.rotate_left(17) ^ board.communicator;
    format!(
        "job=\"{name}\",rank=\"{rank}\",host=\"{host}\",pid=\"{pid}\",\
         communicator=\"{communicator:016x}\""
    )
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
