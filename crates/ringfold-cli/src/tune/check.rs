//! `tune check`: reports where a curve is not the S that it should be, and the better ways there.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::findings::{Better, Finding, FindingKind, MARGIN_PERCENT, findings};
use super::optimize::parse_percent;
use super::rows::{Row, Table};
use super::series::{self, Series};
use crate::numbers::{bytes_label, number};
use crate::output;
use crate::statistics::{self, Estimate};

/// Report where a curve shows a wrong choice: dips, plateaus below the maximum, wrong crossovers
///
/// A curve is the bus bandwidth over the size, from a file of `ringfold tune sweep` or `ringfold
/// perf --csv`. With a sweep, or with --ways, names the better candidate (algorithm and protocol).
/// A dip at which no candidate is better is only noted, as a property of the machine. Differences
/// count if they exceed the margin with 95 % confidence. So provide repetitions (a sweep's rounds,
/// `perf --run-cycles 6`): the iterations of one run do not show the variation between runs.
///
/// The exit status is 1 if there is a finding that another candidate may fix, or if a file cannot
/// be read, and otherwise 0. The last line suggests the next step.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArguments {
    /// The curve: the default choice of a sweep, or a file of `perf --csv`
    csv: PathBuf,

    /// Files of measurements of other candidates at the same sizes, to compare with the curve
    #[arg(long, value_name = "FILE", num_args = 1..)]
    ways: Vec<PathBuf>,

    /// Ignore differences up to this percentage
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = MARGIN_PERCENT,
        value_parser = parse_percent,
    )]
    margin: f64,

    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ringfold perf --run-cycles 6 --csv perf.csv; ringfold tune check perf.csv
  ringfold tune check sweep.csv                          the default choice against all candidates
  ringfold tune check perf.csv --ways sweep.csv --margin 10";

/// Prints the findings, and returns 1 if another way may fix one of them.
pub fn run(arguments: &CheckArguments) -> Result<u8> {
    let table = Table::read(&arguments.csv)?;
    let mut ways: Vec<Row> = Vec::new();
    for path in &arguments.ways {
        ways.extend(Table::read(path)?.rows);
    }
    let all = series::series(&table.rows, &ways)?;
    let judged: Vec<(&Series, Vec<Finding>)> = all
        .iter()
        .filter(|series| series.measured().next().is_some())
        .map(|series| (series, findings(series, arguments.margin / 100.0)))
        .collect();
    if judged.is_empty() {
        bail!(
            "`{}` has no curve: no row is the default's pick and has a time",
            arguments.csv.display()
        );
    }
    let text = match arguments.json {
        true => format!("{:#}\n", document(&judged)),
        false => report(&judged, arguments.margin) + &next_step(&judged, arguments),
    };
    output::print(&text)?;
    Ok(u8::from(faults(&judged).next().is_some()))
}

/// Returns the findings of all series that another way may fix.
fn faults<'a>(judged: &'a [(&Series, Vec<Finding>)]) -> impl Iterator<Item = &'a Finding> {
    let found = judged.iter().flat_map(|(_, found)| found);
    found.filter(|finding| finding.is_fault)
}

fn report(judged: &[(&Series, Vec<Finding>)], margin: f64) -> String {
    let mut text = String::new();
    for (series, found) in judged {
        text += &heading(series);
        for finding in found {
            text += &sentence(series, finding);
        }
        let faults = found.iter().filter(|finding| finding.is_fault).count();
        let remarks = found.len() - faults;
        // Writing to a string does not fail.
        let _ = match (faults, remarks) {
            (0, 0) => writeln!(text, "  nothing beyond {margin} %"),
            (0, _) => writeln!(text, "  nothing that another way fixes"),
            _ => Ok(()),
        };
    }
    let counts = [
        FindingKind::Dip,
        FindingKind::Plateau,
        FindingKind::Inversion,
        FindingKind::WrongChoice,
    ]
    .map(|kind| {
        let count = faults(judged).filter(|fault| fault.kind == kind).count();
        let plural = if count == 1 { "" } else { "s" };
        (count > 0).then(|| format!("{count} {}{plural}", kind.name()))
    });
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    if !counts.is_empty() {
        let _ = writeln!(text, "{}", counts.join(", "));
    }
    text
}

/// Suggests the next step after the findings.
fn next_step(judged: &[(&Series, Vec<Finding>)], arguments: &CheckArguments) -> String {
    let mut faults = faults(judged).peekable();
    if faults.peek().is_none() {
        return String::new();
    }
    let has_better = faults.any(|finding| !finding.better.is_empty());
    let has_ways = judged.iter().any(|(series, _)| !series.ways().is_empty());
    match (has_better, has_ways, arguments.ways.is_empty()) {
        (true, _, true) => format!(
            "next: `ringfold tune optimize {} -o tuned.csv` writes rules for the wrong choices\n",
            arguments.csv.display()
        ),
        (true, _, false) => "next: `ringfold tune sweep -o sweep.csv` measures all ways in one \
            job, and \
             `ringfold tune optimize sweep.csv` writes rules\n"
            .into(),
        (false, true, _) => "next: sweep the sizes named above, too; other ways were not measured \
            at all of them\n"
            .into(),
        (false, false, _) => "next: no other way was measured, so this may be a property of the \
            machine; to find out, run `ringfold tune sweep -o sweep.csv` and `ringfold tune check \
            sweep.csv`\n"
            .into(),
    }
}

