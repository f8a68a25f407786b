//! Slurm's variables beyond ranks: the nodes of a job, and the tasks on each.

use sha2::{Digest, Sha256};

use crate::control::RendezvousAddress;
use crate::env::Lookup;

/// The first port above the usual ephemeral ones.
const FIRST_PORT: u64 = 61440;
/// Number of ports from `FIRST_PORT` on, among which a job's is chosen.
const PORTS: u64 = 4096;

/// Returns the first host of a Slurm step, and a port derived from the numbers of job and step.
pub(super) fn step_address(lookup: Lookup<'_>) -> Option<RendezvousAddress> {
    let list = lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_JOB_NODELIST"))?;
    let step = lookup("SLURM_STEP_ID").and_then(|text| text.parse().ok());
    address(lookup, &list, step.unwrap_or(0u64).wrapping_mul(251))
}

/// Returns the first host of a Slurm job in which an MPI starts the ranks, and a port derived from
/// the job's number and from `mpi_job`, the same on all ranks. The step cannot be used: it is that
/// of the MPI's daemons, and ranks on the node of the batch script are in none.
pub(super) fn allocation_address(lookup: Lookup<'_>, mpi_job: &str) -> Option<RendezvousAddress> {
    let list = lookup("SLURM_JOB_NODELIST")?;
    let digest = Sha256::digest(mpi_job.as_bytes());
    address(
        lookup,
        &list,
        u64::from(digest[0]) << 8 | u64::from(digest[1]),
    )
}

fn address(lookup: Lookup<'_>, list: &str, offset: u64) -> Option<RendezvousAddress> {
    let job: u64 = lookup("SLURM_JOB_ID")?.parse().ok()?;
    Some(RendezvousAddress::Tcp {
        host: first_host(list)?,
        port: (FIRST_PORT + job.wrapping_add(offset) % PORTS) as u16,
    })
}

/// Returns the first host of a Slurm list: `node[01-04,7],login1` begins with `node01`. Brackets
/// may be anywhere in a name.
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

/// Returns this node's tasks from a list like `2(x3),1`: three nodes of two tasks, then one of one.
pub(super) fn local_size(lookup: Lookup<'_>) -> Option<usize> {
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
