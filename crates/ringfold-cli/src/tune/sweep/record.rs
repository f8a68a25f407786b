//! The file of a sweep: a line for each measurement, written at once and whole, and the results of
//! an earlier run.
//!
//! A line is written only when it is complete, and by one call; so a sweep that is ended at any
//! time leaves a file of whole lines, or with one half line at its end that is cut off when the
//! sweep resumes.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};

use anyhow::{Context, Result, bail};

use super::arguments::Arguments;
use super::ways::Entry;
use crate::bench::Measurement;
use crate::tune::rows::Table;

/// The columns: those of NVIDIA's script, then ours.
const COLUMNS: [&str; 27] = [
    "collective",
    "size_bytes",
    "algorithm",
    "protocol",
    "channels",
    "nodes",
    "ranks",
    "pipeOps",
    "regBuff",
    "bandwidth_gbps",
    "latency_us",
    "asked",
    "round",
    "transport",
    "dtype",
    "op",
    "in_place",
    "iterations",
    "first_us",
    "min_us",
    "median_us",
    "low_us",
    "high_us",
    "p99_us",
    "max_us",
    "busbw",
    "wrong",
];

/// The identity of a measurement: columns that do not depend on the result.
const KEY: [usize; 13] = [0, 1, 2, 3, 4, 5, 6, 8, 11, 12, 14, 15, 16];

/// The columns of the size, the algorithm, the protocol, and the requester.
const WHO: [usize; 4] = [1, 2, 3, 11];

/// What all rows of a sweep have in common.
#[derive(Clone, Debug)]
pub struct Common {
    pub hosts: usize,
    pub ranks: usize,
}

/// What was measured, and how it is called in the file.
#[derive(Clone, Copy, Debug)]
pub struct Shot<'a> {
    pub entry: &'a Entry,
    pub bytes: u64,
    pub round: u32,
}

/// The growing file; only rank 0 has one.
pub struct Record {
    file: Option<File>,
    /// Everything that is in the file.
    text: String,
    done: HashSet<String>,
    /// Measurements that were there at the beginning.
    pub resumed: usize,
}

impl Record {
    /// Creates the file, or resumes an existing one.
    pub fn open(arguments: &Arguments) -> Result<Record> {
        let mut record = Record {
            file: None,
            text: String::new(),
            done: HashSet::new(),
            resumed: 0,
        };
        if let Some(path) = arguments.file() {
            let shown = path.display();
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(arguments.overwrite)
                .open(path)
                .with_context(|| format!("cannot write `{shown}`"))?;
            file.read_to_string(&mut record.text)
                .with_context(|| format!("cannot read `{shown}`"))?;
            record.take_over(&shown.to_string())?;
            let whole = record.text.len() as u64;
            file.set_len(whole)?;
            file.seek(SeekFrom::Start(whole))?;
            record.file = Some(file);
        }
        if record.text.is_empty() {
            record.write(&(COLUMNS.join(",") + "\n"))?;
        }
        Ok(record)
    }

    /// Notes which measurements there are; half a line at the end is forgotten.
    fn take_over(&mut self, path: &str) -> Result<()> {
        let whole = self.text.rfind('\n').map_or(0, |at| at + 1);
        self.text.truncate(whole);
        let mut lines = self.text.lines();
        match lines.next() {
            None => return Ok(()),
            Some(heading) if heading == COLUMNS.join(",") => {}
            Some(_) => bail!(
                "`{path}` is no sweep of this version; choose another --output, or --overwrite"
            ),
        }
        for line in lines {
            let fields: Vec<&str> = line.split(',').collect();
            if fields.len() == COLUMNS.len() {
                self.done.insert(key(&fields));
                self.resumed += 1;
            }
        }
        Ok(())
    }

