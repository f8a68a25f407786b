//! Runs the command as the ranks of a job on a lab's hosts.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::lab::{self, Lab};

/// Runs the command with these arguments and variables, each rank on the host listed for it.
/// Returns rank 0's output, and each rank's standard error, once all have succeeded.
pub fn run(
    lab: &Lab,
    hosts: &[usize],
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> (String, Vec<String>) {
    let done = run_each(lab, hosts, |_| variables.to_vec(), arguments);
    let output = String::from_utf8_lossy(&done[0].stdout).into_owned();
    let mut complaints = Vec::new();
    for (rank, done) in done.iter().enumerate() {
        let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            done.status.success(),
            "rank {rank} of {arguments:?}: {complaint}"
        );
        complaints.push(complaint);
    }
    (output, complaints)
}

/// Like `run`, but each rank has its own variables and may fail. Returns each rank's outcome.
pub fn run_each<'a>(
    lab: &Lab,
    hosts: &[usize],
    variables: impl Fn(usize) -> Vec<(&'a str, &'a str)>,
    arguments: &[&str],
) -> Vec<Output> {
    let start = |rank: usize| -> Child {
        let program = Path::new(env!("CARGO_BIN_EXE_ringfold"));
        let mut command: Command = lab.command(hosts[rank], program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("RINGFOLD_RANK", rank.to_string())
            .env("RINGFOLD_WORLD_SIZE", hosts.len().to_string())
            .env("RINGFOLD_ADDR", lab::rendezvous())
            .env("RINGFOLD_SECRET", "a secret for these tests alone")
            .env("RINGFOLD_TIMEOUT_MS", "30000")
            .env("RINGFOLD_CONNECT_TIMEOUT_MS", "30000")
            .envs(variables(rank))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("the command starts")
    };
    let ranks: Vec<Child> = (0..hosts.len()).map(start).collect();
    // The deadlines above are the watchdog.
    let end = |child: Child| child.wait_with_output().expect("a process of our own");
    ranks.into_iter().map(end).collect()
}
