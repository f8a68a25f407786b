//! The file of a sweep: a line for each measurement, written at once and whole, and the results of
//! an earlier run.
//!
//! A line is written only when it is complete, and by one call; so a sweep that is ended at any
//! time leaves a file of whole lines, or with one half line at its end that is cut off when the
//! sweep resumes.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};

use anyhow::{Context, Result, bail};

use super::arguments::Arguments;
use super::ways::Entry;
use crate::bench::Measurement;
use crate::tune::rows::{ANY, Asked, Row, Table, Topic, Way};

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

/// What all rows of a sweep have in common.
#[derive(Clone, Debug)]
pub struct Subject {
    topic: Topic,
    details: BTreeMap<&'static str, String>,
}

impl Subject {
    pub fn new(arguments: &Arguments, hosts: usize, ranks: usize) -> Result<Subject> {
        let case = arguments.case()?;
        let details = [
            ("dtype", case.dtype.to_string()),
            ("op", case.op.unwrap_or("none").to_owned()),
            ("in_place", arguments.in_place.to_string()),
        ];
        Ok(Subject {
            topic: Topic {
                collective: arguments.collective.name().to_owned(),
                nodes: i64::try_from(hosts)?,
                ranks: i64::try_from(ranks)?,
                group: ANY,
                registered: arguments.job.local_register.into(),
            },
            details: details.into(),
        })
    }
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
    subject: Subject,
    /// The measurements of this subject that were there at the beginning: size, way, whether the
    /// default's, and round.
    done: HashSet<(u64, Way, bool, Option<i64>)>,
}

impl Record {
    /// Creates the file, or resumes an existing one. Also says how many measurements that has, and
    /// which are about this subject.
    pub fn open(arguments: &Arguments, subject: Subject) -> Result<(Record, usize, Vec<Row>)> {
        let mut record = Record {
            file: None,
            text: String::new(),
            subject,
            done: HashSet::new(),
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
            // Half a line at the end is forgotten.
            let whole = record.text.rfind('\n').map_or(0, |at| at + 1);
            record.text.truncate(whole);
            let heading = record.text.lines().next();
            if heading.is_some_and(|heading| heading != COLUMNS.join(",")) {
                bail!(
                    "`{shown}` is no sweep of this version; choose another --output, or --overwrite"
                );
            }
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::Start(whole as u64))?;
            record.file = Some(file);
        }
        if record.text.is_empty() {
            record.write(&(COLUMNS.join(",") + "\n"))?;
        }
        let mut rows = record.table()?.rows;
        let resumed = rows.len();
        let Subject { topic, details } = &record.subject;
        rows.retain(|row| row.topic == *topic && row.details == *details);
        let done = rows.iter().map(|row| {
            let is_default = row.asked == Asked::Default;
            (row.bytes, row.way.clone(), is_default, row.round)
        });
        record.done = done.collect();
        Ok((record, resumed, rows))
    }

    pub fn has(
        &self,
        Shot {
            entry,
            bytes,
            round,
        }: Shot,
    ) -> bool {
        let key = (bytes, entry.row_way(), entry.is_default, Some(round.into()));
        self.done.contains(&key)
    }

    /// Adds what was measured.
    pub fn add(&mut self, shot: Shot, row: &Measurement) -> Result<()> {
        let Subject { topic, details } = &self.subject;
        let way = shot.entry.row_way();
        let estimate = row.estimate_us();
        let fields: [String; COLUMNS.len()] = [
            topic.collective.clone(),
            shot.bytes.to_string(),
            way.algorithm,
            way.protocol,
            way.channels.to_string(),
            topic.nodes.to_string(),
            topic.ranks.to_string(),
            topic.group.to_string(),
            topic.registered.to_string(),
            format!("{:.6}", row.algbw_gbps()),
            format!("{:.6}", row.mean_us()),
            if shot.entry.is_default {
                "default"
            } else {
                "way"
            }
            .into(),
            shot.round.to_string(),
            row.transport.clone(),
            details["dtype"].clone(),
            details["op"].clone(),
            details["in_place"].clone(),
            row.times_us.len().to_string(),
            format!("{:.6}", row.first_us),
            format!("{:.6}", row.min_us()),
            format!("{:.6}", row.median_us()),
            format!("{:.6}", estimate.low),
            format!("{:.6}", estimate.high),
            format!("{:.6}", row.percentile_us(99.0)),
            format!("{:.6}", row.max_us()),
            format!("{:.6}", row.busbw_gbps()),
            row.wrong.map_or(String::new(), |n| n.to_string()),
        ];
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
