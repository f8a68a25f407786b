//! The variables of the launchers: a table, and what is special about Slurm's and torch's.

use sha2::{Digest, Sha256};

use crate::control::{Address, Launch};
use crate::env::Lookup;
use crate::error::{Error, Result};

/// The names by which a launcher says who a process is.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
    /// Whether rank without size, or size without rank, is an error; else it is ignored.
    is_strict: bool,
    /// Variables that are the same on all ranks of a job and different for two jobs on one host.
    job: &'static [&'static str],
}

/// In order of precedence.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world_size: "LOCAL_WORLD_SIZE",
        is_strict: true,
        job: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    // A batch script has a rank, too; only a step says how many tasks it has.
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        world_size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_world_size: "",
        is_strict: false,
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        is_strict: true,
        job: &["PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"],
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_world_size: "MPI_LOCALNRANKS",
        is_strict: true,
        job: &["PMI_JOBID", "PMI_PORT"],
    },
    Launcher {
        name: "MVAPICH",
        rank: "MV2_COMM_WORLD_RANK",
        world_size: "MV2_COMM_WORLD_SIZE",
        local_rank: "MV2_COMM_WORLD_LOCAL_RANK",
        local_world_size: "MV2_COMM_WORLD_LOCAL_SIZE",
        is_strict: true,
        job: &["PMI_JOBID", "PMI_PORT"],
    },
];

impl Launch {
    pub(super) fn from_launchers(lookup: Lookup<'_>) -> Result<Launch> {
        for launcher in &LAUNCHERS {
            let rank = number(lookup, launcher.rank)?;
            let world_size = number(lookup, launcher.world_size)?;
            let (rank, world_size) = match (rank, world_size) {
                (Some(rank), Some(size)) => (rank, size),
                (Some(_), None) if launcher.is_strict => {
                    return Err(half(launcher.name, launcher.rank, launcher.world_size));
                }
                (None, Some(_)) if launcher.is_strict => {
                    return Err(half(launcher.name, launcher.world_size, launcher.rank));
                }
                _ => continue,
            };
            let local_world_size = match launcher.name {
                "Slurm" => slurm_local_size(lookup),
                _ => number(lookup, launcher.local_world_size)?,
            };
            return Ok(Launch {
                local_rank: number(lookup, launcher.local_rank)?,
                local_world_size,
                ..Launch::new(rank, world_size, launcher.name)
            });
        }
        Ok(Launch {
            local_rank: Some(0),
            local_world_size: Some(1),
            ..Launch::new(0, 1, "no launcher")
        })
    }
}

/// A name for this job on this host, from what the launcher `origin` gives all its ranks alike;
/// else from the launcher's own process.
pub(super) fn job_name(origin: &str, lookup: Lookup<'_>, parent_pid: u32) -> String {
    let launcher = LAUNCHERS.iter().find(|launcher| launcher.name == origin);
    let names = launcher.map_or(&[] as &[&str], |launcher| launcher.job);
    let values: Vec<String> = names.iter().filter_map(|name| lookup(name)).collect();
    let text = match values.is_empty() {
        true => format!("parent {parent_pid}"),
        false => values.join("\n"),
    };
    let digest = Sha256::digest(text.as_bytes());
    let digits = digest[..8].iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}

/// The launchers' names and their variables, in order of precedence, as rows of a table.
#[cfg(test)]
pub fn launchers() -> String {
    let mut rows = String::from(
        "| launcher | rank | world size | local rank | local world size |\n|---|---|---|---|---|\n",
    );
    for launcher in &LAUNCHERS {
        let local_world_size = match launcher.name {
            "Slurm" => "SLURM_STEP_TASKS_PER_NODE",
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
        "{who} is given by {there}, but {missing} is not; give both or neither"
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

/// torch's address, one port further: the port itself belongs to torch's store.
pub(super) fn master(lookup: Lookup<'_>) -> Result<Option<Address>> {
    let (host, port) = match (lookup("MASTER_ADDR"), number(lookup, "MASTER_PORT")?) {
        (Some(host), Some(port)) => (host, port),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(half("rank 0's host", "MASTER_ADDR", "MASTER_PORT")),
        (None, Some(_)) => return Err(half("rank 0's port", "MASTER_PORT", "MASTER_ADDR")),
    };
    match u16::try_from(port.saturating_add(1)) {
        Ok(port) => Ok(Some(Address::Tcp { host, port })),
        Err(_) => Err(Error::InvalidArgument(format!(
            "MASTER_PORT={port}: the port after it is needed, and there is none; choose a lower \
             one or set RINGFOLD_ADDR"
        ))),
    }
}

/// The first host of a Slurm step, and a port above the ephemeral ones that follows from the
/// numbers of job and step.
pub(super) fn slurm_address(lookup: Lookup<'_>) -> Option<Address> {
    const FIRST_PORT: u64 = 61440;
    let list = lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_JOB_NODELIST"))?;
    let job: u64 = lookup("SLURM_JOB_ID")?.parse().ok()?;
    let step = lookup("SLURM_STEP_ID").and_then(|text| text.parse().ok());
    let offset = job.wrapping_add(step.unwrap_or(0u64).wrapping_mul(251)) % 4096;
    Some(Address::Tcp {
        host: first_host(&list)?,
        port: (FIRST_PORT + offset) as u16,
    })
}

/// The first host of a Slurm list: `node[01-04,7],login1` begins with `node01`. Brackets may stand
/// anywhere in a name.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        rest = &rest[end..];
        if !rest.starts_with('[') {
            return (!name.is_empty()).then_some(name);
        }
        let close = rest.find(']')?;
        let inside = &rest[1..close];
        name.push_str(inside.split([',', '-']).next()?);
        rest = &rest[close + 1..];
    }
}

/// This node's tasks, from a list like `2(x3),1`: three nodes of two tasks, then one of one.
fn slurm_local_size(lookup: Lookup<'_>) -> Option<usize> {
    let list = lookup("SLURM_STEP_TASKS_PER_NODE")?;
    let mut node: usize = lookup("SLURM_NODEID")?.parse().ok()?;
    for part in list.split(',') {
        let (tasks, repeats) = match part.split_once("(x") {
            Some((tasks, repeats)) => (tasks, repeats.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < repeats {
            return tasks.parse().ok();
        }
        node -= repeats;
    }
    None
}
