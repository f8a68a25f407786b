//! `--rows`: the constants of links and reductions from the measurements of `ringfold perf --csv`.
//!
//! Every row is an equation: its time is `hops·α + bytes·β + reduced·γ + (messages − hops)·o`, with
//! the counts of `tune::terms`. Least squares over all rows give the constants
//! (`tune::fit::least_squares`). Constants that the rows cannot distinguish are named.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringfold::internals::schedule::{Access, Schedule, Spec};
use ringfold::internals::tune::CostTerms;
use ringfold::internals::tune::fit::least_squares::{self, Coefficient};
use ringfold::{Collective, Method};
use serde::Deserialize;

use crate::numbers::significant;
use crate::output;
use crate::parse::{parse_algorithm, parse_collective};

/// The constants in order of importance (of two that the rows cannot distinguish, the later one is
/// omitted): sign, setting of `ringfold sim`, unit.
const CONSTANTS: [(&str, &str, &str); 4] = [
    ("α", "alpha", "us"),
    ("β", "bandwidth", PER_BYTE),
    ("γ", "reduce_rate", PER_BYTE),
    ("o", "overhead", "us"),
];

/// The unit of costs per byte.
const PER_BYTE: &str = "us/B";

/// The columns of `perf --csv` that the fit reads.
#[derive(Debug, Deserialize)]
struct PerfLine {
    collective: String,
    algorithm: String,
    transport: String,
    ranks: u32,
    bytes: u64,
    median_us: f64,
    /// Only with `--device`.
    #[serde(default)]
    limit_us: Option<f64>,
}

/// A time in microseconds, and the count of each of [`CONSTANTS`].
type Equation = (f64, [f64; CONSTANTS.len()]);

/// Reasons to leave rows out, and the number of rows of each.
type LeftOut = Vec<(String, usize)>;

/// Fits the constants, and prints them with their standard errors and as settings.
pub fn run(path: &Path) -> Result<()> {
    let name = path.display();
    let (rows, left_out) = read(path).with_context(|| format!("`{name}`"))?;
    let times: Vec<f64> = rows.iter().map(|(us, _)| *us).collect();
    let column = |at: usize| rows.iter().map(|(_, counts)| counts[at]).collect();
    let columns: Vec<Vec<f64>> = (0..CONSTANTS.len()).map(column).collect();
    let Some(fit) = least_squares::fit(&columns, &times) else {
        bail!(
            "`{name}`: {} rows over messages are too few for a fit",
            rows.len()
        );
    };
    let mut text = format!("# {} rows\n", rows.len());
    for (why, count) in left_out {
        writeln!(text, "# left out {count}: {why}")?;
    }
    let mut settings = Vec::new();
    text += "#      value          standard error\n";
    for ((sign, key, unit), value) in CONSTANTS.iter().zip(&fit.values) {
        let (shown, remark) = match *value {
            Coefficient::Absent => continue,
            Coefficient::Fitted { value, error } => {
                settings.push(format!("--set {key}={}", setting(unit, value)));
                (significant(value), significant(error))
            }
            Coefficient::Inseparable { from } => {
                settings.push(format!("--set {key}={}", setting(unit, 0.0)));
                let other = CONSTANTS[from].0;
                (
                    "-".into(),
                    format!(
                        "inseparable from {other}, which holds both; measure other \
                    collectives or algorithms, too"
                    ),
                )
            }
        };
        writeln!(text, "  {sign}  {shown:>12} {unit:<4}  {remark}")?;
    }
    writeln!(
        text,
        "# R² {:.6}; a row is off by {:.1} % on average and {:.1} % at most\nringfold sim {}",
        fit.r_squared,
        100.0 * fit.mean_error,
        100.0 * fit.worst_error,
        settings.join(" "),
    )?;
    output::print(&text)
}

/// The value of a setting of the simulator, which has no time below half a picosecond per byte.
fn setting(unit: &str, value_us: f64) -> String {
    match (unit, value_us * 1e6) {
        (PER_BYTE, ps) if ps < 0.5 => "unlimited".into(),
        (PER_BYTE, ps) => format!("{}GB/s", significant(1e3 / ps)),
        _ => format!("{}us", significant(value_us)),
    }
}

/// Reads the rows whose time has a closed form over messages, and the reasons why others have none.
fn read(path: &Path) -> Result<(Vec<Equation>, LeftOut)> {
    let mut reader = csv::Reader::from_path(path)?;
    let (mut rows, mut left_out) = (Vec::new(), LeftOut::new());
    for line in reader.deserialize() {
        let line: PerfLine = line.context("not a file of `ringfold perf --csv`")?;
        match equation(&line) {
            Ok(row) => rows.push(row),
            Err(why) => match left_out.iter_mut().find(|(known, _)| *known == why) {
                Some((_, count)) => *count += 1,
                None => left_out.push((why, 1)),
            },
        }
    }
    if rows.is_empty() {
        let whys = left_out
            .iter()
            .map(|(why, count)| format!("{count}: {why}"));
        bail!(
            "no row went over messages ({}); measure with `--algorithm ring` or `--transport tcp`",
            whys.collect::<Vec<_>>().join("; ")
        );
    }
    Ok((rows, left_out))
}

/// The equation of a line, or the reason why it has none.
fn equation(line: &PerfLine) -> Result<Equation, String> {
    if line.limit_us.is_some() {
        return Err("data on devices, most of whose time may be that of its copies".into());
    }
    let collective = parse_collective(&line.collective).map_err(|error| error.to_string())?;
    let algorithm =
        parse_algorithm(&line.algorithm).map_err(|_| format!("algorithm `{}`", line.algorithm))?;
    if is_published(collective, algorithm, &line.transport) {
        return Err(format!(
            "{algorithm} over published memory, which has other constants"
        ));
    }
    let spec = Spec::new(collective, algorithm, Access::Messages, line.ranks);
    let CostTerms { hops, busiest, .. } =
        CostTerms::of(&spec).ok_or_else(|| format!("{algorithm} has no closed form"))?;
    if line.median_us <= 0.0 || line.ranks < 2 {
        return Err("nothing was sent".into());
    }
    let size = line.bytes as f64;
    let counts = [
        hops,
        busiest.bytes * size,
        busiest.reduced * size,
        busiest.messages - hops,
    ];
    Ok((line.median_us, counts))
}

/// Whether ranks of one host used published memory, as every algorithm does there that can.
fn is_published(collective: Collective, algorithm: Method, transport: &str) -> bool {
    let uses = |access: &Access| Schedule::exists(collective, algorithm, *access);
    transport == "shm" && [Access::Staged, Access::Registered].iter().any(uses)
}
