//! The `ringfold` command: measures collectives, starts jobs, and says what this machine can do.
//!
//! Data goes to stdout, messages and progress to stderr. The exit status is 0, or 1 for a failure
//! of ours, 2 for a wrong command line, 128 + n after signal n, and for `run` the status of the
//! first rank that failed, 127 where the program is not there and 126 where it cannot be run.
//!
//! A library of one function, because two programs are this command: `ringfold` itself, and the
//! script of that name in the Python package, whose native module has this library inside.

mod bench;
mod info;
mod launch;
mod numbers;
mod output;
mod parse;
mod perf;
mod plot;
mod run;
mod schedule;
mod sim;
mod statistics;
mod trace;
mod tune;
mod watch;

use std::ffi::OsString;
use std::io::Write;
use std::iter;
use std::sync::Arc;

use clap::{Parser, Subcommand};

pub use launch::itself::Invocation;

/// Collective communication for data-parallel training: measure it, run on it, look into it.
#[derive(Parser)]
#[command(name = "ringfold", version, propagate_version = false, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ringfold perf                              measure all_reduce between local processes
  ringfold run --ranks 4 -- python train.py  run a program as four ranks
  ringfold top                               what running jobs do, and who is late
  ringfold info                              this machine's cores, interfaces and transports
  ringfold schedule all_reduce               what its algorithms do and should cost
  ringfold sim --ranks 64                    what it would take on other machines, in virtual time
  ringfold tune --help                       correct the tuner's choices by measurements";

/// What a process that SIGPIPE has ended looks like to a shell.
const OUTPUT_CLOSED: u8 = 128 + 13;

#[derive(Subcommand)]
enum Command {
    Perf(Box<perf::Arguments>),
    Run(run::Arguments),
    Info(info::Arguments),
    Schedule(schedule::Arguments),
    Sim(Box<sim::Arguments>),
    Tune(Box<tune::Arguments>),
    Top(watch::top::Arguments),
    Trace(trace::Arguments),
    Metrics(watch::metrics::Arguments),
}

/// Carries out a command line; gives the exit status. Nothing else in this process has made use of
/// it before.
pub fn main(invocation: Invocation) -> u8 {
    ringfold_tuner_host::register();
    // The limit of file sizes is then an error of the write. Programs that are started have the
    // signal's default again. Where it cannot be had, the signal ends this program.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let words = iter::once(OsString::from("ringfold")).chain(invocation.arguments.iter().cloned());
    let parsed = Cli::try_parse_from(words);
    launch::itself::remember(invocation);
    let status = match parsed {
        Ok(cli) => cli.command.run().unwrap_or_else(|error| fail(&error)),
        Err(usage) => {
            // If neither stream is open, there is no place to report it.
            let _ = usage.print();
            usage.exit_code() as u8
        }
    };
    // Within another program's process, the standard library does not do so at the end.
    let _ = std::io::stdout().flush();
    status
}

impl Command {
    fn run(self) -> anyhow::Result<u8> {
        match self {
            Command::Perf(arguments) => perf::run(*arguments),
            Command::Run(arguments) => run::run(arguments),
            Command::Info(arguments) => info::run(arguments),
            Command::Schedule(arguments) => schedule::run(arguments),
            Command::Sim(arguments) => sim::run(*arguments),
            Command::Tune(arguments) => tune::run(*arguments),
            Command::Top(arguments) => watch::top::run(arguments),
            Command::Trace(arguments) => trace::run(arguments),
            Command::Metrics(arguments) => watch::metrics::run(arguments),
        }
    }
}

/// Says what went wrong, and which exit status that is.
fn fail(error: &anyhow::Error) -> u8 {
    if is_closed_output(error) {
        return OUTPUT_CLOSED;
    }
    complain(&format!("{error:#}"));
    launch::status_of(error)
}

/// Whether the reader of our output has closed it, as `head` does: no failure worth a message.
fn is_closed_output(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Writes one line to stderr in one piece, so that the lines of several ranks do not mix.
fn complain(message: &str) {
    // If stderr is closed, there is no place to report it.
    let _ = std::io::stderr().write_all(format!("ringfold: {message}\n").as_bytes());
}
