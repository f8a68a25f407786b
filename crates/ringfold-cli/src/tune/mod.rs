//! `ringfold tune`: mends the tuner's choices by what was measured.
//!
//! [`optimize`] makes a tuner's CSV of what was measured to be best: [`rows`] reads it, [`contest`] has the winners, and
//! [`ranges`] says for which sizes.

mod contest;
mod optimize;
mod ranges;
mod rows;
mod statistics;

use anyhow::Result;
use clap::Subcommand;

/// Mend the tuner's choices by what was measured
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ringfold tune optimize sweep.csv -o tuned.csv     the best way for every size, as a tuner's rules";

#[derive(Subcommand)]
enum Command {
    Optimize(optimize::Arguments),
}

/// Carries out the subcommand and returns the exit status.
pub fn run(arguments: Arguments) -> Result<u8> {
    match arguments.command {
        Command::Optimize(arguments) => optimize::run(&arguments),
    }
}
