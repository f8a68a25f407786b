//! `ringfold run`: starts any program as the ranks of a job on this host, or as this host's ranks
//! of a job on several.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use ringfold::internals::control::RendezvousAddress;
use rustix::process::Signal;

use crate::launch::{self, BindFlag, HostPlace, Job};
use crate::parse::parse_ranks;
use crate::status::usage;
use crate::{output, trace};

/// Run a program as the ranks of a job on this host, or on several
///
/// Every rank gets RINGFOLD_RANK, RINGFOLD_WORLD_SIZE, RINGFOLD_LOCAL_RANK,
/// RINGFOLD_LOCAL_WORLD_SIZE, RINGFOLD_ADDR and RINGFOLD_SECRET, and torchrun's RANK, WORLD_SIZE,
/// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
///
/// Rank 0 reads standard input; the others have none. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2
/// are forwarded. When a rank fails, the others get SIGTERM and, 5 seconds later, SIGKILL. The exit
/// status is that of the first rank that failed, or 128 + n if signal n ended that rank. It is 127
/// if the program does not exist, and 126 if it cannot be run.
///
/// For several hosts, run the same command on each host, with --hosts, --addr and the host's own
/// --host-rank. All hosts need the same secret, in RINGFOLD_SECRET_FILE or RINGFOLD_SECRET. Torch's
/// store uses the port after that of --addr. When a rank fails, the ranks of other hosts end with
/// an error that names it.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArguments {
    /// Number of ranks on this host (in `ringfold perf`, -n is the iterations) [default: one per
    /// core, at least 2]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_ranks)]
    ranks: Option<usize>,

    /// Number of hosts of the job, each with the same number of ranks
    #[arg(long, visible_alias = "nnodes", value_name = "N")]
    hosts: Option<NonZeroUsize>,

    /// Number of this host, from 0; rank 0 is on host 0
    #[arg(long, visible_alias = "node-rank", value_name = "I")]
    host_rank: Option<usize>,

    /// Address of rank 0: the name or address of host 0, and a free port there [default:
    /// RINGFOLD_ADDR]
    #[arg(long, value_name = "HOST:PORT")]
    addr: Option<RendezvousAddress>,

    /// Print the ranks' output unchanged instead of marking every line with its rank
    #[arg(long)]
    no_prefix: bool,

    #[command(flatten)]
    binding: BindFlag,

    /// Record all calls, and write one timeline of all ranks to FILE at the end, for Perfetto
    ///
    /// See `ringfold trace`. The folder FILE.calls has the recorded calls until the timeline is
    /// written; if this command is killed, `ringfold trace FILE.calls` writes the timeline.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Signal that a rank gets when the launcher dies
    #[arg(long, value_name = "SIGNAL", default_value = "kill")]
    pdeathsig: DeathSignal,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  ringfold run --ranks 4 -- python train.py
  ringfold run --ranks 2 -- sh -c 'echo rank $RINGFOLD_RANK of $RINGFOLD_WORLD_SIZE'
  ringfold run --ranks 4 --trace job.json -- python train.py
  ringfold run --hosts 2 --host-rank 1 --addr node0:29400 --ranks 4 -- python train.py
  ringfold run --ranks 8 --no-prefix -- ./my_program --its-own-flag";

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DeathSignal {
    /// SIGKILL
    Kill,
    /// SIGTERM
    Term,
    /// SIGHUP
    Hup,
    /// No signal: ranks outlive a killed launcher
    None,
}