/// Describes the curve, and the certainty of its points.
fn heading(series: &Series) -> String {
    let measured = series.measured();
    let repeats = measured.clone().map(|(_, point)| point.curve.0.len());
    let repeats = repeats.min().unwrap_or(0);
    let mut shots = measured.clone().flat_map(|(_, point)| &point.curve.0);
    let has_intervals = shots.all(|shot| shot.interval_us.is_some());
    let ways = series.ways().len();
    let mut text = format!("{}: {} sizes", series.name(), measured.count());
    if ways > 0 {
        let _ = write!(text, ", {ways} candidates");
    }
    let _ = match (repeats, has_intervals) {
        (n, _) if statistics::are_enough(n) => writeln!(text, ", {n} rounds"),
        (1, true) => writeln!(
            text,
            ", one run only: the intervals leave out run-to-run variation"
        ),
        (1, false) => writeln!(
            text,
            ", one value each; noise cannot be distinguished from change"
        ),
        (n, _) => writeln!(text, ", {n} rounds; too few for 95 %, so all must agree"),
    };
    text
}

/// Describes a finding in one line; a wrong choice has a line for each size, too.
fn sentence(series: &Series, finding: &Finding) -> String {
    let label = |bytes: u64| bytes_label(bytes as f64);
    let (from, to) = (label(finding.from_bytes), label(finding.to_bytes));
    let sizes = match finding.from_bytes == finding.to_bytes {
        true => from,
        false => format!("{from} to {to}"),
    };
    let against = finding.against_bytes.map(label).unwrap_or_default();
    let what = match finding.kind {
        FindingKind::Dip => format!(
            "{} less bandwidth than at {against}",
            percent_below(finding.ratio)
        ),
        FindingKind::Plateau => format!(
            "no more than at {against}: {} GB/s, and {} GB/s later",
            number(busbw_at(series, finding.from_bytes), 6),
            number(top(series, finding.to_bytes), 6),
        ),
        FindingKind::Inversion => {
            format!("takes {} times as long as {against}", factor(finding.ratio))
        }
        FindingKind::WrongChoice => return wrong_choice(&sizes, finding),
    };
    let mut text = format!("  {:<13} {sizes}: {what}", finding.kind.name());
    if !finding.is_fault {
        text += "; no way is better there, so this is a property of the machine";
    }
    for (at, Better { way, .. }) in finding.better.iter().enumerate() {
        if finding.better[..at].iter().all(|named| named.way != *way) {
            let _ = write!(text, "; better: {way}");
        }
    }
    text + "\n"
}

fn wrong_choice(sizes: &str, finding: &Finding) -> String {
    let first = &finding.better[0];
    let pick = match &first.pick {
        Some(pick) => pick.to_string(),
        None => "the default".into(),
    };
    let mut text = format!(
        "  {:<13} {sizes}: {pick} takes up to {} times as long as {}\n",
        finding.kind.name(),
        factor(finding.ratio),
        first.way,
    );
    for better in &finding.better {
        let _ = writeln!(
            text,
            "  {:<13}   {:>9}: {:>9} us, {} us by {}",
            "",
            bytes_label(better.bytes as f64),
            number(better.curve_us, 9),
            number(better.way_us, 9),
            better.way,
        );
    }
    text
}

/// Formats a ratio: `1.98 (1.90 to 2.05)`.
fn factor(ratio: Estimate) -> String {
    format!(
        "{:.2} ({:.2} to {:.2})",
        ratio.middle, ratio.low, ratio.high
    )
}

/// Formats a loss: `38 % (35 to 41)`.
fn percent_below(ratio: Estimate) -> String {
    let below = |share: f64| 100.0 * (1.0 - share);
    format!(
        "{:.0} % ({:.0} to {:.0})",
        below(ratio.middle),
        below(ratio.high),
        below(ratio.low)
    )
}

fn busbw_at(series: &Series, bytes: u64) -> f64 {
    let point = series.points.get(&bytes);
    point.map_or(0.0, |point| {
        series.busbw_gbps(bytes, point.curve.median_us())
    })
}

/// Returns the highest bandwidth at larger sizes.
fn top(series: &Series, after: u64) -> f64 {
    let curve = series.curve().into_iter();
    let later = curve.filter(|(bytes, _)| *bytes > after);
    later
        .map(|(bytes, time)| series.busbw_gbps(bytes, time.middle))
        .fold(0.0, f64::max)
}

fn document(judged: &[(&Series, Vec<Finding>)]) -> Value {
    let series = judged
        .iter()
        .map(|(series, found)| json!({ "series": series.name(), "findings": found }));
    json!({ "series": series.collect::<Vec<_>>() })
}
