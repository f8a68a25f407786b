//! `--calibrate`: the constants of links and reductions, from the measurements of
//! `ringfold perf --csv`.
//!
//! Every row is an equation: its time is `hops·α + (messages − hops)·o + bytes·β + reduced·γ`, with
//! the counts of `tune::terms`. Least squares over all rows give the constants (`least_squares`).
//! If the file cannot distinguish two constants, this is reported instead of guessed, and constants
//! given by a flag are not fitted.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringfold::internals::schedule::{Access, Schedule, Spec};
use ringfold::internals::tune::Terms;
use ringfold::internals::tune::fit::least_squares::{self, Fit, Value};
use ringfold::{Collective, Method};
use serde::Deserialize;
use serde_json::json;

use super::arguments::Arguments;
use crate::numbers::{bytes_label, significant};
use crate::output;
use crate::parse::{parse_algorithm, parse_collective};

/// Rows with the largest errors that are shown.
const WORST_ROWS: usize = 5;

/// From here on a constant's standard error is said to make it worthless.
const VAGUE_SHARE: f64 = 0.5;

/// The columns of `perf --csv` that matter here.
#[derive(Debug, Deserialize)]
struct Line {
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

/// A measurement that has a closed form.
struct Row {
    name: String,
    time_us: f64,
    /// What each of [`CONSTANTS`] counts.
    counts: [f64; CONSTANTS.len()],
}

/// A constant of the model, in order of importance: of two indistinguishable ones, the later is
/// omitted.
struct Constant {
    sign: &'static str,
    flag: &'static str,
    unit: &'static str,
}

/// The unit of what is for each byte.
const PER_BYTE: &str = "us/B";

const CONSTANTS: [Constant; 4] = [
    constant("α", "--alpha", "us"),
    constant("β", "--bandwidth", PER_BYTE),
    constant("γ", "--reduce-rate", PER_BYTE),
    constant("o", "--overhead", "us"),
];

const fn constant(sign: &'static str, flag: &'static str, unit: &'static str) -> Constant {
    Constant { sign, flag, unit }
}

/// What a file holds.
struct Rows {
    rows: Vec<Row>,
    /// Why rows were left out, and how many.
    left_out: Vec<(String, usize)>,
}

/// Fits, and prints the constants as flags.
pub fn run(path: &Path, arguments: &Arguments) -> Result<()> {
    let name = path.display();
    let read = read(path).with_context(|| format!("`{name}`"))?;
    let known = known(arguments);
    let times: Vec<f64> = read
        .rows
        .iter()
        .map(|row| row.time_us - given(row, &known))
        .collect();
    if let Some(at) = times.iter().position(|&time| time <= 0.0) {
        bail!(
            "`{name}`: the constants that were given take longer than {} was measured to: {} us",
            read.rows[at].name,
            significant(read.rows[at].time_us),
        );
    }
    let columns: Vec<Vec<f64>> = (0..CONSTANTS.len())
        .map(|at| match known[at] {
            Some(_) => vec![0.0; times.len()],
            None => read.rows.iter().map(|row| row.counts[at]).collect(),
        })
        .collect();
    let Some(fit) = least_squares::fit(&columns, &times) else {
        bail!(
            "`{name}`: {} rows over messages are too few to fit anything",
            times.len()
        );
    };
    if let Some(json) = &arguments.json {
        write_json(json, &fit, &known, &read)?;
    }
    if !arguments.stdout_is_data() {
        output::print(&report(&fit, &known, &read))?;
    }
    Ok(())
}

/// Reads the rows whose time has a closed form over messages.
fn read(path: &Path) -> Result<Rows> {
    let mut reader = csv::Reader::from_path(path)?;
    let mut read = Rows {
        rows: Vec::new(),
        left_out: Vec::new(),
    };
    for line in reader.deserialize() {
        let line: Line = line.context("not what `ringfold perf --csv` writes")?;
        match equation(&line) {
            Ok(row) => read.rows.push(row),
            Err(why) => match read.left_out.iter_mut().find(|(said, _)| *said == why) {
                Some((_, count)) => *count += 1,
                None => read.left_out.push((why, 1)),
            },
        }
    }
    if read.rows.is_empty() {
        let why: Vec<String> = read
            .left_out
            .into_iter()
            .map(|(why, count)| format!("{count}: {why}"))
            .collect();
        bail!(
            "no row went over messages ({}); measure with `--algorithm ring` or `--transport tcp`",
            why.join("; ")
        );
    }
    Ok(read)
}

/// A line as an equation, or why it is none.
fn equation(line: &Line) -> Result<Row, String> {
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
    let Terms { hops, busiest, .. } =
        Terms::of(&spec).ok_or_else(|| format!("{algorithm} has no closed form"))?;
    if line.median_us <= 0.0 || line.ranks < 2 {
        return Err("nothing was sent".into());
    }
    let size = line.bytes as f64;
    Ok(Row {
        name: format!(
            "{collective} by {algorithm}, {} ranks, {}",
            line.ranks,
            bytes_label(size)
        ),
        time_us: line.median_us,
        counts: [
            hops,
            busiest.bytes * size,
            busiest.reduced * size,
            busiest.messages - hops,
        ],
    })
}

/// Whether ranks of one host used published memory, as an algorithm does there if it can.
fn is_published(collective: Collective, algorithm: Method, transport: &str) -> bool {
    transport == "shm"
        && [Access::Staged, Access::Registered]
            .iter()
            .any(|access| Schedule::exists(collective, algorithm, *access))
}

/// Constants that flags give, in microseconds.
fn known(arguments: &Arguments) -> [Option<f64>; CONSTANTS.len()] {
    let (network, compute) = (&arguments.settings.network, &arguments.settings.compute);
    let known_ps = [
        network.alpha.map(|time| time.ps),
        network.bandwidth.map(|rate| rate.ps_per_byte),
        compute.reduce_rate.map(|rate| rate.ps_per_byte),
        network.overhead.map(|time| time.ps),
    ];
    known_ps.map(|ps| Some(ps? as f64 / 1e6))
}

/// What the known constants explain of a row.
fn given(row: &Row, known: &[Option<f64>]) -> f64 {
    let terms = row.counts.iter().zip(known);
    terms
        .map(|(count, known)| count * known.unwrap_or(0.0))
        .sum()
}

/// A constant as its flag takes it.
fn flag_value(constant: &Constant, value_us: f64) -> String {
    if constant.unit != PER_BYTE {
        return format!("{}us", significant(value_us));
    }
    // Below half a picosecond a byte the simulator has no time for it.
    match value_us * 1e6 {
        ps if ps < 0.5 => "unlimited".into(),
        ps => format!("{}GB/s", significant(1e3 / ps)),
    }
}

/// What became of a constant.
struct Outcome {
    constant: &'static Constant,
    /// In microseconds, where there is a value.
    value: Option<f64>,
    /// Its standard error, where it was fitted.
    error: Option<f64>,
    how: &'static str,
    /// What stands behind the value.
    remark: String,
    /// What to make of a constant that the rows hardly show.
    note: String,
}

fn outcomes(fit: &Fit, known: &[Option<f64>]) -> Vec<Outcome> {
    let values = fit.values.iter().zip(known);
    let constants = CONSTANTS.iter().zip(values);
    constants
        .map(|(constant, (value, known))| outcome(constant, *known, *value))
        .collect()
}

fn outcome(constant: &'static Constant, known: Option<f64>, value: Value) -> Outcome {
    let sign = constant.sign;
    let outcome = Outcome {
        constant,
        value: None,
        error: None,
        how: "absent",
        remark: "no row depends on it".into(),
        note: String::new(),
    };
    match (known, value) {
        (Some(known), _) => Outcome {
            value: Some(known),
            how: "given",
            remark: "given".into(),
            ..outcome
        },
        (None, Value::Absent) => outcome,
        (None, Value::Fitted { value, error }) => Outcome {
            value: Some(value),
            error: Some(error),
            how: "fitted",
            remark: significant(error),
            note: match value {
                0.0 => format!(
                    "# {sign} would be below 0, so it is 0: what it stands for does not show in \
                     these rows\n"
                ),
                _ if error > VAGUE_SHARE * value => format!(
                    "# {sign} is hardly more than its standard error: measure more sizes where it \
                     weighs\n"
                ),
                _ => String::new(),
            },
            ..outcome
        },
        (None, Value::Inseparable { from }) => Outcome {
            how: "inseparable",
            remark: format!("cannot be told from {}", CONSTANTS[from].sign),
            note: format!(
                "# all rows depend on {sign} as they do on {}, which holds both; measure other \
                 collectives or algorithms, too, or give {}\n",
                CONSTANTS[from].sign, constant.flag,
            ),
            ..outcome
        },
    }
}

fn report(fit: &Fit, known: &[Option<f64>], read: &Rows) -> String {
    let mut text = format!("# {} rows\n", read.rows.len());
    for (why, count) in &read.left_out {
        let _ = writeln!(text, "# left out {count}: {why}");
    }
    text += "#      value          standard error\n";
    let outcomes = outcomes(fit, known);
    for outcome in &outcomes {
        let Constant { sign, unit, .. } = outcome.constant;
        let number = outcome.value.map_or("-".into(), significant);
        let _ = writeln!(text, "  {sign}  {number:>12} {unit:<4}  {}", outcome.remark);
    }
    let _ = writeln!(
        text,
        "# R² {:.6}; a row is off by {:.1} % on average and {:.1} % at most",
        fit.r_squared,
        100.0 * fit.mean_error,
        100.0 * fit.worst_error,
    );
    text.extend(outcomes.iter().map(|outcome| outcome.note.as_str()));
    text += &worst(fit, known, read);
    text + &flags(&outcomes) + "\n"
}

/// The rows that the constants explain least.
fn worst(fit: &Fit, known: &[Option<f64>], read: &Rows) -> String {
    let mut text = "#\n# rows that fit least                                       measured \
        (us)    fitted (us)\n"
        .to_owned();
    let mut rows: Vec<(f64, f64, &Row)> = read
        .rows
        .iter()
        .zip(&fit.predicted)
        .map(|(row, predicted)| {
            let predicted = predicted + given(row, known);
            (predicted / row.time_us - 1.0, predicted, row)
        })
        .collect();
    rows.sort_by(|one, other| other.0.abs().total_cmp(&one.0.abs()));
    for (error, predicted, row) in rows.into_iter().take(WORST_ROWS) {
        let _ = writeln!(
            text,
            "#   {:<54}  {:>14.3} {predicted:>14.3}  {:+.1} %",
            row.name,
            row.time_us,
            100.0 * error,
        );
    }
    text + "#\n"
}

/// All constants as flags of `ringfold sim`.
fn flags(outcomes: &[Outcome]) -> String {
    let shown = outcomes.iter().filter(|outcome| outcome.how != "absent");
    let flags: Vec<String> = shown
        .map(
            |Outcome {
                 constant, value, ..
             }| {
                let value = flag_value(constant, value.unwrap_or(0.0));
                format!("{} {value}", constant.flag)
            },
        )
        .collect();
    flags.join(" ")
}

fn write_json(path: &Path, fit: &Fit, known: &[Option<f64>], read: &Rows) -> Result<()> {
    let outcomes = outcomes(fit, known);
    let constant = |outcome: &Outcome| {
        json!({
            "sign": outcome.constant.sign, "value": outcome.value,
            "standard_error": outcome.error, "unit": outcome.constant.unit, "how": outcome.how,
        })
    };
    let document = json!({
        "constants": outcomes.iter().map(constant).collect::<Vec<_>>(),
        "r_squared": fit.r_squared,
        "mean_error": fit.mean_error,
        "worst_error": fit.worst_error,
        "rows": read.rows.len(),
        "flags": flags(&outcomes),
    });
    output::write_json(output::open(path)?, &document)
}
