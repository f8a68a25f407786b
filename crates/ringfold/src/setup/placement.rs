//! The placement of a communicator's ranks on cores, decided from all ranks' affinities, and alike
//! by all ranks that share cores. Those are the ranks of a host, and of containers beside it on the
//! same machine, as far as their affinities show: another container's quota is unknown. Ranks of
//! one host are neighbours: if ranks outnumber the cores, a host is spread over as few cores as
//! possible, so that hosts do not wait for each other's ranks.

use std::collections::BTreeSet;
use std::path::Path;

use super::peer_info::PeerInfo;
use crate::communicator::group::RankGroup;
use crate::communicator::settings::Settings;
use crate::config::Bind;
use crate::env;
use crate::error::Result;
use crate::reduce::parallel::{self, Parallel};
use crate::schedule::Groups;
use crate::topology::binding::{self, BindingDecision, BindingQuestion};
use crate::topology::cores;
use crate::topology::layout::CoreLayout;
use crate::topology::neighbours;
use crate::tune::Limits;

/// Root directory of `proc` and `sys`.
pub(super) const ROOT: &str = "/";

/// Call size in bytes from which a rank that asks for helpers gets them, even if the limits leave
/// the cores to the ranks.
const HELPED_BYTES_MIN: u64 = 1 << 20;

/// The ranks that share this rank's cores: those of its host, and of containers on the same machine
/// that run on some of the same cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Number of ranks, including this one.
    pub ranks: usize,
    /// Number of cores of all these ranks.
    pub cores: usize,
}

impl Sharing {
    /// Whether these ranks outnumber their cores.
    pub fn is_oversubscribed(self) -> bool {
        self.ranks > self.cores
    }
}

/// The cores of this rank, and the number of cores available.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Number of cores of all ranks of this host. The affinity of a rank that is bound does not
    /// show that number.
    pub cores: usize,
    /// The ranks that share this rank's cores, and all of their cores.
    pub sharing: Sharing,
    /// The domain of all cores of this rank, if they are in one.
    pub domain: Option<usize>,
    /// Number of processes of other communicators busy on this host's cores when this one began.
    neighbours: usize,
    /// Number of cores that this rank may use.
    own_cores: usize,
}

impl Placement {
    /// Binds the calling thread according to the settings. If nothing is bound, and all ranks that
    /// share cores have one affinity, the thread starts on a core of its own. `own` is this rank's
    /// affinity.
    pub fn bind(group: &RankGroup, own: &[usize], peers: &[PeerInfo]) -> Result<Placement> {
        let local_ranks = group.local_ranks();
        let affinity = |rank: &usize| &peers[*rank].affinity.0;
        let union: BTreeSet<usize> = local_ranks.iter().flat_map(affinity).copied().collect();
        let cores = cores::within_quota(union.len());
        let sharers = sharers(group.machine_ranks(), &local_ranks, &union, affinity);
        let affinities: Vec<Vec<usize>> = sharers.iter().map(affinity).cloned().collect();
        let sharing = share(&union, cores, &affinities);
        let layout = CoreLayout::read(Path::new(ROOT), own);
        let place = sharers.iter().position(|rank| *rank == group.rank);
        let place = place.expect("a rank shares cores with itself");
        let allowed = cores::allowed(Path::new(ROOT));
        let question = BindingQuestion {
            bind: group.settings.bind,
            affinities: &affinities,
            are_alone: are_alone(&group.hosts(), &sharers),
            cores: sharing.cores,
            allowed: allowed.as_deref(),
            foreign: group.settings.foreign_binding,
            layout: &layout,
        };
        bind_thread(&question, own, place)?;
        let own = cores::affinity();
        Ok(Placement {
            cores,
            sharing,
            neighbours: busy_neighbours(
                &group.pids(&local_ranks),
                &union,
                env::level_for_all(group.local_rank()),
            ),
            own_cores: own.len(),
            domain: layout.domain(&own),
        })
    }

    /// Returns the number of cores, beside a rank's own, that no rank of its machine and no
    /// neighbour needs.
    pub fn spare_cores(&self) -> usize {
        let Sharing { ranks, cores } = self.sharing;
        parallel::automatic(cores.saturating_sub(self.neighbours), ranks, self.own_cores)
    }

    /// Returns the helpers of this rank.
    pub fn parallel(&self, settings: &Settings, limits: &Limits) -> Parallel {
        let least = limits.helper_bytes_min;
        match settings.helpers {
            Some(count) => Parallel::new(count, least.min(HELPED_BYTES_MIN)),
            None => Parallel::new(self.spare_cores(), least),
        }
    }
}