    /// Refuses to resume if the default choice has changed: its rows would contradict each other.
    pub fn check_picks(&self, picks: &[(u64, &Entry)], path: &str) -> Result<()> {
        for line in self.text.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            let [bytes, algorithm, protocol, asked] = WHO.map(|at| fields.get(at).copied());
            let pick = picks
                .iter()
                .find(|(size, _)| bytes == Some(size.to_string().as_str()));
            let Some((size, pick)) = pick.filter(|_| asked == Some("default")) else {
                continue;
            };
            let now = (pick.way.0.name(), pick.way.1.name());
            if (algorithm, protocol) != (Some(now.0), Some(now.1)) {
                bail!(
                    "in `{path}` the default picks {}/{} at {size} bytes, and now {}/{}; choose \
                     another --output, or --overwrite",
                    algorithm.unwrap_or_default(),
                    protocol.unwrap_or_default(),
                    now.0,
                    now.1,
                );
            }
        }
        Ok(())
    }

    pub fn has(&self, arguments: &Arguments, common: &Common, shot: Shot) -> Result<bool> {
        let fields = described(arguments, common, shot)?;
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        Ok(self.done.contains(&key(&fields)))
    }

    /// Adds what was measured.
    pub fn add(
        &mut self,
        arguments: &Arguments,
        common: &Common,
        shot: Shot,
        row: &Measurement,
    ) -> Result<()> {
        let mut fields = described(arguments, common, shot)?;
        let estimate = row.estimate_us();
        let mut set = |name: &str, value: String| {
            if let Some(at) = COLUMNS.iter().position(|column| *column == name) {
                fields[at] = value;
            }
        };
        let measured = [
            ("bandwidth_gbps", row.algbw_gbps()),
            ("latency_us", row.mean_us()),
            ("first_us", row.first_us),
            ("min_us", row.min_us()),
            ("median_us", row.median_us()),
            ("low_us", estimate.low),
            ("high_us", estimate.high),
            ("p99_us", row.percentile_us(99.0)),
            ("max_us", row.max_us()),
            ("busbw", row.busbw_gbps()),
        ];
        for (name, value) in measured {
            set(name, format!("{value:.6}"));
        }
        set("transport", row.transport.clone());
        set("iterations", row.times_us.len().to_string());
        set("wrong", row.wrong.map_or(String::new(), |n| n.to_string()));
        self.write(&(fields.join(",") + "\n"))
    }

    /// What is in the file, as a table.
    pub fn table(&self) -> Result<Table> {
        Table::parse(&self.text)
    }

    fn write(&mut self, line: &str) -> Result<()> {
        self.text += line;
        match &mut self.file {
            Some(file) => file.write_all(line.as_bytes()),
            None => std::io::stdout().write_all(line.as_bytes()),
        }
        .context("cannot write the sweep")
    }
}

/// The fields that are known before anything is measured; the others are empty.
fn described(arguments: &Arguments, common: &Common, shot: Shot) -> Result<Vec<String>> {
    let case = arguments.case()?;
    let entry = shot.entry;
    let mut fields = vec![String::new(); COLUMNS.len()];
    let known = [
        ("collective", arguments.collective.name().to_owned()),
        ("size_bytes", shot.bytes.to_string()),
        ("algorithm", entry.way.0.name().to_owned()),
        ("protocol", entry.way.1.name().to_owned()),
        (
            "channels",
            entry.channels.map_or("-1".into(), |n| n.to_string()),
        ),
        ("nodes", common.hosts.to_string()),
        ("ranks", common.ranks.to_string()),
        ("pipeOps", "-1".into()),
        ("regBuff", arguments.job.local_register.to_string()),
        (
            "asked",
            if entry.is_default { "default" } else { "way" }.into(),
        ),
        ("round", shot.round.to_string()),
        ("dtype", case.dtype.to_string()),
        ("op", case.op.unwrap_or("none").to_owned()),
        ("in_place", arguments.in_place.to_string()),
    ];
    for (field, column) in fields.iter_mut().zip(COLUMNS) {
        if let Some((_, value)) = known.iter().find(|(name, _)| *name == column) {
            field.clone_from(value);
        }
    }
    Ok(fields)
}

fn key(fields: &[&str]) -> String {
    KEY.map(|at| fields[at]).join(",")
}
