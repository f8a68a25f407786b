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
pub struct TuneArguments {
    #[command(subcommand)]
    command: TuneCommand,
}

const EXAMPLES: &str = "\
Examples:
  ringfold tune calibrate                           measure this machine for the cost model
  ringfold tune check perf.csv                      dips, plateaus, wrong crossovers
  ringfold tune sweep -o sweep.csv                  times of all candidates and the default choice
  ringfold tune optimize sweep.csv -o tuned.csv     rules where the default is wrong";

#[derive(Subcommand)]
enum TuneCommand {
    Calibrate(calibrate::CalibrateArguments),
    Check(check::CheckArguments),
    Optimize(optimize::OptimizeArguments),
    Sweep(Box<sweep::SweepArguments>),
}

/// Carries out the subcommand and returns the exit status.
pub fn run(arguments: TuneArguments) -> Result<u8> {
    match arguments.command {
        TuneCommand::Calibrate(arguments) => calibrate::run(&arguments),
        TuneCommand::Check(arguments) => check::run(&arguments),
        TuneCommand::Optimize(arguments) => optimize::run(&arguments),
        TuneCommand::Sweep(arguments) => sweep::run(&arguments),
    }
}
