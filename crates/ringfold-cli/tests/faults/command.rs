//! The command as the ranks of a job on a lab's hosts.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::lab::{self, Lab};

/// Runs the command with these arguments and variables, each rank on the host that is listed for
/// it; rank 0's output, and what each rank wrote to standard error, once all have ended well.
pub fn run(
    lab: &Lab,
    hosts: &[usize],
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> (String, Vec<String>) {
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
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("the command starts")
    };
    let ranks: Vec<Child> = (0..hosts.len()).map(start).collect();
    let mut output = String::new();
    let mut complaints = Vec::new();
    for (rank, child) in ranks.into_iter().enumerate() {
        // The deadlines above are the watchdog.
        let done = child.wait_with_output().expect("a process of our own");
        let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            done.status.success(),
            "rank {rank} of {arguments:?}: {complaint}"
        );
        complaints.push(complaint);
        if rank == 0 {
            output = String::from_utf8_lossy(&done.stdout).into_owned();
        }
    }
    (output, complaints)
}
