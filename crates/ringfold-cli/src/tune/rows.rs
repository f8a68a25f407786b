//! Measurements as lines of a CSV: those that `tune sweep` and `perf --csv` write, and those of
//! NCCL.
//!
//! A file's columns are found by name, in any order; unknown columns are ignored. An invalid number
//! invalidates its row, which is reported, and the rest is used: an interrupted sweep has half a
//! line at its end.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::{Serialize, Serializer};

use crate::output::complain;

/// The quantity by which ways are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Metric {
    MedianUs,
    P99Us,
    Busbw,
    LatencyUs,
    BandwidthGbps,
}

impl Metric {
    /// Returns the column's name in a sweep.
    pub fn name(self) -> &'static str {
        match self {
            Metric::MedianUs => "median_us",
            Metric::P99Us => "p99_us",
            Metric::Busbw => "busbw",
            Metric::LatencyUs => "latency_us",
            Metric::BandwidthGbps => "bandwidth_gbps",
        }
    }

    /// Returns a cost, of which less is better: a time, or the inverse of a rate.
    pub fn cost(self, value: f64) -> f64 {
        match self {
            Metric::MedianUs | Metric::P99Us | Metric::LatencyUs => value,
            Metric::Busbw | Metric::BandwidthGbps => 1.0 / value,
        }
    }

    /// Whether `a` is better than `b`.
    pub fn is_better(self, a: f64, b: f64) -> bool {
        self.cost(a) < self.cost(b)
    }
}

impl Display for Metric {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The number that stands for any other, in a column that a rule compares.
pub const ANY: i64 = -1;

/// One call, as far as a tuner's rules distinguish calls; names as in the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic {
    pub collective: String,
    pub nodes: i64,
    pub ranks: i64,
    pub group: i64,
    pub registered: i64,
}

/// Algorithm, protocol and number of channels of a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    pub algorithm: String,
    pub protocol: String,
    pub channels: i64,
}

impl Way {
    /// Whether both are the same way; channels count only if both ways have their number.
    pub fn is_same(&self, other: &Way) -> bool {
        let (a, b) = (self.channels, other.channels);
        self.algorithm == other.algorithm
            && self.protocol == other.protocol
            && (a == b || a == ANY || b == ANY)
    }
}

impl Serialize for Way {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Formats a way as `ring/simple`, with the number of channels if it is known.
impl Display for Way {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(&self.algorithm)?;
        if !self.protocol.is_empty() {
            write!(f, "/{}", self.protocol)?;
        }
        match self.channels {
            ANY => Ok(()),
            1 => f.write_str(" on 1 channel"),
            channels => write!(f, " on {channels} channels"),
        }
    }
}

/// The origin of a row's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Not recorded in the file.
    Unsaid,
    /// No request: the library's own choice.
    Default,
    /// Requested by the measurement.
    Way,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Row {
    pub topic: Topic,
    /// Other properties that rules do not distinguish, by column name: data type, operation,
    /// placement.
    pub details: BTreeMap<&'static str, String>,
    pub bytes: u64,
    pub way: Way,
    pub asked: Asked,
    /// Number of the round; rows of one round were measured one right after the other.
    pub round: Option<i64>,
    /// Confidence interval of the median.
    pub interval_us: Option<(f64, f64)>,
    pub metrics: HashMap<Metric, f64>,
}

impl Row {
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        self.metrics.get(&metric).copied()
    }

    /// Returns the median time, or the latency if the row has no median.
    pub fn time_us(&self) -> Option<f64> {
        self.metric(Metric::MedianUs)
            .or_else(|| self.metric(Metric::LatencyUs))
    }
}

/// The measurements of a file.
#[derive(Clone, Debug)]
pub struct Table {
    pub rows: Vec<Row>,
    /// Metrics of which the file has a column.
    pub metrics: Vec<Metric>,
    /// Columns that a tuner's rules need, but the file does not have.
    pub missing: Vec<&'static str>,
    /// Reasons for skipped lines, each with the line's number.
    skipped: Vec<String>,
}

/// Columns that a tuner's rules need.
const KEYS: [&str; 9] = [
    "collective",
    "size_bytes",
    "algorithm",
    "protocol",
    "channels",
    "nodes",
    "ranks",
    "pipeOps",
    "regBuff",
];

/// Columns that every file of measurements has.
const NEEDED: [&str; 4] = ["collective", "size_bytes", "algorithm", "ranks"];

/// Name of the column for the spread of ranks over hosts.
pub const PLACEMENT: &str = "placement";

/// Columns that distinguish curves, but not rules.
const DETAILS: [&str; 4] = [PLACEMENT, "dtype", "op", "in_place"];

