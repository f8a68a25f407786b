//! `--trace`: a simulation as a timeline that Perfetto and Chrome show.
//!
//! The Trace Event Format: a rank is a process, a lane a thread, an event a complete slice (`X`), times are microseconds.

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use ringfold::simulate::{Report, TraceEvent};
use serde_json::{Value, json};

use crate::output::open;

/// Writes the report's trace.
pub fn write(path: &Path, report: &Report) -> Result<()> {
    let mut file = BufWriter::new(open(path)?);
    // Written one by one: a trace may have millions of events.
    file.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let mut separator = "";
    for event in names(report)
        .into_iter()
        .chain(report.trace.iter().map(slice))
    {
        file.write_all(separator.as_bytes())?;
        serde_json::to_writer(&mut file, &event).map_err(std::io::Error::from)?;
        separator = ",\n";
    }
    file.write_all(b"\n]}\n")?;
    Ok(file.flush()?)
}

/// What processes and threads are called, in the order of ranks and lanes.
fn names(report: &Report) -> Vec<Value> {
    let lanes: BTreeSet<_> = report
        .trace
        .iter()
        .map(|event| (event.rank, event.lane))
        .collect();
    let ranks: BTreeSet<usize> = lanes.iter().map(|(rank, _)| *rank).collect();
    let mut names = Vec::new();
    for rank in ranks {
        let name = json!({"name": format!("rank {rank}")});
        names.push(json!({"ph": "M", "name": "process_name", "pid": rank, "args": name}));
        names.push(json!({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}));
    }
    for (rank, lane) in lanes {
        let (tid, name) = (lane as u32, json!({"name": lane.name()}));
        names
            .push(json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": name}));
        names.push(json!({"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": tid, "args": {"sort_index": tid}}));
    }
    names
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
