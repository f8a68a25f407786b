//! `ringfold top`: the running jobs of this host.

use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::termios::tcgetwinsize;

use super::jobs::Sample;
use super::table::{self, NO_JOB, Order};
use crate::output;
use crate::parse::parse_seconds;

/// Show the running jobs of this host: ranks, calls per second, late ranks
///
/// On a terminal, the table is redrawn until Ctrl-C. It has one row per rank of this host. calls/s
/// and GB/s: completed calls and the bytes of their buffers. wait%: share of the time in which the
/// rank waited for other ranks. late%: share of the rank's collectives in which it was the last to
/// arrive. late by: mean time for which other ranks waited for the rank to arrive, over the waits
/// long enough to be timed. call: the last call begun, a wait of more than half a second, or the
/// error that ended the communicator.
///
/// The jobs need no preparation, unless they were started with RINGFOLD_BOARD=0. Jobs of other
/// users are visible to root only. For ranks on other hosts, run the command there.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArguments {
    /// Print one table and exit; the default if standard output is not a terminal
    #[arg(long)]
    once: bool,

    /// Time between two samples, in seconds or with a unit; rates are averages over this time
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = interval)]
    interval: Duration,

    /// Order of the rows
    #[arg(short, long, value_name = "BY", default_value = "rank")]
    sort: Order,
}

const EXAMPLES: &str = "\
Examples:
  ringfold top
  ringfold top --sort late
  ringfold top --once --interval 5    one table, rates over 5 seconds";

/// A time that neither keeps a core busy nor seems to hang.
fn interval(text: &str) -> Result<Duration, String> {
    let limits = Duration::from_millis(100)..=Duration::from_secs(3600);
    let time = parse_seconds(text)?;
    let wrong = || "must be 100ms to 3600s".to_owned();
    limits.contains(&time).then_some(time).ok_or_else(wrong)
}

/// Shows the jobs until a signal ends the process, or once.
pub fn run(arguments: TopArguments) -> Result<u8> {
    // A terminal without a cursor that can be moved.
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    if arguments.once || is_dumb || !stdout().is_terminal() {
        return once(&arguments);
    }
    let mut before = Sample::take(true);
    output::print(&screen(&text(&before, &before, arguments.sort)))?;
    loop {
        thread::sleep(arguments.interval);
        let now = Sample::take(true);
        output::print(&screen(&text(&before, &now, arguments.sort)))?;
        before = now;
    }
}

fn once(arguments: &TopArguments) -> Result<u8> {
    let before = Sample::take(true);
    if before.is_empty() {
        bail!(NO_JOB);
    }
    thread::sleep(arguments.interval);
    let now = Sample::take(true);
    // Jobs that have ended since the first sample are shown with its figures.
    let shown = if now.jobs.is_empty() { &before } else { &now };
    output::print(&table::plain(&before, shown, arguments.sort))?;
    Ok(0)
}

fn text(before: &Sample, now: &Sample, order: Order) -> String {
    match now.is_empty() {
        true => NO_JOB.to_owned(),
        false => table::plain(before, now, order),
    }
}

/// The sequences that draw `text` over the last screen, cut to the terminal's size.
fn screen(text: &str) -> String {
    let size = tcgetwinsize(stdout()).ok();
    let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    let (columns, rows) = size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()));
    drawn(text, columns, rows)
}

/// From the upper left corner: the lines, each with the rest of its row emptied, then the rest of
/// the screen. The last row is left for the cursor.
fn drawn(text: &str, columns: usize, rows: usize) -> String {
    let lines = text.lines().take(rows - 1);
    let cut = lines.map(|line| line.chars().take(columns).collect::<String>() + "\x1b[K\n");
    format!("\x1b[H{}\x1b[J", cut.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::drawn;

    #[test]
    fn a_screen_has_no_more_than_fits() {
        let text = "rank pid\n0 17\n1 18\n";
        assert_eq!(drawn(text, 4, 3), "\x1b[Hrank\x1b[K\n0 17\x1b[K\n\x1b[J");
        assert_eq!(drawn(text, 4, 1), "\x1b[H\x1b[J");
    }
}
