//! Files in the Trace Event Format, which Perfetto and Chrome show.
//!
//! A process has tracks. A slice (`X`) is something that happens on a track, and an arrow (a flow
//! from `s` to `f`) leads from one track to another. Times are microseconds.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::output::open;

/// A track of a process.
#[derive(Clone, Copy, Debug)]
pub struct Track {
    pub process: usize,
    pub number: usize,
}

/// A time on a track.
pub type Moment = (Track, f64);

/// Returns an event of a phase of the format.
pub fn event(phase: &str, name: &str, category: &str, (track, at_us): Moment) -> Value {
    json!({
        "ph": phase,
        "name": name,
        "cat": category,
        "pid": track.process,
        "tid": track.number,
        "ts": at_us,
    })
}

/// Returns the slice from a moment to a time on the same track.
pub fn slice(name: &str, category: &str, begin: Moment, end_us: f64, args: Value) -> Value {
    let mut event = event("X", name, category, begin);
    event["dur"] = (end_us - begin.1).max(0.0).into();
    event["args"] = args;
    event
}

/// Returns an arrow; `id` is its own among all arrows of this name.
pub fn arrow(name: &str, id: &str, from: Moment, to: Moment) -> [Value; 2] {
    [("s", from), ("f", to)].map(|(phase, moment)| {
        let mut event = event(phase, name, name, moment);
        event["bp"] = "e".into();
        event["id"] = id.into();
        event
    })
}

/// Returns arrows from sends to receives, which match in order if both have the same key. If some
/// are missing, as of a rank that died, the rest of a key cannot be matched.
pub fn messages<K: Ord>(
    sent: &BTreeMap<K, Vec<Moment>>,
    received: &BTreeMap<K, Vec<Moment>>,
) -> Vec<Value> {
    let pairs = sent.iter().flat_map(|(key, begins)| {
        let ends = received.get(key).filter(|ends| ends.len() == begins.len());
        begins.iter().zip(ends.into_iter().flatten())
    });
    let arrows = pairs.enumerate();
    arrows
        .flat_map(|(number, (from, to))| arrow("message", &format!("m{number}"), *from, *to))
        .collect()
}

/// Names a process, which stands at the place of its number.
pub fn process(number: usize, name: &str) -> [Value; 2] {
    named("process", json!({"ph": "M", "pid": number}), number, name)
}

/// Names a track, which stands at the place of its number in its process.
pub fn track(track: Track, name: &str) -> [Value; 2] {
    let event = json!({"ph": "M", "pid": track.process, "tid": track.number});
    named("thread", event, track.number, name)
}

fn named(kind: &str, event: Value, number: usize, name: &str) -> [Value; 2] {
    let name = ("name", json!({ "name": name }));
    let order = ("sort_index", json!({ "sort_index": number }));
    [name, order].map(|(what, args)| {
        let mut event = event.clone();
        event["name"] = format!("{kind}_{what}").into();
        event["args"] = args;
        event
    })
}

/// Writes `events` to a file.
pub fn write(path: &Path, events: impl Iterator<Item = Value>) -> Result<()> {
    let mut file = BufWriter::new(open(path)?);
    // Written one by one: a trace may have millions of events.
    file.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let mut separator = "";
    for event in events {
        file.write_all(separator.as_bytes())?;
        serde_json::to_writer(&mut file, &event).map_err(std::io::Error::from)?;
        separator = ",\n";
    }
    file.write_all(b"\n]}\n")?;
    Ok(file.flush()?)
}