/// Binds the calling thread, whose affinity is `own`. It is that of rank number `place` among those
/// of the question, each of which decides alike.
fn bind_thread(question: &BindingQuestion<'_>, own: &[usize], place: usize) -> Result<()> {
    match question.decide(place)? {
        BindingDecision::Bind(own) => {
            log::info!(target: "ringfold::init", "bound to cores {}", cores::format_list(&own));
            binding::bind_thread(&own)?;
        }
        BindingDecision::Leave(why) => {
            if question.bind == Bind::Auto {
                log::info!(target: "ringfold::init", "not bound: {why}");
            }
            let affinities = question.affinities;
            if affinities.iter().all(|affinity| affinity == own) {
                binding::start_apart(question.layout, place, affinities.len());
            }
        }
    }
    Ok(())
}

/// Returns the ranks of this machine that run on some of the cores `own` of this host's ranks.
fn sharers<'a>(
    machine_ranks: Vec<usize>,
    local_ranks: &[usize],
    own: &BTreeSet<usize>,
    affinity: impl Fn(&usize) -> &'a Vec<usize>,
) -> Vec<usize> {
    let overlaps = |rank: &usize| affinity(rank).iter().any(|core| own.contains(core));
    let mut sharers = machine_ranks;
    sharers.retain(|rank| local_ranks.contains(rank) || overlaps(rank));
    sharers
}

/// Whether each of these ranks is the only one of its host.
fn are_alone(hosts: &Groups, ranks: &[usize]) -> bool {
    let used: BTreeSet<_> = ranks.iter().map(|rank| hosts.of(*rank as u32)).collect();
    used.len() == ranks.len()
}

/// Counts the ranks with these affinities and their cores: those of this host, which have `cores`
/// cores together and may run on `own`, and others of its machine.
fn share(own: &BTreeSet<usize>, cores: usize, affinities: &[Vec<usize>]) -> Sharing {
    let theirs: BTreeSet<usize> = affinities.iter().flatten().copied().collect();
    // The quota limits only this host's cores; cores that only others use count in full.
    Sharing {
        ranks: affinities.len(),
        cores: cores + theirs.difference(own).count(),
    }
}

/// Counts the processes other than `ours` that are busy on `cores` now, and logs the number at
/// `level`.
fn busy_neighbours(ours: &[u32], cores: &BTreeSet<usize>, level: log::Level) -> usize {
    let mut others = neighbours::neighbours(Path::new(ROOT));
    others.retain(|neighbour| !ours.contains(&neighbour.pid));
    let busy = others.iter().filter(|other| other.is_busy_on(cores));
    let busy = busy.count();
    if !others.is_empty() {
        let pids: Vec<u32> = others.iter().map(|other| other.pid).collect();
        log::log!(
            target: "ringfold::init",
            level,
            "{} processes of other communicators on this host, {busy} of them busy on these cores",
            pids.len()
        );
        log::debug!(target: "ringfold::init", "processes of other communicators: {pids:?}");
    }
    busy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_share_the_cores_that_both_run_on() {
        // One rank per container. Returns the number of ranks that share the first one's cores, and
        // of these cores.
        let shared = |cores, containers: &[&[usize]]| {
            let affinities: Vec<Vec<usize>> = containers.iter().map(|list| list.to_vec()).collect();
            let own: BTreeSet<usize> = affinities[0].iter().copied().collect();
            let machine_ranks = (0..affinities.len()).collect();
            let ranks = sharers(machine_ranks, &[0], &own, |rank| &affinities[*rank]);
            let theirs: Vec<_> = ranks.iter().map(|rank| affinities[*rank].clone()).collect();
            let Sharing { ranks, cores } = share(&own, cores, &theirs);
            (ranks, cores)
        };
        // Four containers that all run anywhere, also with a quota of one core each.
        let alike: [&[usize]; 4] = [&[0, 1]; 4];
        assert_eq!(shared(2, &alike), (4, 2));
        assert_eq!(shared(1, &alike), (4, 1));
        // Each with cores of its own.
        assert_eq!(shared(2, &[&[0, 1], &[2, 3], &[4, 5]]), (1, 2));
        // One core is in two sets.
        assert_eq!(shared(2, &[&[0, 1], &[1, 2], &[3]]), (2, 3));
        // A rank whose affinity is unknown still shares with itself.
        assert_eq!(shared(1, &[&[], &[0]]), (1, 1));
    }
}
