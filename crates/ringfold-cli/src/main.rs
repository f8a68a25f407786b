//! The `ringfold` command: measures collectives, starts jobs, and says what this machine can do.
//!
//! Data goes to stdout, messages and progress to stderr. The exit status is 0, or 1 for a failure of ours, 2 for a wrong
//! command line, 128 + n after signal n, and for `run` the status of the first rank that failed.

mod launch;
mod run;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Collective communication for data-parallel training: measure it, run on it, look into it.
#[derive(Parser)]
#[command(name = "ringfold", version, propagate_version = false, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ringfold run --ranks 4 -- python train.py  run a program as four ranks";

#[derive(Subcommand)]
enum Command {
    Run(run::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(arguments) => run::run(arguments),
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes one line to stderr in one piece, so that the lines of several ranks do not run into each other.
fn complain(message: &str) {
    // Nobody is left to tell when stderr is closed.
    let _ = std::io::stderr().write_all(format!("ringfold: {message}\n").as_bytes());
}
