//! `tune optimize`: writes the best way for every size, by measurements, as rules of a tuner.
//!
//! Reads, prints and writes the same as the script beside NVIDIA's example plugin, with
//! corrections. The last range has no upper limit. The file is replaced, because rules of an
//! earlier run would precede and hide the new ones. Repetitions of a measurement count by their
//! median, not by the luckiest. In a range of several sizes, ways are compared size by size. A
//! metric that was not measured is an error. If a file records the default choice, as a sweep does,
//! rules are written only for the sizes at which `tune check` finds a wrong choice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::contest::{self, Points, Policy, Rule};
use super::findings::{MARGIN_PERCENT, wrong_sizes};
use super::ranges::{self, Range};
use super::rows::{Asked, Metric, PLACEMENT, Row, Table, Topic};
use super::series::series_by;
use crate::numbers::plural;
use crate::output;
use crate::status::usage;

/// Write a tuner's rules from a sweep: the best candidate where the default choice is wrong
///
/// Rules are written for the sizes at which `ringfold tune check` finds a wrong choice with the
/// same margin. A file without the default choice gets rules for all sizes.
///
/// Reads the files of `ringfold tune sweep`, and measurements of NCCL with the columns that the
/// script beside NVIDIA's example tuner plugin expects. The rules are for RINGFOLD_TUNER_CONFIG,
/// for ringfold's tuner plugin in NCCL, and for NVIDIA's example.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct OptimizeArguments {
    /// File of measurements
    csv: PathBuf,

    /// File for the rules; an existing file is replaced
    #[arg(short, long, value_name = "FILE", default_value = "tuned.csv")]
    output: PathBuf,

    /// Metric by which candidates are compared [default: median_us if the file has it, else
    /// latency_us]
    #[arg(short, long, value_name = "NAME")]
    metric: Option<Metric>,

    /// Write rules for these ranges of sizes, instead of a range around each size:
    /// 0-1024,1025-65536
    #[arg(long, value_name = "MIN-MAX,…", conflicts_with = "no_auto_ranges")]
    size_ranges: Option<String>,

    /// Write rules for five fixed ranges, with ends at 1 KiB, 64 KiB, 1 MiB and 16 MiB
    #[arg(long)]
    no_auto_ranges: bool,

    /// Accept a candidate up to this percentage worse than the best if that saves a rule
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = parse_percent)]
    tolerance: f64,

    /// Write rules only for sizes at which a candidate is better than the default choice by more
    /// than this percentage, with 95 % confidence, as in `tune check`
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = MARGIN_PERCENT,
        alias = "keep-default",
        value_parser = parse_percent
    )]
    margin: f64,

    /// Write rules for all sizes, even if the default choice is as good
    #[arg(long, conflicts_with = "margin")]
    every_size: bool,

    /// Print the rules instead of writing them
    #[arg(long)]
    dry_run: bool,

    /// Write no comments above the rules
    #[arg(long)]
    no_header: bool,
}

const EXAMPLES: &str = "\
Examples:
  ringfold tune optimize sweep.csv -o tuned.csv            by the median
  ringfold tune optimize sweep.csv --metric p99_us         by the slowest calls
  ringfold tune optimize sweep.csv --margin 10             where the default loses over 10 %
  ringfold tune optimize my_raw_data.csv -o nccl_tuner.conf --metric latency_us";

pub fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    let share = number.ok().filter(|number| (0.0..=100.0).contains(number));
    share.ok_or_else(|| "not a percentage; write for example 5".into())
}

/// Writes the rules, explains them, and returns the exit status.
pub fn run(arguments: &OptimizeArguments) -> Result<u8> {
    let table = Table::read(&arguments.csv)?;
    if !table.missing.is_empty() {
        bail!(
            "`{}` lacks the columns {}, which rules are made of; `ringfold tune sweep` writes them",
            arguments.csv.display(),
            table.missing.join(", ")
        );
    }
    let metric = metric(arguments, &table)?;
    let has_metric = |row: &&Row| row.metric(metric).is_some();
    let rows: Vec<&Row> = table.rows.iter().filter(has_metric).collect();
    if rows.iter().all(|row| row.asked == Asked::Default) {
        bail!(
            "no valid data found in `{}`: no row has a requested candidate, and {metric}",
            arguments.csv.display()
        );
    }
    let policy = Policy {
        ranges: fixed_ranges(arguments).map_err(usage)?,
        tolerance_percent: arguments.tolerance,
        wrong: wrong(arguments, &table, metric)?,
    };
    let mut text = match (&policy.ranges, arguments.no_auto_ranges) {
        (Some(_), true) => "Using default hardcoded size ranges\n".into(),
        (Some(ranges), false) => {
            let list: Vec<String> = ranges.iter().map(Range::to_string).collect();
            format!("Using custom size ranges: [{}]\n", list.join(", "))
        }
        (None, _) => {
            "Auto-ranging enabled: will create one bucket per unique size in data\n".into()
        }
    };
    // Writing to a string does not fail.
    let _ = writeln!(text, "Loaded {} performance data points", rows.len());
    complain_of_placements(&rows);
    let points = Points::new(&rows, metric)?;
    if policy.ranges.is_none() {
        text += &points.dimensions();
    }
    let separate = points.rules(&policy);
    let merged = contest::merge(&separate, metric);
    let (from, to) = (separate.len(), merged.len());
    if to < from {
        let saved = from - to;
        let _ = writeln!(
            text,
            "Combined {from} ranges into {to} ranges (reduced by {saved})"
        );
    }
    for rule in &merged {
        text += &explained(rule, metric);
    }
    if merged.is_empty() {
        let margin = arguments.margin;
        let _ = writeln!(
            text,
            "No rule is needed: no way is better than the default's by more than {margin} % with \
             95 % confidence"
        );
    }
    text += &conclude(arguments, metric, &merged)?;
    output::print(&text)?;
    Ok(0)
}

