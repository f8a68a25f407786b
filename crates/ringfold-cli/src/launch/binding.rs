//! Binds each rank of a job to cores: between fork and exec, so that the affinity holds for all
//! threads of the rank.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use ringfold::Bind;
use ringfold::env::{Environment, process};
use ringfold::internals::topology::CoreLayout;
use ringfold::internals::topology::binding::{self, BindingDecision, BindingQuestion};
use ringfold::internals::topology::cores;

/// Parent folder of `proc` and `sys`.
const ROOT: &str = "/";

/// The flag of every command that starts ranks.
#[derive(clap::Args, Clone, Debug)]
pub struct BindFlag {
    /// Binding of ranks to cores: auto, none, core [default: RINGFOLD_BIND, else auto]
    ///
    /// auto: each rank to its share of the cores; if there are more ranks than cores, the same
    /// number of ranks to each core. Ranks are not bound if they cannot share the cores evenly, if
    /// the affinity of this command was narrowed (taskset), or if a variable such as SLURM_CPU_BIND
    /// or OMP_PLACES shows that binding is handled elsewhere. core: each rank to one core, spread
    /// over caches and sockets; all threads of a rank share the core, including those of OpenMP and
    /// torch. none: no binding.
    #[arg(long, value_name = "HOW")]
    pub bind: Option<Bind>,
}

/// Returns the cores of every rank; `None` leaves the ranks to the system. Without `asked`, the
/// environment decides, else [`Bind::Auto`].
pub fn cores(asked: Option<Bind>, ranks: usize) -> Result<Option<Vec<Vec<usize>>>> {
    let environment = Environment::from_lookup(&process)?;
    let own = cores::affinity();
    let layout = CoreLayout::read(Path::new(ROOT), &own);
    let allowed = cores::allowed(Path::new(ROOT));
    let question = BindingQuestion {
        bind: asked.or(environment.bind).unwrap_or(Bind::Auto),
        affinities: &vec![own; ranks],
        are_alone: false,
        cores: cores::available(),
        allowed: allowed.as_deref(),
        foreign: environment.foreign_binding,
        layout: &layout,
    };
    let mut bound = Vec::with_capacity(ranks);
    for rank in 0..ranks {
        match question.decide(rank)? {
            BindingDecision::Bind(cores) => bound.push(cores),
            BindingDecision::Leave(_) => return Ok(None),
        }
    }
    Ok(Some(bound))
}

/// Binds the process that `command` starts to `cores`.
pub fn bind(command: &mut Command, cores: &[usize]) {
    let set = binding::set(cores);
    let narrow = move || Ok(rustix::thread::sched_setaffinity(None, &set)?);
    // SAFETY: `narrow` makes one system call, takes no lock and allocates nothing, so it may run
    // between fork and exec.
    unsafe { command.pre_exec(narrow) };
}
