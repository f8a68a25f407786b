//! The table of `ringfold top`: columns, rows and their order.

use ringfold::internals::board::{Picture, Waiting};

use super::jobs::{Process, RunningJob, Sample};
use super::rates::Rates;
use crate::numbers::{bytes_label, number, plural, time};

/// The columns' heads and widths; the last column takes the rest of the line.
const COLUMNS: [(&str, usize); 9] = [
    ("rank", 5),
    ("pid", 8),
    ("host", 12),
    ("calls/s", 9),
    ("GB/s", 7),
    ("wait%", 6),
    ("late%", 6),
    ("late by", 8),
    ("call", 0),
];

/// The column that is aligned to the left.
const FIRST_TEXT_COLUMN: usize = COLUMNS.len() - 1;

/// The texts of a row.
type Cells = [String; COLUMNS.len()];

/// Length of a wait from which on the row says what the rank waits for.
const LONG_NS: u64 = 500_000_000;

/// The order of a table's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// By rank
    #[default]
    Rank,
    /// The rank that was last most often, first
    Late,
    /// The rank that waited longest, first
    Wait,
    /// The rank with the most calls per second, first
    Calls,
}

/// Shown if there is no job.
pub const NO_JOB: &str = "no running job of this user on this host; a job is visible from when its \
    ranks have joined, unless it runs with RINGFOLD_BOARD=0, in another process namespace, or as \
    another user";

/// The line above a job's rows.
fn heading(job: &RunningJob) -> String {
    let here = job.processes.len();
    let ranks = match here == job.world_size {
        true => plural(here, "rank"),
        false => format!("{here} of {} on this host", plural(job.world_size, "rank")),
    };
    let transport = job.processes.first().and_then(Process::busiest);
    let transport = transport.map_or("", |board| &board.transport);
    format!(
        "job {}  {}  {ranks}  {transport}",
        job.name(),
        job.program()
    )
}

/// The cells of a job's rows.
fn rows(before: &Sample, now: &Sample, job: &RunningJob, order: Order) -> Vec<Cells> {
    let rates = |process| Rates::since(before, now, job, process);
    let mut rated: Vec<_> = job
        .processes
        .iter()
        .map(|process| (process, rates(process)))
        .collect();
    let key = |rates: &Option<Rates>| {
        let of = rates.unwrap_or_default();
        match order {
            Order::Rank => 0.0,
            Order::Late => -of.late.unwrap_or_default(),
            Order::Wait => -of.waited,
            Order::Calls => -of.calls_per_s,
        }
    };
    // Stable: equals stay in the order of ranks.
    rated.sort_by(|(_, one), (_, other)| key(one).total_cmp(&key(other)));
    let row = |(process, rates)| row(process, rates, now.at_ns);
    rated.into_iter().map(row).collect()
}

fn row(process: &Process, rates: Option<Rates>, at_ns: u64) -> Cells {
    let rate = |value: fn(&Rates) -> f64, width: usize| {
        rates.map_or("-".into(), |rates| number(value(&rates), width))
    };
    let percent = |value: Option<f64>| value.map_or("-".into(), |v| format!("{:.0}", 100.0 * v));
    let board = process.busiest();
    let waiting = board.and_then(|board| board.waiting.as_ref());
    let stuck = waiting.filter(|waiting| at_ns.saturating_sub(waiting.since_ns) >= LONG_NS);
    let fault = process.fault();
    let call = match (fault, stuck) {
        (Some(fault), _) => format!("failed: {fault}"),
        (None, Some(waiting)) => in_words(waiting, at_ns),
        (None, None) => board.map_or(String::new(), last_call),
    };
    [
        process.rank.to_string(),
        process.pid.to_string(),
        process.host().to_owned(),
        rate(|rates| rates.calls_per_s, 8),
        rate(|rates| rates.bytes_per_s / 1e9, 6),
        percent(rates.map(|rates| rates.waited)),
        percent(rates.and_then(|rates| rates.late)),
        rates
            .and_then(|rates| rates.late_by_ns)
            .map_or("-".into(), time),
        call,
    ]
}

/// A wait that has lasted for a while.
fn in_words(waiting: &Waiting, at_ns: u64) -> String {
    let seconds = at_ns.saturating_sub(waiting.since_ns) / 1_000_000_000;
    format!("for {seconds} s in {}", waiting.text)
}

/// The last call that was begun.
fn last_call(board: &Picture) -> String {
    let Some((kind, bytes)) = board.last else {
        return "no call yet".into();
    };
    let size = bytes_label(bytes as f64);
    let collective = kind.collective;
    match kind.is_message() {
        true => format!("{collective} {size}"),
        false => format!("#{} {collective} {size} {}", board.begun, kind.method),
    }
}

/// All jobs as plain text.
pub fn plain(before: &Sample, now: &Sample, order: Order) -> String {
    let mut text = String::new();
    for job in &now.jobs {
        text += &format!("{}\n", heading(job));
        let heads = COLUMNS.map(|(head, _)| head.to_owned());
        text += &line(&heads);
        for row in rows(before, now, job, order) {
            text += &line(&row);
        }
        text.push('\n');
    }
    for (pid, why) in &now.unreadable {
        text += &format!("the board of process {pid} cannot be read: {why}\n");
    }
    text
}

fn line(cells: &Cells) -> String {
    let mut line = String::new();
    for (index, (cell, (_, width))) in cells.iter().zip(COLUMNS).enumerate() {
        match index < FIRST_TEXT_COLUMN {
            true => line += &format!("{cell:>width$} "),
            false => line += &format!(" {cell}"),
        }
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}
