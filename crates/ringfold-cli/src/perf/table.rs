//! The table on standard output: nccl-tests' columns, header and footer, then our columns. On a
//! terminal that is too narrow for a row, the least informative columns are omitted.

use std::fmt::Write as _;
use std::io::stdout;
use std::time::SystemTime;

use ringfold::Weighting;
use rustix::termios::tcgetwinsize;

use super::arguments::PerfArguments;
use crate::bench::{Measurement, Participant};
use crate::numbers::{number, significant};

/// The part of the table that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All columns.
    Whole,
    /// Without counts, operation, root and the second placement; headers in shorter lines.
    Narrow,
}

impl Extent {
    /// Returns the extent that fits into this many columns; `None` means no limit.
    pub fn fitting(columns: Option<u16>) -> Extent {
        match columns {
            Some(columns) if columns < WHOLE_COLUMNS => Extent::Narrow,
            _ => Extent::Whole,
        }
    }

    /// Returns the extent that fits on standard output.
    pub fn of_stdout() -> Extent {
        let size = tcgetwinsize(stdout());
        let columns = size.ok().map(|size| size.ws_col);
        Extent::fitting(columns.filter(|columns| *columns > 0))
    }
}

/// Width of a row with all columns and the longest of the usual names.
const WHOLE_COLUMNS: u16 = 115;

/// Returns the lines before the first row.
pub fn header(
    arguments: &PerfArguments,
    participants: &[Participant],
    weights: Option<&[u32]>,
    extent: Extent,
) -> String {
    let mut text = String::new();
    let (min, max) = arguments.span.bounds(arguments.collective);
    let step = match arguments.span.stepbytes {
        Some(bytes) => format!("{bytes}(bytes)"),
        None => format!("{}(factor)", arguments.span.stepfactor.unwrap_or(2)),
    };
    let break_here = match extent {
        Extent::Whole => "",
        Extent::Narrow => "\n#",
    };
    let ranks = [
        "rank 0's",
        "mean over the ranks",
        "the fastest rank's",
        "the slowest rank's",
    ];
    text += &format!(
        "# ringfold version {}\n\
         # Collective test starting: {}_perf\n\
         # ranks {} minBytes {min} maxBytes {max} step: {step}{break_here} warmup iters: {} \
         iters: {} validation: {}\n\
         # time: median over iterations, {}\n",
        env!("CARGO_PKG_VERSION"),
        arguments.collective,
        participants.len(),
        arguments.warmup_iters,
        arguments.iters,
        arguments.check,
        ranks[usize::from(arguments.average.min(3))],
    );
    if let Some(asked) = &arguments.weights {
        text += &format!("# weights: {}\n", weights_text(asked, weights));
    }
    if let Some(devices) = &arguments.on.device {
        let lane = arguments.on.config();
        text += &format!(
            "# device: {devices}, {} slots of {} bytes in each direction, reducer: {}\n\
             # calls: {}\n",
            lane.depth,
            lane.slot_bytes,
            lane.reducer,
            match arguments.blocking {
                1 => "the host waits for each before the next",
                _ => "all are enqueued, and the host waits for the last",
            }
        );
    }
    text += "#\n# Using ranks\n";
    for Participant {
        rank,
        pid,
        hostname,
    } in participants
    {
        text += &format!("#  Rank {rank:2} Group  0 Pid {pid:6} on {hostname:>10}\n");
    }
    text += "#\n";
    text + &column_heads(arguments, extent)
}

/// Describes the weights in use, and their origin.
fn weights_text(asked: &Weighting, weights: Option<&[u32]>) -> String {
    let each = weights.map(|weights| {
        let words: Vec<String> = weights.iter().map(u32::to_string).collect();
        words.join(",")
    });
    match (asked, each) {
        (Weighting::Each(_), each) => each.unwrap_or("none".into()),
        (Weighting::Auto, Some(each)) => format!("{each}, measured"),
        (Weighting::Auto, None) => {
            "none: measured, and calls with weights would not be faster".into()
        }
    }
}

/// Returns the names and units of a placement's columns after nccl-tests' four.
fn more_columns(arguments: &PerfArguments) -> Vec<[&'static str; 2]> {
    let mut columns = Vec::new();
    if arguments.on.device.is_some() {
        columns.extend([["limit", "(us)"], ["of limit", "(%)"]]);
    }
    if arguments.per_iter_timing == 1 {
        columns.extend([
            ["i_min", "(us)"],
            ["i_max", "(us)"],
            ["i_p99", "(us)"],
            ["i_cv", "(%)"],
            ["first", "(us)"],
        ]);
    }
    columns
}

/// Width of each of the [`more_columns`].
const MORE_WIDTH: usize = 8;

fn column_heads(arguments: &PerfArguments, extent: Extent) -> String {
    let more = more_columns(arguments);
    let width = more.len() * (MORE_WIDTH + 1);
    let is_whole = extent == Extent::Whole;
    let case = |[size, count, dtype, op, root]: [&str; 5]| match is_whole {
        true => format!("# {size:>8} {count:>10} {dtype:>8} {op:>5} {root:>4}"),
        false => format!("# {size:>8} {dtype:>8}"),
    };
    let placements = |[time, algbw, busbw, wrong]: [&str; 4], line: usize| {
        let mut text = format!("  {time:>7} {algbw:>6} {busbw:>6} {wrong:>6}");
        for column in &more {
            text += &format!(" {:>MORE_WIDTH$}", column[line]);
        }
        text.repeat(if is_whole { 2 } else { 1 })
    };
    let mut above = format!("  {:^28}", "out-of-place");
    if is_whole {
        above += &format!("{:width$}  {:^28}", "", "in-place");
    }
    let names = placements(["time", "algbw", "busbw", "#wrong"], 0);
    let units = placements(["(us)", "(GB/s)", "(GB/s)", ""], 1);
    format!(
        "{}{above}\n{}{names}  via algorithm\n{}{}\n",
        case([""; 5]),
        case(["size", "count", "type", "redop", "root"]),
        case(["(B)", "(elements)", "", "", ""]),
        units.trim_end(),
    )
}

