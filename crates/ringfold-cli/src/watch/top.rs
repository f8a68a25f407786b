//! `ringfold top`: the running jobs of this host.

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use super::jobs::Sample;
use super::table::{self, Order};
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
/// Ctrl-C quits.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Print one table and exit; so it does where standard output is no terminal
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

/// Has a terminal begin anew.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What to say where there is nothing to see.
pub const NO_JOB: &str = "no running job of this user on this host; a job is visible from when its \
    ranks have joined, unless it runs with RINGFOLD_BOARD=0, in another process namespace, or as \
    another user";

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
    if arguments.once || !std::io::stdout().is_terminal() {
        return once(&arguments);
    }
    let mut before = Sample::take();
    loop {
        thread::sleep(arguments.interval);
        let now = Sample::take();
        let text = match now.jobs.is_empty() && now.unreadable.is_empty() {
            true => format!("{NO_JOB}\n"),
            false => table::plain(&before, &now, arguments.sort),
        };
        output::print(&format!("{CLEAR}{text}"))?;
        before = now;
    }
}

fn once(arguments: &Arguments) -> Result<u8> {
    let before = Sample::take();
    if before.jobs.is_empty() && before.unreadable.is_empty() {
        bail!(NO_JOB);
    }
    thread::sleep(arguments.interval);
    let now = Sample::take();
    // Jobs that have ended meanwhile are shown as they were.
    let shown = if now.jobs.is_empty() { &before } else { &now };
    output::print(&table::plain(&before, shown, arguments.sort))?;
    Ok(0)
}