/// Returns the calls and sizes at which the default is wrong, if only these get rules.
fn wrong(
    arguments: &OptimizeArguments,
    table: &Table,
    metric: Metric,
) -> Result<Option<BTreeSet<(Topic, u64)>>> {
    let has_default = table.rows.iter().any(|row| row.asked == Asked::Default);
    if arguments.every_size || !has_default {
        return Ok(None);
    }
    let all = series_by(&table.rows, &[], |row| {
        let value = row.metric(metric)?;
        let interval_us = row.interval_us.filter(|_| metric == Metric::MedianUs);
        Some((metric.cost(value), interval_us))
    })?;
    Ok(Some(wrong_sizes(&all, arguments.margin / 100.0)))
}

/// Reports calls whose ranks were placed in several ways, which rules do not distinguish.
fn complain_of_placements(rows: &[&Row]) {
    let mut placements: BTreeMap<&Topic, BTreeSet<&str>> = BTreeMap::new();
    for row in rows {
        let known = placements.entry(&row.topic).or_default();
        known.extend(row.details.get(PLACEMENT).map(String::as_str));
    }
    for (topic, names) in placements.iter().filter(|(_, names)| names.len() > 1) {
        let names: Vec<&str> = names.iter().copied().collect();
        output::complain(&format!(
            "{} of {} ranks on {} hosts was measured with ranks placed in several ways ({}); a \
             rule is for all of them",
            topic.collective,
            topic.ranks,
            topic.nodes,
            names.join(", ")
        ));
    }
}

/// Returns the same ranges for all calls, if requested.
fn fixed_ranges(arguments: &OptimizeArguments) -> Result<Option<Vec<Range>>> {
    let Some(list) = &arguments.size_ranges else {
        return Ok(arguments.no_auto_ranges.then(|| ranges::FIXED.to_vec()));
    };
    let ranges = ranges::parse(list).with_context(|| {
        format!(
            "invalid size ranges format `{list}`; use 'min1-max1,min2-max2,...', rising and \
             without overlap"
        )
    })?;
    Ok(Some(ranges))
}

fn metric(arguments: &OptimizeArguments, table: &Table) -> Result<Metric> {
    let defaults = [Metric::MedianUs, Metric::LatencyUs];
    let metric = arguments
        .metric
        .or_else(|| defaults.into_iter().find(|m| table.metrics.contains(m)));
    if let Some(metric) = metric.filter(|metric| table.metrics.contains(metric)) {
        return Ok(metric);
    }
    let wanted = metric.unwrap_or(Metric::MedianUs);
    let there: Vec<&str> = table.metrics.iter().map(|metric| metric.name()).collect();
    let path = arguments.csv.display();
    match there.is_empty() {
        true => bail!("`{path}` has no column {wanted}, nor any other metric of candidates"),
        false => bail!(
            "`{path}` has no column {wanted}; choose --metric {}",
            there.join(" or ")
        ),
    }
}

fn explained(rule: &Rule, metric: Metric) -> String {
    let (topic, range, way) = (&rule.topic, rule.range, &rule.way);
    format!(
        "Optimal for {} [{}-{}] nodes={} ranks={}: {}/{} channels={} ({metric}={:.3})\n",
        topic.collective,
        range.min,
        range.max,
        topic.nodes,
        topic.ranks,
        way.algorithm,
        way.protocol,
        way.channels,
        rule.value,
    )
}

/// Writes or shows the rules, and describes the outcome.
fn conclude(arguments: &OptimizeArguments, metric: Metric, rules: &[Rule]) -> Result<String> {
    let lines: String = rules.iter().map(|rule| rule.line() + "\n").collect();
    if arguments.dry_run {
        return Ok(format!("\nGenerated configurations:\n{lines}"));
    }
    let path = &arguments.output;
    let shown = path.display();
    let header = match arguments.no_header {
        true => String::new(),
        false => format!(
            "# Optimized configurations generated by ringfold tune optimize\n\
             # Optimization metric: {metric}\n\
             # Format: collective_type,min_bytes,max_bytes,algorithm,protocol,channels,\
             nNodes,nRanks,numPipeOps,regBuff\n"
        ),
    };
    let mut text = String::new();
    if let Some(folder) = path.parent().filter(|folder| is_missing(folder)) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create `{}`", folder.display()))?;
        let _ = writeln!(text, "Created directory: {}", folder.display());
    }
    let _ = match path.exists() {
        true => writeln!(text, "Replacing file: {shown}"),
        false => writeln!(text, "Creating new file: {shown}"),
    };
    std::fs::write(path, header + &lines).with_context(|| format!("cannot write `{shown}`"))?;
    let rules = plural(rules.len(), "optimized configuration");
    let _ = writeln!(text, "Created {shown} with {rules}");
    Ok(text)
}

fn is_missing(folder: &Path) -> bool {
    !folder.as_os_str().is_empty() && !folder.exists()
}
