//! `ringfold trace`: the recorded calls of a job as one timeline.
//!
//! `files` reads the files of the processes, `ranks` determines which process is which rank,
//! `clocks` aligns the clocks of several hosts, `meetings` finds the calls that ranks made together
//! and their last ranks, and `timeline` writes the result for Perfetto.

mod clocks;
mod files;
mod meetings;
mod ranks;
mod timeline;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::numbers::plural;
use crate::output::complain;
use clocks::Clocks;
use meetings::Meetings;
use ranks::Ranks;

/// Merge the recorded calls of all ranks into one timeline
///
/// A job records its calls if RINGFOLD_TRACE names a folder; `ringfold run --trace` records and
/// merges. DIR has one file per process and communicator; copy those of several hosts into one
/// folder first. Files of processes that were killed are used, too. The timeline is in the Trace
/// Event Format: open it at ui.perfetto.dev, or in Chrome at chrome://tracing. Late ranks are
/// printed to standard error.
///
/// The clocks of several hosts are aligned by the calls themselves: no rank can leave an all_reduce
/// or a barrier before the last rank has entered it. The accuracy of each host's times is printed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TraceArguments {
    /// Folder of the recorded calls
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// File for the timeline (`-`: standard output)
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  ringfold run --ranks 4 --trace job.json -- python train.py
  RINGFOLD_TRACE=/tmp/calls torchrun --nproc-per-node 4 train.py
  ringfold trace /tmp/calls -o job.json";

/// Writes the timeline.
pub fn run(arguments: TraceArguments) -> Result<u8> {
    merge(&arguments.folder, &arguments.output)?;
    Ok(0)
}

/// Merges the files in `folder` into one timeline.
pub fn merge(folder: &Path, output: &Path) -> Result<()> {
    let boards = files::read(folder)?;
    let ranks = Ranks::of(&boards);
    let clocks = Clocks::compare(&boards, &ranks);
    let meetings = Meetings::find(&boards, &clocks);
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