/// Runs the job and returns its exit status.
pub fn run(arguments: RunArguments) -> Result<u8> {
    let [program, rest @ ..] = arguments.command.as_slice() else {
        // The argument is required.
        unreachable!("no command");
    };
    let place = place(&arguments).map_err(usage)?;
    let recording = arguments.trace.map(Recording::begin).transpose()?;
    let outcome = launch::launch(&Job {
        ranks: arguments.ranks.unwrap_or_else(launch::default_ranks),
        place,
        command: &|_| {
            let mut command = Command::new(program);
            command.args(rest);
            if let Some(recording) = &recording {
                command.env("RINGFOLD_TRACE", &recording.calls);
            }
            command
        },
        prefix: !arguments.no_prefix,
        input: true,
        bind: arguments.binding.bind,
        death_signal: match arguments.pdeathsig {
            DeathSignal::Kill => Some(Signal::KILL),
            DeathSignal::Term => Some(Signal::TERM),
            DeathSignal::Hup => Some(Signal::HUP),
            DeathSignal::None => None,
        },
    })?;
    if let (Some((rank, status)), false) = (outcome.failure, outcome.interrupted) {
        let what = launch::describe(status);
        output::complain(&format!("rank {rank} {what}; the job ends"));
    }
    if let Some(recording) = recording
        && let Err(error) = recording.end()
    {
        output::complain(&format!("no timeline: {error:#}"));
        return Ok(outcome.status().max(1));
    }
    Ok(outcome.status())
}

/// Returns this host's place in a job on several hosts; `None` for a job on one host.
fn place(arguments: &RunArguments) -> Result<Option<HostPlace>> {
    let Some(hosts) = arguments.hosts.map(NonZeroUsize::get) else {
        if arguments.host_rank.is_some() || arguments.addr.is_some() {
            bail!("--host-rank and --addr are for jobs on several hosts: add --hosts N");
        }
        return Ok(None);
    };
    let last = hosts - 1;
    let host_rank = match arguments.host_rank {
        Some(host_rank) if host_rank < hosts => host_rank,
        Some(host_rank) => {
            bail!("no --host-rank {host_rank} among {hosts} hosts; the last is {last}")
        }
        None if hosts == 1 => 0,
        None => bail!("--hosts {hosts} needs --host-rank I on each host, from 0 to {last}"),
    };
    if hosts == 1 {
        return Ok(None);
    }
    if arguments.ranks.is_none() {
        bail!("--hosts {hosts} needs --ranks N, the same number on each host");
    }
    if arguments.trace.is_some() {
        bail!(
            "--trace makes the timeline of one host's job; for several hosts set RINGFOLD_TRACE to \
             a folder on each, copy the files into one folder, and use `ringfold trace`"
        );
    }
    let address = match (&arguments.addr, std::env::var("RINGFOLD_ADDR")) {
        (Some(address), _) => address.clone(),
        (None, Ok(text)) => text.parse()?,
        (None, Err(_)) => bail!(
            "--hosts {hosts} needs --addr HOST:PORT, host 0's name or address and a free port there"
        ),
    };
    Ok(Some(HostPlace {
        hosts,
        host_rank,
        address,
    }))
}

/// A job whose calls are recorded.
struct Recording {
    timeline: PathBuf,
    /// The folder of the recorded calls. Absolute, because ranks may change their folder.
    calls: PathBuf,
}

impl Recording {
    /// Creates the folder in which the ranks record.
    fn begin(timeline: PathBuf) -> Result<Recording> {
        output::check(&timeline)?;
        let mut name = timeline.clone().into_os_string();
        name.push(".calls");
        let calls = std::path::absolute(PathBuf::from(name))?;
        match DirBuilder::new().mode(0o700).create(&calls) {
            Ok(()) => Ok(Recording { timeline, calls }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "`{}` exists: another job records there, or a job ended without a timeline; \
                 `ringfold trace` writes the timeline from that folder, which can then be removed",
                calls.display()
            ),
            Err(error) => {
                Err(error).with_context(|| format!("cannot create `{}`", calls.display()))
            }
        }
    }

    /// Writes the timeline, and removes the folder of the calls.
    fn end(self) -> Result<()> {
        trace::merge(&self.calls, &self.timeline)?;
        fs::remove_dir_all(&self.calls)
            .with_context(|| format!("cannot remove `{}`", self.calls.display()))
    }
}
