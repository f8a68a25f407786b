//! Commands that are their own launcher: without another launcher, they start this program once per
//! rank.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use ringfold::internals::control::Launch;
use ringfold::internals::setup::Explicit;
use ringfold::{Bind, Error};
use rustix::process::Signal;

use super::Job;
use super::outcome::{JobOutcome, describe};
use crate::output::complain;
use crate::status::fail;

/// The hidden flag of ranks that this command has started.
const LAUNCHED: &str = "--launched";

/// The origin of a [`Launch`] without a launcher.
pub const NO_LAUNCHER: &str = "no launcher";

/// The command line of this process, and the program that starts the same command.
#[derive(Debug)]
pub struct Invocation {
    /// The program and first arguments that start the command; empty for this process' program.
    pub program: Vec<OsString>,
    /// The command's arguments.
    pub arguments: Vec<OsString>,
}

impl Invocation {
    /// Returns the invocation of a process that is this command.
    pub fn of_this_process() -> Invocation {
        Invocation {
            program: vec![],
            arguments: std::env::args_os().skip(1).collect(),
        }
    }
}

/// This process' invocation.
static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// Stores the invocation for the functions below; only the first call has an effect.
pub fn remember(invocation: Invocation) {
    let _ = INVOCATION.set(invocation);
}

fn invocation() -> &'static Invocation {
    INVOCATION.get_or_init(Invocation::of_this_process)
}

/// The program, with its first arguments, that starts this command again.
pub struct Again(Vec<OsString>);

impl Again {
    /// Determines how this process was started.
    pub fn new() -> Result<Again> {
        let program = invocation().program.clone();
        if !program.is_empty() {
            return Ok(Again(program));
        }
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(Again(vec![own.into()]))
    }

    /// Returns the command, without further arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]);
        command
    }
}

/// Returns the command line as files record it.
pub fn recorded() -> Vec<String> {
    let words = invocation().arguments.iter();
    let words = words.map(|word| word.to_string_lossy().into_owned());
    std::iter::once("ringfold".to_owned())
        .chain(words.filter(|word| word != LAUNCHED))
        .collect()
}

/// Returns this process' rank; `None` if the process is to start ranks. `is_launched`: whether the
/// process was started as a rank; `ranks`: the requested number of ranks to start.
pub fn rank(is_launched: bool, ranks: Option<usize>) -> Result<Option<usize>> {
    if !is_launched && ranks.is_some() {
        return Ok(None);
    }
    let launch = Launch::detect(&Explicit::default())?;
    let is_rank = is_launched || launch.origin != NO_LAUNCHER;
    Ok(is_rank.then_some(launch.rank))
}

/// Returns how a rank binds itself; `None` if the environment decides. Only ranks of another
/// launcher bind themselves: this launcher has bound the ranks that it starts. The process is ours,
/// so no other threads are affected.
pub fn bind_of_rank(is_launched: bool, bind: Option<Bind>) -> Option<Bind> {
    let is_said = ringfold::env::process("RINGFOLD_BIND").is_some();
    match (is_launched, bind) {
        (true, _) => Some(Bind::None),
        (false, None) if is_said => None,
        (false, bind) => Some(bind.unwrap_or(Bind::Auto)),
    }
}

/// Starts the ranks with this command line and waits for them. `command` is the last word of the
/// command's name; `consequence` describes the effect of a rank's end.
pub fn launch(
    command: &str,
    ranks: usize,
    bind: Option<Bind>,
    consequence: &str,
) -> Result<JobOutcome> {
    let again = Again::new()?;
    let outcome = super::launch(&Job {
        ranks,
        place: None,
        command: &|_| {
            let mut rank = again.command();
            rank.args(rank_arguments(
                command,
                invocation().arguments.iter().cloned(),
            ));
            rank
        },
        prefix: false,
        input: false,
        bind,
        death_signal: Some(Signal::KILL),
    })?;
    if outcome.failure.is_some() && std::io::stderr().is_terminal() {
        // Erases the progress bar of a rank that could not erase it.
        eprint!("\r\x1b[K");
    }
    // A rank that exits has reported its error; a rank that was killed has not.
    if let (Some((rank, status)), false) = (outcome.failure, outcome.interrupted)
        && status.code().is_none()
    {
        let what = describe(status);
        complain(&format!("rank {rank} {what}; {consequence}"));
    }
    Ok(outcome)
}

/// Reports this rank's error and returns the exit status. The ranks that this command has started
/// write to one place, so a rank is silent if rank 0, or the rank that aborted the job, reports the
/// same error.
pub fn fail_as(rank: usize, is_launched: bool, error: anyhow::Error) -> u8 {
    let is_aborted =
        matches!(error.downcast_ref(), Some(Error::Aborted { rank: by, .. }) if *by != rank);
    if is_launched && (is_aborted || rank > 0 && is_the_users(&error)) {
        return 1;
    }
    fail(&error.context(format!("rank {rank}")))
}

fn is_the_users(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<Error>(),
        Some(Error::InvalidArgument(_) | Error::Unsupported(_))
    )
}

/// Returns this command line for a rank: the flag follows the command's name.
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
