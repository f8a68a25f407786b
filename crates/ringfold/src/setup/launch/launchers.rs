//! The variables of the launchers: a table, and the special rules of torch's.

use sha2::{Digest, Sha256};

use super::ancestry::Ancestry;
use super::claim::{self, LauncherClaim, Nesting};
use super::slurm;
use crate::control::RendezvousAddress;
use crate::env::Lookup;
use crate::error::{Error, Result};

/// A launcher, and the variables that describe a process' place.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
    /// Whether rank without size, or size without rank, is an error; otherwise it is ignored.
    is_strict: bool,
    nesting: Nesting,
    /// Variables that are the same on all ranks of a job and different for two jobs on one host.
    job: &'static [&'static str],
}

/// The launchers from the innermost to the outermost: one may start those before it.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world_size: "LOCAL_WORLD_SIZE",
        is_strict: true,
        nesting: Nesting::Agents,
        job: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        is_strict: true,
        nesting: Nesting::Daemons,
        job: &["PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"],
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_world_size: "MPI_LOCALNRANKS",
        is_strict: true,
        nesting: Nesting::Daemons,
        job: &["PMI_JOBID", "PMI_PORT"],
    },
    Launcher {
        name: "MVAPICH",
        rank: "MV2_COMM_WORLD_RANK",
        world_size: "MV2_COMM_WORLD_SIZE",
        local_rank: "MV2_COMM_WORLD_LOCAL_RANK",
        local_world_size: "MV2_COMM_WORLD_LOCAL_SIZE",
        is_strict: true,
        nesting: Nesting::Daemons,
        job: &["PMI_JOBID", "PMI_PORT"],
    },
    // A batch script has a rank, too; only a step has the number of its tasks.
    Launcher {
        name: SLURM,
        rank: "SLURM_PROCID",
        world_size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_world_size: "",
        is_strict: false,
        nesting: Nesting::Tasks,
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

/// The origin of a place in a Slurm step.
pub(super) const SLURM: &str = "Slurm";

/// The MPIs, whose daemons may run as Slurm steps.
const MPIS: [&str; 3] = ["Open MPI", "PMI", "MVAPICH"];

impl Launcher {
    /// Returns this process' place according to the launcher.
    fn claim(&self, lookup: Lookup<'_>) -> Result<Option<LauncherClaim>> {
        let rank = number(lookup, self.rank)?;
        let world_size = number(lookup, self.world_size)?;
        let (rank, world_size) = match (rank, world_size) {
            (Some(rank), Some(size)) => (rank, size),
            (Some(_), None) if self.is_strict => {
                return Err(half(self.name, self.rank, self.world_size));
            }
            (None, Some(_)) if self.is_strict => {
                return Err(half(self.name, self.world_size, self.rank));
            }
            _ => return Ok(None),
        };
        let is_torch = self.nesting == Nesting::Agents;
        Ok(Some(LauncherClaim {
            name: self.name,
            rank,
            world_size,
            local_rank: number(lookup, self.local_rank)?,
            local_world_size: match self.name {
                SLURM => slurm::local_size(lookup),
                _ => number(lookup, self.local_world_size)?,
            },
            nesting: self.nesting,
            agents: claim::agents(lookup).filter(|_| is_torch),
            is_genuine: !is_torch || lookup("TORCHELASTIC_RUN_ID").is_some(),
            variables: [self.rank, self.world_size, self.local_rank],
        }))
    }
}

/// Returns the places of this process in the launchers' variables, the innermost first.
pub(super) fn claims(lookup: Lookup<'_>) -> Result<Vec<LauncherClaim>> {
    let claims = LAUNCHERS.iter().map(|launcher| launcher.claim(lookup));
    claims.filter_map(Result::transpose).collect()
}

/// Returns the place among `claims` that counts, if any.
pub(super) fn settle(
    claims: Vec<LauncherClaim>,
    ancestry: Ancestry<'_>,
) -> Result<Option<LauncherClaim>> {
    let mut outermost_first = claims.into_iter().rev();
    let first = outermost_first.next();
    outermost_first.try_fold(first, |outer, claim| match outer {
        Some(outer) => claim.settle(outer, ancestry).map(Some),
        None => Ok(Some(claim)),
    })
}

/// Returns rank 0's address in a job on several hosts, as the launcher `origin` implies.
pub(super) fn implied_address(origin: &str, lookup: Lookup<'_>) -> Option<RendezvousAddress> {
    match origin {
        SLURM => slurm::step_address(lookup),
        mpi if MPIS.contains(&mpi) => {
            let job = job_variables(mpi, lookup).join("\n");
            slurm::allocation_address(lookup, &job)
        }
        _ => None,
    }
}

/// Returns a name for this job on this host, from the values that the launcher `origin` sets alike
/// on all its ranks; else from the launcher's own process.
pub(super) fn job_name(origin: &str, lookup: Lookup<'_>, parent_pid: u32) -> String {
    let values = job_variables(origin, lookup);
    let text = match values.is_empty() {
        true => format!("parent {parent_pid}"),
        false => values.join("\n"),
    };
    let digest = Sha256::digest(text.as_bytes());
    let digits = digest[..8].iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// Returns the values that the launcher `origin` sets alike on all ranks of a job.
fn job_variables(origin: &str, lookup: Lookup<'_>) -> Vec<String> {
    let launcher = LAUNCHERS.iter().find(|launcher| launcher.name == origin);
    let names = launcher.map_or(&[] as &[&str], |launcher| launcher.job);
    names.iter().filter_map(|name| lookup(name)).collect()
}

/// Returns a table of the launchers and their variables, in order of precedence.
#[cfg(test)]
pub fn launchers() -> String {
    let mut rows = String::from(
        "| launcher | rank | world size | local rank | local world size |\n|---|---|---|---|---|\n",
    );
    for launcher in &LAUNCHERS {
        let local_world_size = match launcher.name {
            SLURM => "SLURM_STEP_TASKS_PER_NODE",
            _ => launcher.local_world_size,
        };
        rows.push_str(&format!(
            "| {} | `{}` | `{}` | `{}` | `{local_world_size}` |\n",
            launcher.name, launcher.rank, launcher.world_size, launcher.local_rank
        ));
    }
    rows.push_str("| Kubernetes | `JOB_COMPLETION_INDEX` | `RINGFOLD_WORLD_SIZE` | | |\n");
    rows
}

pub(super) fn half(who: &str, there: &str, missing: &str) -> Error {
    Error::InvalidArgument(format!(
        "{who} is set by {there}, but {missing} is not set; set both or neither"
    ))
}

pub(super) fn number(lookup: Lookup<'_>, name: &str) -> Result<Option<usize>> {
    let Some(text) = lookup(name) else {
        return Ok(None);
    };
    let number = text.trim().parse().map_err(|_| {
        Error::InvalidArgument(format!(
            "{name}=`{text}`: must be a whole number, 0 or more"
        ))
    })?;
    Ok(Some(number))
}

/// Returns torch's address with the next port: the port itself belongs to torch's store.
pub(super) fn master(lookup: Lookup<'_>) -> Result<Option<RendezvousAddress>> {
    let (host, port) = match (lookup("MASTER_ADDR"), number(lookup, "MASTER_PORT")?) {
        (Some(host), Some(port)) => (host, port),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(half("rank 0's host", "MASTER_ADDR", "MASTER_PORT")),
        (None, Some(_)) => return Err(half("rank 0's port", "MASTER_PORT", "MASTER_ADDR")),
    };
    match u16::try_from(port.saturating_add(1)) {
        Ok(port) => Ok(Some(RendezvousAddress::Tcp { host, port })),
        Err(_) => Err(Error::InvalidArgument(format!(
            "MASTER_PORT={port}: the port after it is needed, and there is none; choose a lower \
             one or set RINGFOLD_ADDR"
        ))),
    }
}
