//! The ranks of a communicator within their job: their world ranks, and the ranks that share a
//! host.

use std::path::Path;

use super::settings::Settings;
use crate::config::TransportChoice;
use crate::control::Session;
use crate::control::limit::Limit;
use crate::control::wire::{self, Wire};
use crate::env;
use crate::error::Result;
use crate::schedule::Groups;
use crate::tune::calibration::{self, Calibration};
use crate::tune::{Constants, Limits, Rules};

/// The parent of `proc` and `sys`.
const ROOT: &str = "/";

/// The ranks of a communicator within their job.
#[derive(Clone)]
pub(crate) struct RankGroup {
    pub session: Session,
    pub settings: Settings,
    /// The communicator's number within the job.
    pub id: u64,
    /// The world rank of each rank.
    pub world_ranks: Vec<usize>,
    /// This rank's number in the communicator.
    pub rank: usize,
    /// Values taken over from an earlier communicator, the same on all ranks.
    pub inherited: Inherited,
}

/// The values that a communicator takes over from an earlier one.
#[derive(Clone, Default)]
pub(crate) struct Inherited {
    /// The rules of a part of a split; `None` if rules and weights are from the ranks' settings.
    pub rules: Option<Rules>,
    /// Derived and probed values, if they fit.
    pub measured: Option<(Constants, Limits)>,
    /// Whether ranks read messages from each other's memory, if that is known.
    pub reads: Option<bool>,
}

impl RankGroup {
    /// Returns the measurements of this rank's machine, if their file exists and is to be read.
    pub fn calibration(&self) -> Option<Calibration> {
        calibration::find(&self.settings.calibration, &env::process, Path::new(ROOT))
    }

    /// Sends the record `what` to all ranks and returns all ranks' records in rank order. Ends
    /// early if `limit` has an error.
    pub fn agree<T: Wire>(&self, what: &str, record: &T, limit: Limit<'_>) -> Result<Vec<T>> {
        let (key, blob) = (format!("{what} {:x}", self.id), wire::encode(record));
        let blobs = self
            .session
            .exchange(&key, &self.world_ranks, &blob, limit)?;
        wire::decode_all(what, blobs)
    }

    /// Whether two ranks share a host.
    pub fn is_same_host(&self, one: usize, other: usize) -> bool {
        self.session.host(self.world_ranks[one]) == self.session.host(self.world_ranks[other])
    }

    /// Whether this rank and `other` reach each other by loopback.
    pub fn shares_loopback(&self, other: usize) -> bool {
        let host = |rank: usize| self.session.host(self.world_ranks[rank]);
        host(self.rank).is_same_network(&host(other))
    }

    /// Whether this rank and `other` share memory; true for this rank itself.
    pub fn shares_memory(&self, other: usize) -> bool {
        let is_never = matches!(
            self.settings.transport,
            TransportChoice::Tcp | TransportChoice::Rdma
        );
        other == self.rank || (!is_never && self.is_same_host(self.rank, other))
    }

    /// Returns the ranks of this host, in rank order.
    pub fn local_ranks(&self) -> Vec<usize> {
        (0..self.world_ranks.len())
            .filter(|rank| self.is_same_host(self.rank, *rank))
            .collect()
    }

    /// Returns this rank's number among the ranks of its host.
    pub fn local_rank(&self) -> usize {
        let is_before = |rank: &usize| self.is_same_host(self.rank, *rank);
        (0..self.rank).filter(is_before).count()
    }

    /// Returns the ranks of this machine: those of this host, and of other hosts that are
    /// containers on it. The order is host by host, each host's ranks in rank order.
    pub fn machine_ranks(&self) -> Vec<usize> {
        let host = |rank: usize| self.session.host(self.world_ranks[rank]);
        let own = host(self.rank);
        let mut ranks: Vec<usize> = (0..self.world_ranks.len())
            .filter(|rank| host(*rank).is_same_machine(&own))
            .collect();
        let in_order = ranks.clone();
        let first = |rank: &usize| {
            let mut others = in_order.iter();
            others
                .find(|other| self.is_same_host(*rank, **other))
                .copied()
        };
        ranks.sort_by_cached_key(first);
        ranks
    }

    /// Returns the process IDs of these ranks, which share a host.
    pub fn pids(&self, ranks: &[usize]) -> Vec<u32> {
        let pid = |rank: &usize| self.session.pid(self.world_ranks[*rank]);
        ranks.iter().map(pid).collect()
    }

    /// Returns the groups of ranks that share a host.
    pub fn hosts(&self) -> Groups {
        let hosts: Vec<_> = self
            .world_ranks
            .iter()
            .map(|rank| self.session.host(*rank))
            .collect();
        Groups::new(&hosts)
    }
}
