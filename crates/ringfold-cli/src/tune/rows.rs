//! What was measured, as lines of a CSV: those that `tune sweep` and `perf --csv` write, and those of NCCL's users.
//!
//! A file's columns are found by name, in any order; columns of others are left alone. A number that makes no sense makes
//! its row worthless, which is said, and the rest is used: a sweep that was broken off has half a line at its end.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

/// What a way is judged by.
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
    pub const ALL: [Metric; 5] = [
        Metric::MedianUs,
        Metric::P99Us,
        Metric::Busbw,
        Metric::LatencyUs,
        Metric::BandwidthGbps,
    ];

    /// The column's name in a sweep; `perf --csv` names the unit of the bus bandwidth.
    pub fn name(self) -> &'static str {
        match self {
            Metric::MedianUs => "median_us",
            Metric::P99Us => "p99_us",
            Metric::Busbw => "busbw",
            Metric::LatencyUs => "latency_us",
            Metric::BandwidthGbps => "bandwidth_gbps",
        }
    }

    /// Whether more of it is better.
    pub fn is_rate(self) -> bool {
        matches!(self, Metric::Busbw | Metric::BandwidthGbps)
    }

    /// Whether `a` is better than `b`.
    pub fn is_better(self, a: f64, b: f64) -> bool {
        match self.is_rate() {
            true => a > b,
            false => a < b,
        }
    }

    /// How many times worse `value` is than `best`: 1 where it is as good.
    pub fn loss(self, value: f64, best: f64) -> f64 {
        match self.is_rate() {
            true => best / value,
            false => value / best,
        }
    }
}

impl Display for Metric {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one call is, as far as a tuner's rules tell calls apart; names as the file has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic {
    pub collective: String,
    pub nodes: i64,
    pub ranks: i64,
    pub group: i64,
    pub registered: i64,
}

/// How a call is carried out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    pub algorithm: String,
    pub protocol: String,
    pub channels: i64,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Row {
    pub topic: Topic,
    pub bytes: u64,
    pub way: Way,
    /// Whether nobody asked for this way: it is what the library picked by itself.
    pub is_default: bool,
    metrics: HashMap<Metric, f64>,
}

impl Row {
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        self.metrics.get(&metric).copied()
    }
}

/// What a file holds.
#[derive(Clone, Debug)]
pub struct Table {
    pub rows: Vec<Row>,
    /// What its rows can be judged by.
    pub metrics: Vec<Metric>,
    /// Why lines were left out, each with its number.
    pub skipped: Vec<String>,
}

/// Columns that a tuner's rules are made of.
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

impl Table {
    /// Reads a sweep, or what NCCL's users have measured with the columns of NVIDIA's script.
    pub fn read(path: &Path) -> Result<Table> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        Table::parse(&text).with_context(|| format!("`{}`", path.display()))
    }

    fn parse(text: &str) -> Result<Table> {
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .trim(csv::Trim::All)
            .comment(Some(b'#'))
            .from_reader(text.as_bytes());
        let heads = reader.headers().context("not a CSV")?.clone();
        let columns = Columns::new(&heads)?;
        let metrics: Vec<Metric> = Metric::ALL
            .into_iter()
            .filter(|&metric| columns.find(metric.name()).is_some())
            .collect();
        let mut table = Table {
            rows: Vec::new(),
            metrics,
            skipped: Vec::new(),
        };
        for record in reader.records() {
            let record = record.context("not a CSV")?;
            match columns.row(&record, &table.metrics) {
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

/// Where each column stands.
struct Columns(HashMap<String, usize>);

impl Columns {
    fn new(heads: &csv::StringRecord) -> Result<Columns> {
        let places = heads.iter().enumerate();
        let columns = Columns(places.map(|(at, name)| (name.to_owned(), at)).collect());
        let missing: Vec<&str> = KEYS
            .into_iter()
            .filter(|name| columns.find(name).is_none())
            .collect();
        if !missing.is_empty() {
            bail!(
                "the heading lacks {}; a sweep has {}",
                missing.join(", "),
                KEYS.join(", ")
            );
        }
        Ok(columns)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }

    fn text<'a>(&self, record: &'a csv::StringRecord, name: &str) -> Result<&'a str> {
        let place = self.find(name).and_then(|at| record.get(at));
        match place {
            Some("") | None => bail!("no {name}"),
            Some(text) => Ok(text),
        }
    }

    fn number<T: std::str::FromStr>(&self, record: &csv::StringRecord, name: &str) -> Result<T> {
        let text = self.text(record, name)?;
        text.parse()
            .ok()
            .with_context(|| format!("{name} is `{text}`, not a number"))
    }

    /// The row, with every metric that it has.
    fn row(&self, record: &csv::StringRecord, metrics: &[Metric]) -> Result<Row> {
        let topic = Topic {
            collective: self.text(record, "collective")?.to_owned(),
            nodes: self.number(record, "nodes")?,
            ranks: self.number(record, "ranks")?,
            group: self.number(record, "pipeOps")?,
            registered: self.number(record, "regBuff")?,
        };
        let way = Way {
            algorithm: self.text(record, "algorithm")?.to_owned(),
            protocol: self.text(record, "protocol")?.to_owned(),
            channels: self.number(record, "channels")?,
        };
        let mut values = HashMap::new();
        for &metric in metrics {
            if self.text(record, metric.name()).is_err() {
                continue;
            }
            let value: f64 = self.number(record, metric.name())?;
            if !value.is_finite() || value <= 0.0 {
                bail!("{metric} is {value}, which nothing can take");
            }
            values.insert(metric, value);
        }
        Ok(Row {
            topic,
            bytes: self.number(record, "size_bytes")?,
            way,
            is_default: self
                .text(record, "asked")
                .is_ok_and(|asked| asked == "default"),
            metrics: values,
        })
    }
}
