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
mod output;
mod supervisor;

use std::fmt;
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use ringfold::Bind;
use rustix::io::Errno;
use rustix::process::Signal;

use environment::Environment;
pub use environment::{HostPlace, default_ranks};

/// Maximum number of ranks started on one host: more is a typing error, and would stall the
/// machine.
pub const MAX_RANKS: usize = 1024;

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

/// The end of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobOutcome {
    /// The first rank that failed, and its exit status.
    pub failure: Option<(usize, ExitStatus)>,
    /// Whether the launcher itself was asked to end, by SIGINT, SIGTERM or SIGHUP.
    pub interrupted: bool,
}

impl JobOutcome {
    /// Returns the job's exit status: that of the first failure, or 128 + n if it was signal n.
    pub fn status(&self) -> u8 {
        self.failure.map_or(0, |(_, status)| exit_code(status))
    }
}

/// Marks a system error that prevented a rank's program from starting.
#[derive(Debug)]
struct CannotStart(String);

impl std::fmt::Display for CannotStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the exit status of a command that ended with `error`. For a program that could not be
/// started, the status is that of shells and `env`: 127 if the program does not exist, 126 if it
/// cannot be run. For a wrong command line the status is 2, for any other error 1.
pub fn status_of(error: &anyhow::Error) -> u8 {
    let unstarted = error.downcast_ref::<CannotStart>();
    match unstarted.and_then(|_| error.downcast_ref::<std::io::Error>()) {
        Some(refusal) if refusal.kind() == ErrorKind::NotFound => 127,
        Some(refusal)
            if matches!(
                refusal.kind(),
                ErrorKind::PermissionDenied | ErrorKind::IsADirectory
            ) || refusal.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) =>
        {
            126
        }
        _ if error.is::<Usage>() => 2,
        _ => 1,
    }
}

/// An error of the command line as a whole.
#[derive(Debug)]
struct Usage(anyhow::Error);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for Usage {}

/// Marks an error of the command line, for the exit status.
pub fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(error).into()
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

/// Describes how a process ended, as the end of a sentence.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(number)) => format!("was ended by {}", signal_name(number)),
        (None, None) => "ended".into(),
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    // The system keeps eight bits of a status, and there are fewer than 128 signals.
    code as u8
}

fn signal_name(number: i32) -> String {
    match signal_hook::low_level::signal_name(number) {
        Some(name) => name.into(),
        None => format!("signal {number}"),
    }
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
