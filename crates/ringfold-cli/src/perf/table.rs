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
const WHOLE_COLUMNS: u16 = 120;

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
            "# device: {devices}, {} slots of {} bytes in each direction\n\
             # calls: {}\n",
            lane.depth,
            lane.slot_bytes,
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

/// A column: its head and unit, its width, and the function that formats its field.
type TableColumn = ([&'static str; 2], usize, fn(&Measurement) -> String);

/// The columns about the call; a narrow table has those of [`NARROW_CASE`].
const CASE: [TableColumn; 5] = [
    (["size", "(B)"], 10, |row| row.size.bytes.to_string()),
    (["count", "(elements)"], 10, |row| {
        row.size.count.to_string()
    }),
    (["type", ""], 8, |row| row.case.dtype.to_string()),
    (["redop", ""], 5, |row| row.case.op.unwrap_or("none").into()),
    (["root", ""], 4, |row| {
        row.case.root.map_or("-1".into(), |root| root.to_string())
    }),
];
const NARROW_CASE: [TableColumn; 2] = [CASE[0], CASE[2]];

/// The columns of nccl-tests about a placement. The first one has room for a gap before it.
const PLACEMENT: [TableColumn; 4] = [
    (["time", "(us)"], 8, |row| number(row.median_us(), 7)),
    (["algbw", "(GB/s)"], 6, |row| number(row.algbw_gbps(), 6)),
    (["busbw", "(GB/s)"], 6, |row| number(row.busbw_gbps(), 6)),
    (["#wrong", ""], 6, |row| {
        row.wrong.map_or("N/A".into(), |wrong| wrong.to_string())
    }),
];

/// Further columns about a placement, with `--device`.
const ON_DEVICE: [TableColumn; 2] = [
    (["limit", "(us)"], 8, |row| number_if_known(row.limit_us)),
    (["of limit", "(%)"], 8, |row| {
        number_if_known(row.of_limit_percent())
    }),
];

/// Further columns about a placement, with `--per-iter-timing`.
const PER_ITERATION: [TableColumn; 5] = [
    (["i_min", "(us)"], 8, |row| number(row.min_us(), 7)),
    (["i_max", "(us)"], 8, |row| number(row.max_us(), 7)),
    (["i_p99", "(us)"], 8, |row| {
        number(row.percentile_us(99.0), 7)
    }),
    (["i_cv", "(%)"], 8, |row| number(row.variation_percent(), 7)),
    (["first", "(us)"], 8, |row| number(row.first_us, 7)),
];

fn number_if_known(value: Option<f64>) -> String {
    value.map_or("N/A".into(), |value| number(value, 7))
}

/// The columns of a table, of which those about a placement are repeated.
struct Layout {
    case: Vec<TableColumn>,
    placement: Vec<TableColumn>,
    placements: usize,
}

impl Layout {
    fn new(arguments: &PerfArguments, extent: Extent) -> Layout {
        let mut placement = PLACEMENT.to_vec();
        if arguments.on.device.is_some() {
            placement.extend(ON_DEVICE);
        }
        if arguments.per_iter_timing == 1 {
            placement.extend(PER_ITERATION);
        }
        let (case, placements) = match extent {
            Extent::Whole => (CASE.to_vec(), 2),
            Extent::Narrow => (NARROW_CASE.to_vec(), 1),
        };
        Layout {
            case,
            placement,
            placements,
        }
    }

    /// Returns a line with a field in each column; the second argument of `field` is the number of
    /// the placement, 0 for the columns about the call.
    fn line(&self, field: impl Fn(&TableColumn, usize) -> String) -> String {
        let case = self.case.iter().map(|column| (column, 0));
        let placements = (0..self.placements)
            .flat_map(|placement| self.placement.iter().map(move |column| (column, placement)));
        let fields = case.chain(placements).map(|(column, placement)| {
            let width = column.1;
            format!("{:>width$}", field(column, placement))
        });
        fields.collect::<Vec<_>>().join(" ")
    }
}

fn column_heads(arguments: &PerfArguments, extent: Extent) -> String {
    let layout = Layout::new(arguments, extent);
    let width = |columns: &[TableColumn]| columns.iter().map(|(_, width, _)| width + 1).sum();
    let (case, placement): (usize, usize) = (width(&layout.case), width(&layout.placement));
    let mut above = " ".repeat(case - 1);
    for name in ["out-of-place", "in-place"].iter().take(layout.placements) {
        above += &format!("{:placement$}", format!("  {name:^28}"));
    }
    let heads = |line: usize| layout.line(|(heads, ..), _| heads[line].to_owned());
    let lines = [above, heads(0) + "  via algorithm", heads(1)];
    // The first column is wider than its heads.
    let lines = lines.map(|line| format!("# {}\n", line[2..].trim_end()));
    lines.concat()
}

/// Returns the row of one size, in both placements if there are two.
pub fn row(
    arguments: &PerfArguments,
    out: &Measurement,
    in_place: Option<&Measurement>,
    extent: Extent,
) -> String {
    let placements = [Some(out), in_place];
    let mut text = Layout::new(arguments, extent)
        .line(|(.., text), placement| placements[placement].map_or("N/A".into(), text));
    let _ = write!(text, "  {:<3} {}", out.transport, out.algorithm);
    if arguments.report_timestamps == 1 {
        let _ = write!(text, "  {}", utc(SystemTime::now()));
    }
    text.push('\n');
    text
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
        for (columns, most) in [(None, 120), (Some(119), 80), (Some(80), 80)] {
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
