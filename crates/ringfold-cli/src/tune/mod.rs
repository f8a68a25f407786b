//! `ringfold tune`: finds where the tuner's choices are wrong, and corrects them with a table.
//!
//! [`sweep`] measures every way and the default choice. [`check`] reports where a curve is wrong
//! ([`findings`], from the [`series`] of a file's [`rows`]). [`optimize`] writes a tuner's CSV of
//! the best ways ([`contest`] determines the winners, and [`ranges`] the sizes). [`calibrate`]
//! measures the machine for the cost model. Only `sweep` and `calibrate` measure; the others read
//! files.

mod calibrate;
mod check;
mod contest;
mod findings;
mod optimize;
mod ranges;
mod rows;
mod series;
mod sweep;

use anyhow::Result;
use clap::Subcommand;

/// Find where the tuner's choices are wrong, and correct them by measurements
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ringfold tune calibrate                           measure this machine for the cost model
  ringfold tune check perf.csv                      dips, plateaus, wrong crossovers
  ringfold tune sweep -o sweep.csv                  times of all candidates and the default choice
  ringfold tune optimize sweep.csv -o tuned.csv     rules where the default is wrong";

#[derive(Subcommand)]
enum Command {
    Calibrate(calibrate::Arguments),
    Check(check::Arguments),
    Optimize(optimize::Arguments),
    Sweep(Box<sweep::Arguments>),
}

/// Carries out the subcommand and returns the exit status.
pub fn run(arguments: Arguments) -> Result<u8> {
    match arguments.command {
        Command::Calibrate(arguments) => calibrate::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Optimize(arguments) => optimize::run(&arguments),
        Command::Sweep(arguments) => sweep::run(&arguments),
    }
}
