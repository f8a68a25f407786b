//! `ringfold trace`: the recorded calls of a job as one timeline.
//!
//! `files` reads what the processes have left, `ranks` finds out which process is which rank,
//! `clocks` brings the clocks of several hosts together, `meetings` finds the calls that ranks made
//! together and who came last, `timeline` writes all that for Perfetto.

mod clocks;
mod files;
mod meetings;
mod ranks;
mod timeline;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::complain;
use crate::numbers::plural;
use clocks::Clocks;
use meetings::Meetings;
use ranks::Ranks;

/// Make one timeline of the recorded calls of all ranks
///
/// A job records its calls where RINGFOLD_TRACE names a folder; `ringfold run --trace` does both
/// steps. DIR has one file per process and communicator; bring those of several hosts into one
/// folder first. Files of processes that were killed count like the others. The timeline is in the
/// Trace Event Format: open it at ui.perfetto.dev, or in Chrome at chrome://tracing. Who was late
/// is printed to standard error.
///
/// The clocks of several hosts are compared by the calls themselves: no rank can leave an
/// all_reduce or a barrier before the last one has entered it. How far times of different hosts can
/// be wrong is printed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The folder with the files
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// The file for the timeline (`-`: standard output)
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  ringfold run --ranks 4 --trace job.json -- python train.py
  RINGFOLD_TRACE=/tmp/calls torchrun --nproc-per-node 4 train.py
  ringfold trace /tmp/calls -o job.json";

/// Makes the timeline.
pub fn run(arguments: Arguments) -> Result<u8> {
    merge(&arguments.folder, &arguments.output)?;
    Ok(0)
}

/// Makes a timeline of the files in `folder`.
pub fn merge(folder: &Path, output: &Path) -> Result<()> {
    let boards = files::read(folder)?;
    let ranks = Ranks::of(&boards);
    let clocks = Clocks::compare(&boards, &ranks);
    let meetings = Meetings::find(&boards, &ranks, &clocks);
    timeline::write(output, &boards, &ranks, &clocks, &meetings)?;
    let calls: usize = boards.iter().map(|board| board.calls.len()).sum();
    complain(&format!(
        "{} of {} in {}",
        plural(calls, "call"),
        plural(ranks.processes.len(), "rank"),
        output.display()
    ));
    for line in clocks
        .findings()
        .into_iter()
        .chain(meetings.findings(&ranks))
    {
        complain(&line);
    }
    Ok(())
}
