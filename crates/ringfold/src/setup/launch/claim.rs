//! A process' place according to one launcher, and the choice between two launchers.
//!
//! Launchers start each other: srun starts an MPI's daemons or torchrun's agents, and these start
//! the ranks, which then have the variables of both. The newer launcher's variables count: the
//! older one's describe the newer one's daemons. The ancestors' environments show which launcher is
//! newer. If they cannot be read, the numbers must fit the usual order: torchrun in an MPI in
//! Slurm. Otherwise the launchers contradict each other, which is an error.

use std::fmt;

use super::ancestry::Ancestry;
use crate::env::Lookup;
use crate::error::{Error, Result};

/// The relation of a launcher's ranks to the tasks of other launchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nesting {
    /// Agents, one for each task of another launcher, start the ranks: torchrun.
    Agents,
    /// Daemons, at most one for each task of another launcher, start the ranks: an MPI.
    Daemons,
    /// The launcher's own tasks are the ranks.
    Tasks,
}

/// A process' place according to one launcher.
#[derive(Clone, Debug)]
pub(super) struct LauncherClaim {
    /// Name of the launcher.
    pub name: &'static str,
    pub rank: usize,
    pub world_size: usize,
    pub local_rank: Option<usize>,
    pub local_world_size: Option<usize>,
    pub nesting: Nesting,
    /// Number of agents, if the launcher reports it.
    pub agents: Option<usize>,
    /// Whether the launcher itself has set the variables, and not a script.
    pub is_genuine: bool,
    /// Names of the variables of rank, world size and local rank.
    pub variables: [&'static str; 3],
}

impl LauncherClaim {
    /// Returns which of two claims counts, or an error if they contradict each other.
    pub fn settle(self, outer: LauncherClaim, ancestry: Ancestry<'_>) -> Result<LauncherClaim> {
        if self.is_same(&outer) {
            // srun sets PMI's rank and size for its tasks, too; its own variables tell more.
            let knows_less = self.local_rank.is_none() && self.local_world_size.is_none();
            return Ok(if knows_less { outer } else { self });
        }
        let is_newer = match self.is_genuine {
            true => self.is_newer_than(&outer.variables, ancestry),
            false => None,
        };
        match is_newer.unwrap_or_else(|| self.can_be_inside(&outer)) {
            true => Ok(self),
            // The other launcher has been shown to be newer.
            false if is_newer.is_some() => Ok(outer),
            false => Err(self.contradicts(&outer)),
        }
    }

    /// Whether the launcher's variables are newer than another's, if the ancestors show that.
    pub fn is_newer_than(&self, others: &[&str], ancestry: Ancestry<'_>) -> Option<bool> {
        let (own, theirs) = (ancestry(&self.variables[..2]), ancestry(&others[..2]));
        (own != theirs).then_some(own < theirs)
    }

    pub fn is_same(&self, other: &LauncherClaim) -> bool {
        let local = self.local_rank.zip(other.local_rank);
        (self.rank, self.world_size) == (other.rank, other.world_size)
            && local.is_none_or(|(own, theirs)| own == theirs)
    }

    /// Whether the other claim can belong to the agent or daemon that started this process.
    fn can_be_inside(&self, outer: &LauncherClaim) -> bool {
        let are_both_mpi = self.nesting == Nesting::Daemons && outer.nesting == Nesting::Daemons;
        if outer.world_size == 1 {
            return !are_both_mpi;
        }
        match self.nesting {
            Nesting::Agents => {
                let even = self.local_world_size.filter(|size| *size > 0);
                let agents = even.map(|size| self.world_size / size);
                // An elastic torchrun renumbers its agents.
                let node = even.map(|size| self.rank / size);
                self.agents.or(agents) == Some(outer.world_size)
                    && (self.is_genuine || node == Some(outer.rank))
            }
            Nesting::Daemons => {
                !are_both_mpi
                    && outer.local_rank.is_none_or(|local| local == 0)
                    && match self.local_rank {
                        Some(_) => outer.world_size <= self.world_size,
                        None => outer.world_size < self.world_size,
                    }
            }
            Nesting::Tasks => false,
        }
    }

    /// Returns the error of two claims that contradict each other.
    pub fn contradicts(&self, other: impl fmt::Display) -> Error {
        Error::InvalidArgument(format!(
            "contradictory variables of launchers: {self}, but {other}; unset those of the \
             launcher that did not start this process (`env -u NAME`), or set RINGFOLD_RANK and \
             RINGFOLD_WORLD_SIZE"
        ))
    }
}

impl fmt::Display for LauncherClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rank, world_size, local_rank] = self.variables;
        write!(
            f,
            "{} has {rank}={} and {world_size}={}",
            self.name, self.rank, self.world_size
        )?;
        match self.local_rank {
            Some(number) => write!(f, " with {local_rank}={number}"),
            None => Ok(()),
        }
    }
}

/// Returns the number of torchrun's agents, if reported.
pub(super) fn agents(lookup: Lookup<'_>) -> Option<usize> {
    lookup("GROUP_WORLD_SIZE")?.trim().parse().ok()
}
