//! Starts the ranks of a job on this host and supervises them until the last one has ended.
//!
//! Every rank has a process group of its own, so that a terminal's Ctrl-C reaches the launcher
//! alone, which forwards it once. If a rank fails, the others have a moment to report their errors,
//! then get SIGTERM, then SIGKILL. A rank dies with the launcher, even if the launcher is killed (a
//! parent-death signal); processes that the rank itself started are then out of reach.
//!
//! A job on several hosts has a launcher on each ([`HostPlace`]); the launchers do not communicate.
//! If a rank fails, the ranks of the other hosts detect it and end with an error. Restarting ranks
//! is not supported here.

mod binding;
mod environment;
pub mod itself;
mod outcome;
mod output;
mod supervisor;

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use ringfold::Bind;
use rustix::process::Signal;

use crate::status::CannotStart;
pub use binding::BindFlag;
use environment::Environment;
pub use environment::{HostPlace, MAX_RANKS, default_ranks};
pub use outcome::{JobOutcome, describe};

/// The ranks to start on this host.
pub struct Job<'a> {
    /// The number of ranks on this host.
    pub ranks: usize,
    /// This host's place, if the job is on several hosts.
    pub place: Option<HostPlace>,
    /// The program of each rank, without the variables that describe the job.
    pub command: &'a dyn Fn(usize) -> Command,
    /// Whether the ranks' lines are collected and marked with their rank.
    pub prefix: bool,
    /// Whether rank 0 reads the launcher's standard input.
    pub input: bool,
    /// Signal that a rank gets when the launcher dies.
    pub death_signal: Option<Signal>,
    /// Binding of ranks to cores; `None`: the environment decides.
    pub bind: Option<Bind>,
}

/// Starts the job's ranks and returns when all have ended.
pub fn launch(job: &Job) -> Result<JobOutcome> {
    // Before the first child, so that no child's end and no signal is missed.
    let events = supervisor::Events::listen()?;
    let environment = match &job.place {
        None => Environment::new(job.ranks)?,
        Some(place) => Environment::at(place, job.ranks)?,
    };
    let cores = binding::cores(job.bind, job.ranks)?;
    let output = output::Collector::new();
    let mut children = Vec::with_capacity(job.ranks);
    for local_rank in 0..job.ranks {
        let cores = cores.as_ref().map(|cores| cores[local_rank].as_slice());
        match start(job, local_rank, &environment, cores, &output) {
            Ok(child) => children.push(child),
            Err(error) => {
                supervisor::Supervisor::new(children, events, &environment).end_all();
                return Err(error);
            }
        }
    }
    let outcome = supervisor::Supervisor::new(children, events, &environment).watch();
    output.finish();
    Ok(outcome)
}

fn start(
    job: &Job,
    local_rank: usize,
    environment: &Environment,
    cores: Option<&[usize]>,
    output: &output::Collector,
) -> Result<Child> {
    let rank = environment.rank(local_rank);
    let mut command = (job.command)(rank);
    command.envs(environment.variables(local_rank));
    command.stdin(match job.input && rank == 0 {
        true => output::launchers_stdin(),
        false => Stdio::null(),
    });
    if job.prefix {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    command.process_group(0);
    die_with_launcher(&mut command, job.death_signal);
    if let Some(cores) = cores {
        binding::bind(&mut command, cores);
    }
    let mut child = command.spawn().with_context(|| {
        let program = command.get_program().display();
        CannotStart(format!("cannot start `{program}` as rank {rank}"))
    })?;
    let attached = output.attach(rank, &mut child);
    if let Err(error) = attached.and_then(|()| output::feed_stdin(&mut child)) {
        // The child's output is not read; only its end is waited for.
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(child)
}

/// Asks the kernel to send `signal` to the process when the launcher dies.
fn die_with_launcher(command: &mut Command, signal: Option<Signal>) {
    let Some(signal) = signal else { return };
    let launcher = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(signal))?;
        // The launcher may have died before the request.
        if rustix::process::getppid() != Some(launcher) {
            return Err(ErrorKind::NotConnected.into());
        }
        Ok(())
    };
    // SAFETY: `ask` makes two system calls, takes no lock and allocates nothing, so it may run
    // between fork and exec.
    unsafe { command.pre_exec(ask) };
}
