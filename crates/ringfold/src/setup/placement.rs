//! Where the ranks of a communicator run: decided from what all have said, by all ranks of a host
//! alike.

use std::collections::BTreeSet;
use std::path::Path;

use super::peer_info::PeerInfo;
use crate::communicator::group::Group;
use crate::communicator::settings::Settings;
use crate::config::Bind;
use crate::error::Result;
use crate::reduce::parallel::{self, Parallel};
use crate::topology::binding::{self, Decision, Question};
use crate::topology::cores;
use crate::topology::layout::Layout;
use crate::topology::neighbours;
use crate::tune::Limits;

/// Where `proc` and `sys` are.
pub(super) const ROOT: &str = "/";

/// From this size on a rank that asks for helpers gets them, where the limits leave the cores to
/// the ranks.
const HELPED_BYTES_MIN: u64 = 1 << 20;

/// Which ranks share this rank's cores: those of its host, and of containers on the same machine
/// that run on some of the same cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// How many ranks, this one among them.
    pub ranks: usize,
    /// How many cores they have together.
    pub cores: usize,
}

/// Where this rank runs, and how much room there is.
#[derive(Clone, Debug)]
pub struct Placement {
    /// How many cores the ranks of this host have together. Of ranks that are bound, no rank's own
    /// affinity says that.
    pub cores: usize,
    /// Which ranks share them.
    pub sharing: Sharing,
    /// The domain that all cores of this rank are in, if there is one.
    pub domain: Option<usize>,
    /// Processes of other communicators that were busy on this host's cores when this one began.
    neighbours: usize,
    /// How many of the cores this rank may use.
    own_cores: usize,
}

impl Placement {
    /// Binds the calling thread as the settings say. Where nothing is bound and all ranks of this
    /// host have one affinity, the thread starts on a core of its own. `own` is this rank's
    /// affinity.
    pub fn bind(group: &Group, own: &[usize], peers: &[PeerInfo]) -> Result<Placement> {
        let local_ranks = group.local_ranks();
        let affinity = |rank: &usize| peers[*rank].affinity.clone();
        let affinities: Vec<Vec<usize>> = local_ranks.iter().map(affinity).collect();
        let union: BTreeSet<usize> = affinities.iter().flatten().copied().collect();
        let cores = cores::within_quota(union.len());
        let machine_ranks = group.machine_ranks();
        let sharing = if machine_ranks.len() > local_ranks.len() {
            let affinities: Vec<Vec<usize>> = machine_ranks.iter().map(affinity).collect();
            share(&union, cores, &affinities)
        } else {
            let ranks = local_ranks.len();
            Sharing { ranks, cores }
        };
        let layout = Layout::read(Path::new(ROOT), own);
        bind_thread(group, own, &affinities, cores, &layout)?;
        let own = cores::affinity();
        Ok(Placement {
            cores,
            sharing,
            neighbours: busy_neighbours(&group.pids(&local_ranks), &union),
            own_cores: own.len(),
            domain: layout.domain(&own),
        })
    }

    /// How many cores a rank has beside its own that no rank of its machine needs, nor a neighbour.
    pub fn spare_cores(&self) -> usize {
        let Sharing { ranks, cores } = self.sharing;
        parallel::automatic(cores.saturating_sub(self.neighbours), ranks, self.own_cores)
    }

    /// The helpers of this rank.
    pub fn parallel(&self, settings: &Settings, limits: &Limits) -> Parallel {
        let least = limits.helper_bytes_min;
        match settings.helpers {
            Some(count) => Parallel::new(count, least.min(HELPED_BYTES_MIN)),
            None => Parallel::new(self.spare_cores(), least),
        }
    }
}

/// Binds the calling thread as all ranks of this host, whose affinities these are, decide alike.
fn bind_thread(
    group: &Group,
    own: &[usize],
    affinities: &[Vec<usize>],
    cores: usize,
    layout: &Layout,
) -> Result<()> {
    let allowed = cores::allowed(Path::new(ROOT));
    let local_rank = group.local_rank();
    let question = Question {
        bind: group.settings.bind,
        affinities,
        cores,
        allowed: allowed.as_deref(),
        foreign: group.settings.foreign_binding,
        layout,
    };
    match question.decide(local_rank)? {
        Decision::Bind(own) => {
            log::info!(target: "ringfold::init", "bound to cores {}", cores::format_list(&own));
            binding::bind_thread(&own)?;
        }
        Decision::Leave(why) => {
            if question.bind == Bind::Auto {
                log::info!(target: "ringfold::init", "not bound: {why}");
            }
            if affinities.iter().all(|affinity| affinity == own) {
                binding::start_apart(layout, local_rank, affinities.len());
            }
        }
    }
    Ok(())
}

/// Which ranks share the `cores` cores that the ranks of this host have together, which may run on
/// `own`, among ranks of one machine with these affinities.
fn share(own: &BTreeSet<usize>, cores: usize, affinities: &[Vec<usize>]) -> Sharing {
    let sharers: Vec<&Vec<usize>> = affinities
        .iter()
        .filter(|affinity| affinity.iter().any(|core| own.contains(core)))
        .collect();
    let theirs: BTreeSet<usize> = sharers.iter().copied().flatten().copied().collect();
    // Of cores that only others use nothing more is known; a quota holds for this host's.
    Sharing {
        ranks: sharers.len(),
        cores: cores + theirs.difference(own).count(),
    }
}

/// How many processes other than these ranks' are busy on `cores` now.
fn busy_neighbours(ours: &[u32], cores: &BTreeSet<usize>) -> usize {
    let mut others = neighbours::neighbours(Path::new(ROOT));
    others.retain(|neighbour| !ours.contains(&neighbour.pid));
    let busy = others.iter().filter(|other| other.is_busy_on(cores));
    let busy = busy.count();
    if !others.is_empty() {
        let pids: Vec<u32> = others.iter().map(|other| other.pid).collect();
        log::info!(
            target: "ringfold::init",
            "{} processes of other communicators on this host, {busy} of them busy on these cores: \
             {pids:?}",
            pids.len()
        );
    }
    busy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_share_the_cores_that_both_run_on() {
        let shared = |own: &[usize], cores, others: &[&[usize]]| {
            let own: BTreeSet<usize> = own.iter().copied().collect();
            let affinities: Vec<Vec<usize>> = others.iter().map(|list| list.to_vec()).collect();
            let Sharing { ranks, cores } = share(&own, cores, &affinities);
            (ranks, cores)
        };
        // Four containers that all run anywhere, also with a quota of one core each.
        let alike: [&[usize]; 4] = [&[0, 1]; 4];
        assert_eq!(shared(&[0, 1], 2, &alike), (4, 2));
        assert_eq!(shared(&[0, 1], 1, &alike), (4, 1));
        // Each with cores of its own.
        let apart: &[&[usize]] = &[&[0, 1], &[2, 3], &[4, 5]];
        assert_eq!(shared(&[0, 1], 2, apart), (1, 2));
        // One core is in two sets.
        assert_eq!(shared(&[0, 1], 2, &[&[0, 1], &[1, 2], &[3]]), (2, 3));
    }
}
