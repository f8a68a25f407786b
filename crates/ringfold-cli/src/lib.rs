//! The `ringfold` command: measures collectives, starts jobs, and describes this machine.
//!
//! Data goes to stdout, messages and progress to stderr. The exit status is 0, or 1 for a failure
//! of ours, 2 for a wrong command line, 128 + n after signal n; for `run`, the status of the first
//! rank that failed, 127 if the program does not exist, or 126 if it cannot be run.
//!
//! A library with one function, because two programs share the command: `ringfold` itself, and the
//! script of that name in the Python package, whose native module contains this library.
//!
//! No collective logic is here. `launch` starts the ranks of `perf`, `run`, `tune sweep` and
//! `tune calibrate`; `bench` serves all of these except `run`; `plot` draws.

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
mod status;
mod trace;
mod tune;
mod watch;

use std::ffi::OsString;
use std::io::Write;
use std::iter;
use std::sync::Arc;

use clap::{Parser, Subcommand};

pub use launch::itself::Invocation;

/// Measure, run and inspect collective communication for data-parallel training.
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
  ringfold top                               the running jobs, and late ranks
  ringfold info                              this machine's cores, interfaces and transports
  ringfold schedule all_reduce               algorithms of all_reduce, with predicted costs
  ringfold sim --ranks 64                    time of all_reduce on other machines, simulated
  ringfold tune --help                       correct the tuner's choices by measurements";

#[derive(Subcommand)]
enum Command {
    Perf(Box<perf::PerfArguments>),
    Run(run::RunArguments),
    Info(info::InfoArguments),
    Schedule(schedule::ScheduleArguments),
    Sim(Box<sim::SimArguments>),
    Tune(Box<tune::TuneArguments>),
    Top(watch::top::TopArguments),
    Trace(trace::TraceArguments),
    Metrics(watch::metrics::MetricsArguments),
}

/// Carries out a command line and returns the exit status. Nothing else in this process may have
/// used this library before.
pub fn main(invocation: Invocation) -> u8 {
    ringfold_tuner_host::register();
    // Makes a write beyond the file-size limit fail with an error. Programs that are started have
    // the signal's default action again. If registering fails, the signal ends this program.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let words = iter::once(OsString::from("ringfold")).chain(invocation.arguments.iter().cloned());
    let parsed = Cli::try_parse_from(words);
    launch::itself::remember(invocation);
    let status = match parsed {
        Ok(cli) => cli
            .command
            .run()
            .unwrap_or_else(|error| status::fail(&error)),
        Err(usage) => {
            // If neither stream is open, there is no place to report it.
            let _ = usage.print();
            usage.exit_code() as u8
        }
    };
    // In another program's process, the standard library does not flush at the end.
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