/// Returns the row of one size, in both placements if there are two.
pub fn row(
    arguments: &PerfArguments,
    out: &Measurement,
    in_place: Option<&Measurement>,
    extent: Extent,
) -> String {
    let case = out.case;
    let mut text = match extent {
        Extent::Whole => format!(
            "{:>10} {:>10} {:>8} {:>5} {:>4}",
            out.size.bytes,
            out.size.count,
            case.dtype,
            case.op.unwrap_or("none"),
            case.root.map_or(-1, |root| root as i64),
        ),
        Extent::Narrow => format!("{:>10} {:>8}", out.size.bytes, case.dtype),
    };
    text += &placement_columns(arguments, Some(out));
    if extent == Extent::Whole {
        text += &placement_columns(arguments, in_place);
    }
    let _ = write!(text, "  {:<3} {}", out.transport, out.algorithm);
    if arguments.report_timestamps == 1 {
        let _ = write!(text, "  {}", utc(SystemTime::now()));
    }
    text.push('\n');
    text
}

fn placement_columns(arguments: &PerfArguments, row: Option<&Measurement>) -> String {
    let Some(row) = row else {
        let mut text = format!("  {:>7} {:>6} {:>6} {:>6}", "N/A", "N/A", "N/A", "N/A");
        text += &format!(" {:>MORE_WIDTH$}", "N/A").repeat(more_columns(arguments).len());
        return text;
    };
    let wrong = row.wrong.map_or("N/A".into(), |wrong| wrong.to_string());
    let mut text = format!(
        "  {:>7} {:>6} {:>6} {wrong:>6}",
        number(row.median_us(), 7),
        number(row.algbw_gbps(), 6),
        number(row.busbw_gbps(), 6),
    );
    for value in more_values(arguments, row) {
        let value = value.map_or("N/A".into(), |value| number(value, 7));
        let _ = write!(text, " {value:>MORE_WIDTH$}");
    }
    text
}

/// Returns the values of the [`more_columns`].
fn more_values(arguments: &PerfArguments, row: &Measurement) -> Vec<Option<f64>> {
    let mut values = Vec::new();
    if arguments.on.device.is_some() {
        values.extend([row.limit_us, row.of_limit_percent()]);
    }
    if arguments.per_iter_timing == 1 {
        let mean = row.mean_us();
        let variation = match mean > 0.0 {
            true => 100.0 * row.deviation_us() / mean,
            false => 0.0,
        };
        values.extend([
            Some(row.min_us()),
            Some(row.max_us()),
            Some(row.percentile_us(99.0)),
            Some(variation),
            Some(row.first_us),
        ]);
    }
    values
}

/// Returns the lines after the last row.
pub fn footer(arguments: &PerfArguments, wrong: u64, average_busbw_gbps: f64) -> String {
    let verdict = match (arguments.check, wrong) {
        (0, _) => "NOT CHECKED",
        (_, 0) => "OK",
        _ => "FAILED",
    };
    format!(
        "# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {}\n#\n\
         # Collective test concluded: {}_perf\n",
        significant(average_busbw_gbps),
        arguments.collective,
    )
}

/// Formats a time as `2026-01-31 23:59:59`, in UTC.
pub fn utc(time: SystemTime) -> String {
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.replace('T', " ").replace('Z', "")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::perf::arguments::tests::arguments;

    #[test]
    fn columns_stand_under_their_heads() {
        let arguments = arguments("-I");
        let heads = column_heads(&arguments, Extent::Whole);
        let names = heads.lines().nth(1).unwrap();
        let measurement = crate::bench::measurement::tests::measurement(&[1.0, 2.0]);
        let row = row(&arguments, &measurement, None, Extent::Whole);
        for (name, value) in [
            ("size", "1000"),
            ("redop", "sum"),
            ("root", "-1"),
            ("i_cv", "33.33"),
        ] {
            let end = |line: &str, word: &str| line.find(word).map(|at| at + word.len());
            assert_eq!(end(names, name), end(&row, value), "{name}");
        }
        assert_eq!(names.find("algorithm"), row.find("ring"));
        assert_eq!(names.find("via"), row.find("shm"));
    }

    #[test]
    fn rows_fit_beside_an_editor() {
        let arguments = arguments("");
        let measurement = crate::bench::measurement::tests::measurement(&[12345.678, 2.0]);
        for (columns, most) in [(None, 120), (Some(114), 80), (Some(80), 80)] {
            let extent = Extent::fitting(columns);
            let row = row(&arguments, &measurement, Some(&measurement), extent);
            let head = header(&arguments, &[], None, extent);
            for line in head.lines().chain([row.trim_end()]) {
                assert!(line.chars().count() <= most, "{line}");
            }
            let heads = column_heads(&arguments, extent);
            let names = heads.lines().nth(1).expect("the names");
            assert_eq!(names.find("algorithm"), row.find("ring"), "{names}\n{row}");
        }
    }

    #[test]
    fn dates_follow_the_calendar() {
        let at = |seconds| utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_735_689_599), "2024-12-31 23:59:59");
    }
}
