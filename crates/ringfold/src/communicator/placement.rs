//! Where the ranks of a communicator run: told to each other, then decided by all ranks of a host alike.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use super::group::{Group, Verdict};
use super::settings::Settings;
use crate::config::Bind;
use crate::error::{Error, Result};
use crate::reduce::parallel::{self, Parallel};
use crate::topology::binding::{self, Decision, Question};
use crate::topology::cores;
use crate::topology::layout::{self, Layout};
use crate::topology::neighbours;
use crate::tune::Limits;

/// Where `proc` and `sys` are.
const ROOT: &str = "/";

/// Who shares this rank's cores: the ranks of its host, and of containers on the same machine that run on some of the same
/// cores.
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
    /// How many cores the ranks of this host have together, which of ranks that are bound no rank's own affinity tells.
    pub cores: usize,
    /// Who shares them.
    pub sharing: Sharing,
    /// Processes of other communicators that were at work on this host's cores when this one began.
    neighbours: usize,
    /// How many of the cores this rank may use.
    own_cores: usize,
    /// The domain that all of those are in, if there is one.
    domain: Option<usize>,
}

/// From here on somebody who insists on helpers is helped, where the limits leave the cores to the ranks.
const HELPED_BYTES_MIN: u64 = 1 << 20;

impl Placement {
    /// How many domains of equal size the ranks sit in, in rank order: 1 where that is not so, where a rank may run in
    /// several, and on several hosts. Everybody hears the same from all, so all answer alike.
    pub fn domains(&self, group: &Group, deadline: Instant, verdict: Verdict<'_>) -> Result<usize> {
        if group.hosts() > 1 || group.world_ranks.len() < 2 {
            return Ok(1);
        }
        let text = self
            .domain
            .map_or(String::new(), |domain| domain.to_string());
        let told = group.exchange("domain", text.as_bytes(), deadline, verdict)?;
        let of_rank = |blob: &Vec<u8>| std::str::from_utf8(blob).ok()?.parse().ok();
        let domains: Vec<Option<usize>> = told.iter().map(of_rank).collect();
        let count = layout::equal_domains(&domains);
        let names: Vec<String> = domains
            .iter()
            .map(|domain| domain.map_or("several".into(), |domain| domain.to_string()))
            .collect();
        log::info!(
            target: "ringfold::init",
            "ranks in {count} domains; the domain of each rank, by its first core: {}",
            names.join(", ")
        );
        Ok(count)
    }

    /// The helpers of a rank that shares its host with `local_ranks` ranks.
    pub fn parallel(&self, settings: &Settings, local_ranks: usize, limits: &Limits) -> Parallel {
        let least = limits.helper_bytes_min;
        match settings.helpers {
            Some(count) => Parallel::new(count, least.min(HELPED_BYTES_MIN)),
            None => Parallel::new(
                // A neighbour's core is not idle.
                parallel::automatic(
                    self.cores.saturating_sub(self.neighbours),
                    local_ranks,
                    self.own_cores,
                ),
                least,
            ),
        }
    }
}

/// Binds the calling thread as the settings say; where nothing is bound and all ranks of this host have one affinity, it
/// starts on a core of its own.
pub fn settle(
    group: &Group,
    local_ranks: &[usize],
    deadline: Instant,
    verdict: Verdict<'_>,
) -> Result<Placement> {
    let own = cores::affinity();
    let text = cores::format_list(&own);
    let told = group.exchange("affinity", text.as_bytes(), deadline, verdict)?;
    let of_ranks = |ranks: &[usize]| -> Result<Vec<Vec<usize>>> {
        ranks
            .iter()
            .map(|rank| decode(*rank, &told[*rank]))
            .collect()
    };
    let affinities = of_ranks(local_ranks)?;
    let local_rank = local_ranks
        .iter()
        .take_while(|rank| **rank < group.rank)
        .count();
    let layout = Layout::read(Path::new(ROOT), &own);
    let allowed = cores::allowed(Path::new(ROOT));
    let union: BTreeSet<usize> = affinities.iter().flatten().copied().collect();
    let cores = cores::within_quota(union.len());
    let machine_ranks = group.machine_ranks();
    let sharing = if machine_ranks.len() > local_ranks.len() {
        share(&union, cores, &of_ranks(&machine_ranks)?)
    } else {
        let ranks = local_ranks.len();
        Sharing { ranks, cores }
    };
    let question = Question {
        bind: group.settings.bind,
        affinities: &affinities,
        cores,
        allowed: allowed.as_deref(),
        foreign: group.settings.foreign_binding,
        layout: &layout,
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
            if affinities.iter().all(|affinity| *affinity == own) {
                binding::start_apart(&layout, local_rank, local_ranks.len());
            }
        }
    }
    let own = cores::affinity();
    Ok(Placement {
        cores,
        sharing,
        neighbours: busy_neighbours(&group.pids(local_ranks), &union),
        own_cores: own.len(),
        domain: layout.domain(&own),
    })
}

/// Who shares the `cores` cores that the ranks of this host have together, which may run on `own`, among ranks of one machine with these affinities.
fn share(own: &BTreeSet<usize>, cores: usize, affinities: &[Vec<usize>]) -> Sharing {
    let sharers: Vec<&Vec<usize>> = affinities
        .iter()
        .filter(|affinity| affinity.iter().any(|core| own.contains(core)))
        .collect();
    let theirs: BTreeSet<usize> = sharers.iter().copied().flatten().copied().collect();
    // Of cores that are others' alone nothing is known but that they are there; a quota holds for this host's.
    Sharing {
        ranks: sharers.len(),
        cores: cores + theirs.difference(own).count(),
    }
}

/// How many processes other than these ranks' are at work on `cores` now.
fn busy_neighbours(ours: &[u32], cores: &BTreeSet<usize>) -> usize {
    let mut others = neighbours::neighbours(Path::new(ROOT));
    others.retain(|neighbour| !ours.contains(&neighbour.pid));
    let busy = others.iter().filter(|other| other.is_busy_on(cores));
    let busy = busy.count();
    if !others.is_empty() {
        let pids: Vec<u32> = others.iter().map(|other| other.pid).collect();
        log::info!(
            target: "ringfold::init",
            "{} processes of other communicators on this host, {busy} of them at work on these cores: {pids:?}",
            pids.len()
        );
    }
    busy
}

/// The affinity that `peer` tells.
fn decode(peer: usize, blob: &[u8]) -> Result<Vec<usize>> {
    let text = std::str::from_utf8(blob).ok();
    text.and_then(cores::parse_list)
        .ok_or_else(|| Error::Corrupt {
            peer,
            what: "an affinity that means nothing".into(),
            site: None,
        })
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
