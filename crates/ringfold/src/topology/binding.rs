//! The cores on which the ranks of a machine run: those of a host, and of containers beside it that
//! may use the same cores.
//!
//! Ranks that were started together may share one core while another is idle. When they then wait
//! for each other by spinning and yielding, none of them sleeps, and the scheduler takes long to
//! separate them. There are two remedies: a *start* moves each rank to a core of its own once and
//! leaves its affinity unchanged; a *binding* narrows the affinity, and threads that are created
//! later inherit it.
//!
//! A rank is bound to its share of the cores that the ranks have in common. So with one rank per
//! core, each has one core, and ranks with threads of their own have cores for them. Ranks that
//! outnumber the cores are bound to one core each, equally many on each core: otherwise all of them
//! may take turns on one core while another core is idle, because none of them ever sleeps. Ranks
//! without neighbours on their hosts do sleep, on sockets: the scheduler moves them to idle cores,
//! and a binding would only keep it from doing so.
//! Neighbouring ranks get neighbouring cores, the same number in every domain if possible. The
//! decision is a pure function of data that all these ranks have, so all make the same one.
//!
//! The library never binds a program's thread by itself, because new threads would inherit the
//! binding.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::layout::CoreLayout;
use crate::error::{Error, Result};
use crate::types::named;

named! {
    /// The binding of ranks to cores.
    #[derive(Default)]
    Bind, "binding" {
        /// Each rank to its share of the cores, unless ranks that outnumber the cores cannot share
        /// them evenly, or another program has arranged the placement.
        Auto, "auto";
        /// No binding: the system places the ranks.
        #[default]
        None, "none";
        /// Each rank to one core, even if another program has narrowed the affinity; an error
        /// unless there is a core for each.
        Core, "core";
    }
}

/// The input of a binding decision.
#[derive(Clone, Copy, Debug)]
pub struct BindingQuestion<'a> {
    /// The requested binding.
    pub bind: Bind,
    /// The cores that each rank of the machine may use, host by host.
    pub affinities: &'a [Vec<usize>],
    /// Whether each of these ranks is the only one of its host.
    pub are_alone: bool,
    /// Number of cores whose time the ranks have; see
    /// [`cores::available`](super::cores::available).
    pub cores: usize,
    /// The cores that would be available without narrowed affinities, as far as known.
    pub allowed: Option<&'a [usize]>,
    /// A variable that shows that binding is handled elsewhere.
    pub foreign: Option<&'a str>,
    /// The layout of the cores in this rank's affinity.
    pub layout: &'a CoreLayout,
}

/// The decision about a rank's affinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingDecision {
    /// The affinity is narrowed to these cores.
    Bind(Vec<usize>),
    /// The affinity stays, for this reason.
    Leave(String),
}

impl BindingQuestion<'_> {
    /// Decides about the affinity of rank `number`. [`Bind::Core`] is mandatory: an error unless
    /// there is a core for each rank.
    pub fn decide(&self, number: usize) -> Result<BindingDecision> {
        let leave = |why: String| Ok(BindingDecision::Leave(why));
        match self.bind {
            Bind::None => return leave("no binding was requested".into()),
            Bind::Core => {}
            Bind::Auto => {
                if let Some(why) = self.reason_against() {
                    return leave(why);
                }
            }
        }
        let (place, sharers) = self.sharers(number)?;
        let own = match self.bind {
            Bind::Core => self.layout.first(place, sharers),
            _ if self.is_oversubscribed() => {
                return Ok(BindingDecision::Bind(self.layout.seat(place, sharers)));
            }
            _ => self.layout.share(place, sharers),
        };
        if own.is_empty() || self.affinities.len() > self.cores {
            return Err(Error::InvalidArgument(format!(
                "cannot bind {} ranks to a core each: they may use only {} cores; start fewer \
                 ranks, or use bind auto or none",
                self.affinities.len(),
                self.cores.min(self.affinities[number].len()),
            )));
        }
        Ok(BindingDecision::Bind(own))
    }

    /// Returns the reason for which [`Bind::Auto`] binds nothing, if there is one.
    fn reason_against(&self) -> Option<String> {
        let ranks = self.affinities.len();
        let first = self.affinities.first()?;
        if let Some(variable) = self.foreign {
            return Some(format!("{variable} sets the ranks' placement"));
        }
        if self.affinities.iter().any(|affinity| affinity != first) {
            return Some("the ranks' affinities differ".into());
        }
        if self
            .allowed
            .is_some_and(|allowed| allowed.len() > first.len())
        {
            return Some("the affinity was narrowed".into());
        }
        if self.is_oversubscribed() && self.are_alone {
            return Some("ranks that are alone on their hosts can share cores unbound".into());
        }
        let cores = self.cores.min(first.len());
        // With less time than cores, the cores to use are unknown.
        let is_even = cores == first.len() && ranks.is_multiple_of(cores);
        (self.is_oversubscribed() && !is_even)
            .then(|| format!("{ranks} ranks do not share {cores} cores evenly"))
    }

    /// Whether ranks outnumber their cores, provided that all ranks have the same cores.
    fn is_oversubscribed(&self) -> bool {
        let cores = self.affinities.first().map_or(0, Vec::len);
        self.affinities.len() > self.cores.min(cores)
    }

    /// Returns this rank's number among the ranks with the same affinity, and their count.
    fn sharers(&self, number: usize) -> Result<(usize, usize)> {
        let own = &self.affinities[number];
        let mut sharers = Vec::new();
        for (rank, other) in self.affinities.iter().enumerate() {
            if other == own {
                sharers.push(rank);
            } else if other.iter().any(|core| own.contains(core)) {
                return Err(Error::InvalidArgument(format!(
                    "cannot bind ranks {number} and {rank} of this machine: their affinities \
                     overlap in part; use bind none"
                )));
            }
        }
        let place = sharers.iter().take_while(|rank| **rank < number).count();
        Ok((place, sharers.len()))
    }
}

