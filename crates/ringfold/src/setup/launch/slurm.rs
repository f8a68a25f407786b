//! Slurm's variables other than those for ranks: the nodes of a job, and the number of tasks on
//! each.

use sha2::{Digest, Sha256};

use crate::control::RendezvousAddress;
use crate::env::Lookup;

/// The first port of the range for jobs, above Linux's default ephemeral ports.
const FIRST_PORT: u64 = 61440;
/// Number of ports in the range for jobs, from `FIRST_PORT`.
const PORTS: u64 = 4096;

/// Returns the first host of a Slurm step, and a port derived from the IDs of the job and the step.
pub(super) fn step_address(lookup: Lookup<'_>) -> Option<RendezvousAddress> {
    let list = lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_JOB_NODELIST"))?;
    let step = lookup("SLURM_STEP_ID").and_then(|text| text.parse().ok());
    address(lookup, &list, step.unwrap_or(0u64).wrapping_mul(251))
}

/// Returns the first host of a Slurm job whose ranks are started by an MPI launcher. The port is
/// derived from the job's ID and from `mpi_job`, which is the same on all ranks. The step cannot be
/// used: it belongs to the daemons of the MPI launcher, and ranks on the node of the batch script
/// belong to no step.
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

/// Returns the number of tasks on this node, from a list such as `2(x3),1`: three nodes with two
/// tasks each, then one node with one task.
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
