//! Commands that are their own launcher: without one around them, they start this program once per rank.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::Command;

use anyhow::{Context, Result};
use ringfold::Bind;
use ringfold::control::{Explicit, Launch};
use rustix::process::Signal;

use super::{Job, describe};

/// The hidden flag by which a rank knows that it was started by this command.
const LAUNCHED: &str = "--launched";

/// The origin of a place in no job.
pub const NO_LAUNCHER: &str = "no launcher";

/// Which rank this process is; `None` if it is to start ranks. `is_launched`: whether it was started as a rank; `ranks`: how
/// many it was told to start.
pub fn rank(is_launched: bool, ranks: Option<usize>) -> Result<Option<usize>> {
    if !is_launched && ranks.is_some() {
        return Ok(None);
    }
    let launch = Launch::detect(&Explicit::default())?;
    let is_rank = is_launched || launch.origin != NO_LAUNCHER;
    Ok(is_rank.then_some(launch.rank))
}

/// Starts the ranks with this command line, waits for them, and returns the exit status. `command` is the last word of the
/// command's name; `consequence` is what the end of a rank means.
pub fn launch(command: &str, ranks: usize, bind: Option<Bind>, consequence: &str) -> Result<u8> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let outcome = super::launch(&Job {
        ranks,
        command: &|_| {
            let mut rank = Command::new(&program);
            rank.args(rank_arguments(command, std::env::args_os().skip(1)));
            rank
        },
        prefix: false,
        input: false,
        bind,
        death_signal: Some(Signal::KILL),
    })?;
    if outcome.failure.is_some() && std::io::stderr().is_terminal() {
        // The bar of a rank that could not take it away.
        eprint!("\r\x1b[K");
    }
    // A rank that ends by itself has said why.
    if let (Some((rank, status)), false) = (outcome.failure, outcome.interrupted)
        && status.code().is_none()
    {
        let what = describe(status);
        crate::complain(&format!("rank {rank} {what}; {consequence}"));
    }
    Ok(outcome.status())
}

/// This command line for a rank: the flag follows the command's name.
fn rank_arguments(command: &str, own: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = own.collect();
    let name = arguments.iter().position(|word| word == command);
    arguments.insert(name.map_or(0, |at| at + 1), LAUNCHED.into());
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_started_with_the_same_command_line() {
        let own = ["perf", "all_gather", "--ranks", "3"].map(OsString::from);
        let expected = ["perf", "--launched", "all_gather", "--ranks", "3"].map(OsString::from);
        assert_eq!(rank_arguments("perf", own.into_iter()), expected);
        let own = ["tune", "sweep", "-n", "3"].map(OsString::from);
        let expected = ["tune", "sweep", "--launched", "-n", "3"].map(OsString::from);
        assert_eq!(rank_arguments("sweep", own.into_iter()), expected);
    }
}