/// Narrows the affinity of the calling thread, and of threads that it creates later, to `cores`.
pub fn bind_thread(cores: &[usize]) -> Result<()> {
    sched_setaffinity(None, &set(cores))
        .map_err(|error| Error::system(format!("cannot bind to cores {cores:?}"), error))
}

/// Moves the calling thread to its own core among `ranks` ranks that share this affinity, or to a
/// core shared with as few ranks as possible, and then restores the affinity.
pub fn start_apart(layout: &CoreLayout, number: usize, ranks: usize) {
    let mut own = layout.first(number, ranks);
    if own.is_empty() {
        own = layout.seat(number, ranks);
    }
    let Ok(affinity) = sched_getaffinity(None) else {
        return;
    };
    if ranks < 2 || own.is_empty() {
        return;
    }
    if sched_setaffinity(None, &set(&own)).is_ok()
        && let Err(error) = sched_setaffinity(None, &affinity)
    {
        log::warn!(target: "ringfold::init", "cannot restore this thread's affinity: {error}");
    }
}

/// Returns the kernel's form of a set of cores.
pub fn set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for core in cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        set.set(*core);
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::layout::tests::{EPYC, SMALL, XEON};

    fn question<'a>(
        bind: Bind,
        affinities: &'a [Vec<usize>],
        layout: &'a CoreLayout,
    ) -> BindingQuestion<'a> {
        BindingQuestion {
            bind,
            affinities,
            are_alone: false,
            cores: usize::MAX,
            allowed: None,
            foreign: None,
            layout,
        }
    }

    #[test]
    fn one_rank_per_core_has_a_core_each() {
        let tree = SMALL.tree("bind-small");
        let affinities = vec![vec![0, 1]; 2];
        let layout = CoreLayout::read(tree.root(), &[0, 1]);
        for bind in [Bind::Auto, Bind::Core] {
            let question = question(bind, &affinities, &layout);
            assert_eq!(question.decide(0).unwrap(), BindingDecision::Bind(vec![0]));
            assert_eq!(question.decide(1).unwrap(), BindingDecision::Bind(vec![1]));
        }
    }

    #[test]
    fn ranks_that_outnumber_cores_share_them_evenly_or_not_at_all() {
        let tree = SMALL.tree("bind-crowded");
        let layout = CoreLayout::read(tree.root(), &[0, 1]);
        let decisions = |ranks: usize, cores: usize| {
            let affinities = vec![vec![0, 1]; ranks];
            let question = BindingQuestion {
                cores,
                ..question(Bind::Auto, &affinities, &layout)
            };
            let decide = |rank| question.decide(rank).unwrap();
            (0..ranks).map(decide).collect::<Vec<_>>()
        };
        let seats = [0, 0, 1, 1].map(|core| BindingDecision::Bind(vec![core]));
        assert_eq!(decisions(4, usize::MAX), seats);
        let is_left = |decision: &BindingDecision| matches!(decision, BindingDecision::Leave(_));
        assert!(decisions(3, usize::MAX).iter().all(is_left));
        assert!(decisions(4, 1).iter().all(is_left), "a quota of one core");
    }

    #[test]
    fn ranks_alone_on_their_hosts_are_bound_if_each_has_a_core() {
        let tree = SMALL.tree("bind-alone");
        let layout = CoreLayout::read(tree.root(), &[0, 1]);
        let first_of = |ranks: usize| {
            let affinities = vec![vec![0, 1]; ranks];
            let question = BindingQuestion {
                are_alone: true,
                ..question(Bind::Auto, &affinities, &layout)
            };
            question.decide(0).unwrap()
        };
        assert_eq!(first_of(2), BindingDecision::Bind(vec![0]));
        assert!(matches!(first_of(4), BindingDecision::Leave(_)));
    }

    #[test]
    fn few_ranks_share_many_cores_evenly_and_core_takes_one_of_each_share() {
        let tree = EPYC.tree("bind-epyc");
        let all: Vec<usize> = (0..128).collect();
        let affinities = vec![all.clone(); 16];
        let layout = CoreLayout::read(tree.root(), &all);
        let share = question(Bind::Auto, &affinities, &layout)
            .decide(3)
            .unwrap();
        assert_eq!(share, BindingDecision::Bind((24..32).collect()));
        let core = question(Bind::Core, &affinities, &layout)
            .decide(3)
            .unwrap();
        assert_eq!(core, BindingDecision::Bind(vec![24]));
    }

    #[test]
    fn a_physical_core_comes_with_its_siblings_as_far_as_the_affinity_goes() {
        let tree = XEON.tree("bind-xeon");
        let affinity: Vec<usize> = (0..96).filter(|core| *core != 48).collect();
        let affinities = vec![affinity.clone(); 48];
        let layout = CoreLayout::read(tree.root(), &affinity);
        let question = question(Bind::Core, &affinities, &layout);
        assert_eq!(question.decide(0).unwrap(), BindingDecision::Bind(vec![0]));
        assert_eq!(
            question.decide(1).unwrap(),
            BindingDecision::Bind(vec![1, 49])
        );
    }

    #[test]
    fn an_arranged_affinity_stays_unless_binding_is_mandatory() {
        let tree = SMALL.tree("bind-foreign");
        let layout = CoreLayout::read(tree.root(), &[0, 1]);
        let (alike, apart) = (vec![vec![0, 1]; 2], vec![vec![0], vec![1]]);
        let auto = question(Bind::Auto, &alike, &layout);
        let narrowed = BindingQuestion {
            allowed: Some(&[0, 1, 2]),
            ..auto
        };
        let foreign = BindingQuestion {
            foreign: Some("SLURM_CPU_BIND"),
            ..auto
        };
        let crowded = BindingQuestion { cores: 1, ..auto };
        let bound = BindingQuestion {
            affinities: &apart,
            ..auto
        };
        let unasked = BindingQuestion {
            bind: Bind::None,
            ..auto
        };
        for question in [narrowed, foreign, crowded, bound, unasked] {
            let decision = question.decide(0).unwrap();
            assert!(
                matches!(decision, BindingDecision::Leave(_)),
                "{question:?}"
            );
        }
        let insisting = BindingQuestion {
            bind: Bind::Core,
            ..narrowed
        };
        assert_eq!(insisting.decide(0).unwrap(), BindingDecision::Bind(vec![0]));
    }

    #[test]
    fn insisting_keeps_to_each_ranks_own_affinity() {
        let tree = XEON.tree("bind-own");
        let sockets = [(0..24).collect::<Vec<_>>(), (24..48).collect()];
        let affinities: Vec<_> = (0..4)
            .map(|rank: usize| sockets[rank % 2].clone())
            .collect();
        let layout = CoreLayout::read(tree.root(), &sockets[1]);
        let question = question(Bind::Core, &affinities, &layout);
        assert_eq!(question.decide(3).unwrap(), BindingDecision::Bind(vec![36]));
        let mixed = [vec![0, 1], vec![1, 2]];
        let question = BindingQuestion {
            affinities: &mixed,
            ..question
        };
        assert!(
            question
                .decide(0)
                .unwrap_err()
                .to_string()
                .contains("overlap")
        );
    }

    #[test]
    fn insisting_without_enough_cores_is_an_error() {
        let tree = SMALL.tree("bind-many");
        let layout = CoreLayout::read(tree.root(), &[0, 1]);
        let affinities = vec![vec![0, 1]; 3];
        let many = question(Bind::Core, &affinities, &layout);
        let quota = BindingQuestion {
            cores: 2,
            affinities: &affinities[..2],
            ..many
        };
        assert!(quota.decide(1).is_ok());
        for question in [many, BindingQuestion { cores: 1, ..quota }] {
            let error = question.decide(1).unwrap_err().to_string();
            assert!(error.contains("start fewer"), "{error}");
        }
    }

    #[test]
    fn starting_apart_leaves_the_affinity_as_it_was() {
        let before = sched_getaffinity(None).expect("an affinity");
        let layout = CoreLayout::read(std::path::Path::new("/"), &super::super::cores::affinity());
        for (local_rank, local_size) in [(0, 1), (1, 2), (3, 4), (999, 1000)] {
            start_apart(&layout, local_rank, local_size);
            assert_eq!(sched_getaffinity(None).expect("an affinity"), before);
        }
    }
}