impl Table {
    /// Reads a sweep, the output of `perf --csv`, or measurements of NCCL with the columns of
    /// NVIDIA's script. Reports the lines that were left out.
    pub fn read(path: &Path) -> Result<Table> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let table = Table::parse(&text).with_context(|| format!("`{}`", path.display()))?;
        for line in &table.skipped {
            complain(&format!("skipped an invalid row: {line}"));
        }
        Ok(table)
    }

    /// Parses a file's text.
    pub fn parse(text: &str) -> Result<Table> {
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .trim(csv::Trim::All)
            .comment(Some(b'#'))
            .from_reader(text.as_bytes());
        let heads = reader.headers().context("not a CSV")?.clone();
        let columns = Fields::new(&heads, &heads);
        let is_missing = |name: &&str| columns.find(name).is_none();
        let missing: Vec<&str> = KEYS.into_iter().filter(is_missing).collect();
        let lacking: Vec<&str> = NEEDED.into_iter().filter(is_missing).collect();
        if !lacking.is_empty() {
            bail!(
                "the heading lacks {}; a sweep has {}",
                lacking.join(", "),
                KEYS.join(", ")
            );
        }
        let metrics = Metric::value_variants().iter().copied();
        let is_there = |metric: &Metric| columns.find(metric.name()).is_some();
        let mut table = Table {
            rows: Vec::new(),
            metrics: metrics.filter(is_there).collect(),
            missing,
            skipped: Vec::new(),
        };
        for record in reader.records() {
            let record = record.context("not a CSV")?;
            match Fields::new(&heads, &record).row(&table.metrics) {
                Ok(row) => table.rows.push(row),
                Err(error) => {
                    let line = record.position().map_or(0, csv::Position::line);
                    table.skipped.push(format!("line {line}: {error}"));
                }
            }
        }
        Ok(table)
    }
}

/// The fields of a line, by column.
struct Fields<'a>(HashMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    /// Collects the fields of a line, of which the last ones may be missing.
    fn new(heads: &'a csv::StringRecord, line: &'a csv::StringRecord) -> Fields<'a> {
        let fields = line.iter().chain(std::iter::repeat(""));
        Fields(heads.iter().zip(fields).collect())
    }

    /// Returns the column with a sweep's name or that of `perf --csv`; `None` if both are missing.
    fn find(&self, name: &str) -> Option<&'a str> {
        let other = match name {
            "size_bytes" => "bytes",
            "busbw" => "busbw_gbps",
            "bandwidth_gbps" => "algbw_gbps",
            name => name,
        };
        self.0.get(name).or_else(|| self.0.get(other)).copied()
    }

    /// Returns the line's field; `None` if it is empty or its column is missing.
    fn field(&self, name: &str) -> Option<&'a str> {
        self.find(name).filter(|text| !text.is_empty())
    }

    fn text(&self, name: &str) -> Result<String> {
        let text = self.field(name).map(str::to_owned);
        text.with_context(|| format!("no {name}"))
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<T> {
        let text = self.text(name)?;
        let number = text.parse().ok();
        number.with_context(|| format!("{name} is `{text}`, not a number"))
    }

    /// Returns a number, or [`ANY`] if the file does not have the column.
    fn number_or_any(&self, name: &str) -> Result<i64> {
        self.find(name).map_or(Ok(ANY), |_| self.number(name))
    }

    /// Returns a time or a rate, which has to be positive; `None` if the field is empty.
    fn quantity(&self, name: &str) -> Result<Option<f64>> {
        if self.field(name).is_none() {
            return Ok(None);
        }
        let value: f64 = self.number(name)?;
        if !value.is_finite() || value <= 0.0 {
            bail!("{name} is {value}; it must be a positive number");
        }
        Ok(Some(value))
    }

    /// Returns the row, with every metric that it has.
    fn row(&self, metrics: &[Metric]) -> Result<Row> {
        let topic = Topic {
            collective: self.text("collective")?,
            nodes: self.number_or_any("nodes")?,
            ranks: self.number("ranks")?,
            group: self.number_or_any("pipeOps")?,
            registered: self.number_or_any("regBuff")?,
        };
        let way = Way {
            algorithm: self.text("algorithm")?,
            protocol: match self.find("protocol") {
                Some(_) => self.text("protocol")?,
                None => String::new(),
            },
            channels: self.number_or_any("channels")?,
        };
        let mut values = HashMap::new();
        for &metric in metrics {
            if let Some(value) = self.quantity(metric.name())? {
                values.insert(metric, value);
            }
        }
        let low = self.quantity("low_us")?;
        let high = self.quantity("high_us")?;
        let details = DETAILS.into_iter();
        let details = details.filter_map(|name| Some((name, self.field(name)?.to_owned())));
        Ok(Row {
            topic,
            details: details.collect(),
            bytes: self.number("size_bytes")?,
            way,
            asked: match self.field("asked") {
                None => Asked::Unsaid,
                Some("default") => Asked::Default,
                Some(_) => Asked::Way,
            },
            round: self.field("round").and_then(|n| n.parse().ok()),
            interval_us: low.zip(high),
            metrics: values,
        })
    }
}
