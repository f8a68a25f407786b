//! Files in the Trace Event Format, which Perfetto and Chrome show.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::output::open;

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
