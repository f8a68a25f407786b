//! The file of a sweep: a line for each measurement, written at once and whole, and the results of
//! an earlier run.
//!
//! A line is written only when it is complete, and by one call. So a sweep that is ended at any
//! time leaves a file of whole lines, with at most a partial line at its end, which is cut off when
//! the sweep resumes.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};

use anyhow::{Context, Result, bail};

use super::arguments::SweepArguments;
use super::placement::placement;
use super::ways::Candidate;
use crate::bench::Measurement;
use crate::output::Column;
use crate::tune::rows::{ANY, Asked, Row, Table, Topic, Way};

/// The columns: those of NVIDIA's script, then ours.
const COLUMNS: [Column<SweepLine>; 28] = [
    ("collective", |line| line.subject.topic.collective.clone()),
    ("size_bytes", |line| line.row.size.bytes.to_string()),
    ("algorithm", |line| line.way.algorithm.clone()),
    ("protocol", |line| line.way.protocol.clone()),
    ("channels", |line| line.way.channels.to_string()),
    ("nodes", |line| line.subject.topic.nodes.to_string()),
    ("ranks", |line| line.subject.topic.ranks.to_string()),
    ("pipeOps", |line| line.subject.topic.group.to_string()),
    ("regBuff", |line| line.subject.topic.registered.to_string()),
    ("bandwidth_gbps", |line| decimal(line.row.algbw_gbps())),
    ("latency_us", |line| decimal(line.row.mean_us())),
    ("asked", |line| line.asked.to_owned()),
    ("round", |line| line.round.to_string()),
    ("transport", |line| line.row.transport.clone()),
    ("placement", |line| {
        line.subject.details["placement"].clone()
    }),
    ("dtype", |line| line.subject.details["dtype"].clone()),
    ("op", |line| line.subject.details["op"].clone()),
    ("in_place", |line| line.subject.details["in_place"].clone()),
    ("iterations", |line| line.row.times_us.len().to_string()),
    ("first_us", |line| decimal(line.row.first_us)),
    ("min_us", |line| decimal(line.row.min_us())),
    ("median_us", |line| decimal(line.row.median_us())),
    ("low_us", |line| decimal(line.row.estimate_us().low)),
    ("high_us", |line| decimal(line.row.estimate_us().high)),
    ("p99_us", |line| decimal(line.row.percentile_us(99.0))),
    ("max_us", |line| decimal(line.row.max_us())),
    ("busbw", |line| decimal(line.row.busbw_gbps())),
    ("wrong", |line| {
        line.row.wrong.map_or(String::new(), |n| n.to_string())
    }),
];

/// A measurement of a sweep.
struct SweepLine {
    subject: Subject,
    way: Way,
    asked: &'static str,
    round: u32,
    row: Measurement,
}

/// The properties that all rows of a sweep share.
#[derive(Clone, Debug)]
pub struct Subject {
    topic: Topic,
    details: BTreeMap<&'static str, String>,
}

impl Subject {
    /// Creates the subject of a sweep with ranks on these hosts.
    pub fn new(arguments: &SweepArguments, hosts_of_ranks: &[usize]) -> Result<Subject> {
        let case = arguments.case()?;
        let hosts = hosts_of_ranks.iter().max().map_or(0, |last| last + 1);
        let details = [
            ("placement", placement(hosts_of_ranks)),
            ("dtype", case.dtype.to_string()),
            ("op", case.op.unwrap_or("none").to_owned()),
            ("in_place", arguments.in_place.to_string()),
        ];
        Ok(Subject {
            topic: Topic {
                collective: arguments.collective.name().to_owned(),
                nodes: i64::try_from(hosts)?,
                ranks: i64::try_from(hosts_of_ranks.len())?,
                group: ANY,
                registered: arguments.job.local_register.into(),
            },
            details: details.into(),
        })
    }
}

/// The growing file; only rank 0 has one.
pub struct Record {
    file: Option<File>,
    /// The whole content of the file.
    text: String,
    subject: Subject,
    /// The measurements of this subject that were in the file at the beginning: size, way, whether
    /// the default's, and round.
    done: HashSet<(u64, Way, bool, Option<i64>)>,
}

impl Record {
    /// Creates the file, or resumes an existing one. Also returns the number of measurements in the
    /// file, and those of this subject.
    pub fn open(arguments: &SweepArguments, subject: Subject) -> Result<(Record, usize, Vec<Row>)> {
        let columns = COLUMNS.map(|(name, _)| name).join(",");
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
            // Drops a partial line at the end.
            let whole = record.text.rfind('\n').map_or(0, |at| at + 1);
            record.text.truncate(whole);
            let heading = record.text.lines().next();
            if heading.is_some_and(|heading| heading != columns) {
                bail!(
                    "`{shown}` is not a sweep of this version; choose another --output, or \
                        --overwrite"
                );
            }
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::Start(whole as u64))?;
            record.file = Some(file);
        }
        if record.text.is_empty() {
            record.write(&(columns + "\n"))?;
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

    /// Whether an earlier run has made this measurement.
    pub fn has(&self, candidate: &Candidate, bytes: u64, round: u32) -> bool {
        let key = (
            bytes,
            candidate.row_way(),
            candidate.is_default,
            Some(round.into()),
        );
        self.done.contains(&key)
    }

    /// Adds a measurement to the file.
    pub fn add(&mut self, candidate: &Candidate, round: u32, row: Measurement) -> Result<()> {
        let line = SweepLine {
            subject: self.subject.clone(),
            way: candidate.row_way(),
            asked: candidate.asked(),
            round,
            row,
        };
        let fields = COLUMNS.map(|(_, field)| field(&line));
        self.write(&(fields.join(",") + "\n"))
    }

    /// Parses the content of the file.
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

fn decimal(number: f64) -> String {
    format!("{number:.6}")
}
