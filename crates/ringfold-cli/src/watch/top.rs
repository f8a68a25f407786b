//! `ringfold top`: the running jobs of this host.

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use super::jobs::Sample;
use super::table::{self, NO_JOB, Order};
use super::view;
use crate::output;

/// Show the running jobs of this host: ranks, calls per second, who is late
///
/// A row per rank of this host. calls/s and GB/s: completed calls and the bytes of their buffers.
/// wait%: the part of the time in which the rank waited for others. late%: the part of its
/// collectives in which it was the last to arrive; late by: how much later than the rank that
/// waited for it, on the average, where the wait was long enough to be timed. call: the last call,
/// or what the rank has waited in for more than half a second, or the error that ended it.
///
/// The jobs need no preparation, unless they were started with RINGFOLD_BOARD=0. Jobs of other
/// users are visible to root only. Ranks on other hosts: run it there.
///
/// On a terminal one job is shown, with the state of each rank: failed, waiting (for more than half
/// a second), late (the last one much more often than others), idle (no call since the last look)
/// or running. Keys: q, Esc and Ctrl-C leave, p or space pauses, s changes the order, Tab shows the
/// next job, Up, Down, PgUp, PgDn, Home and End select a rank, whose call stands below in full.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Print one table of all jobs and exit; so it does where standard output is no terminal
    #[arg(long)]
    once: bool,

    /// Seconds between two looks; rates are of this time
    #[arg(short, long, value_name = "S", default_value = "1", value_parser = seconds)]
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

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (0.1..=3600.0).contains(number));
    let wrong = || "must be a number of seconds, 0.1 to 3600".to_owned();
    number.map(Duration::from_secs_f64).ok_or_else(wrong)
}

/// Shows the jobs until the user quits, or once.
pub fn run(arguments: Arguments) -> Result<u8> {
    // A terminal that cannot do more than lines says so.
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    if arguments.once || is_dumb || !std::io::stdout().is_terminal() {
        return once(&arguments);
    }
    view::run(arguments.interval, arguments.sort)
}

fn once(arguments: &Arguments) -> Result<u8> {
    let before = Sample::take(true);
    if before.jobs.is_empty() && before.unreadable.is_empty() {
        bail!(NO_JOB);
    }
    thread::sleep(arguments.interval);
    let now = Sample::take(true);
    // Jobs that have ended meanwhile are shown as they were.
    let shown = if now.jobs.is_empty() { &before } else { &now };
    output::print(&table::plain(&before, shown, arguments.sort))?;
    Ok(0)
}
