//! The proximity of cores: the same physical core, the same last-level cache, the same socket.
//!
//! A line that one core wrote reaches another core of its last-level cache in some 20 ns, and a
//! core of another cache or socket in 100 to 200. Cores that share that cache are a *domain*; if
//! the kernel does not report caches (virtual machines), a socket is a domain. A *core* is the
//! kernel's unit of scheduling, a hardware thread; threads of one physical core are its *siblings*.
//!
//! Properties that the kernel does not report are assumed equal for all cores; nothing here is an
//! error. A list is read once for all cores that it names, so a machine of hundreds of cores costs
//! about one small file per physical core.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::cores::{entries, parse_list, read_line};

/// The level of the cache whose sharers are a domain.
const DOMAIN_LEVEL: &str = "3";

/// The position of a core. The order of positions puts near cores next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CorePosition {
    /// The socket's first core.
    pub socket: usize,
    /// The memory node's number.
    pub node: usize,
    /// The domain's first core.
    pub domain: usize,
    /// The physical core's first sibling.
    pub sibling: usize,
    /// The core's number.
    pub core: usize,
}

/// Some of a machine's cores, near ones next to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreLayout {
    positions: Vec<CorePosition>,
}

impl CoreLayout {
    /// Reads the positions of `cores`, on the machine whose `sys` is in `root`.
    pub fn read(root: &Path, cores: &[usize]) -> CoreLayout {
        let base = root.join("sys/devices/system/cpu");
        let of_core =
            |file: &str, core: usize| list(&base.join(format!("cpu{core}/topology/{file}")));
        let sockets = first_of(cores, |core| {
            of_core("package_cpus_list", core).or_else(|| of_core("core_siblings_list", core))
        });
        let siblings = first_of(cores, |core| {
            of_core("core_cpus_list", core).or_else(|| of_core("thread_siblings_list", core))
        });
        let domains = first_of(cores, |core| {
            last_level(&base.join(format!("cpu{core}/cache")))
        });
        let nodes = nodes(root);
        let mut positions: Vec<CorePosition> = cores
            .iter()
            .map(|core| {
                let socket = sockets.get(core).copied().unwrap_or(0);
                CorePosition {
                    socket,
                    node: nodes.get(core).copied().unwrap_or(0),
                    domain: domains.get(core).copied().unwrap_or(socket),
                    sibling: siblings.get(core).copied().unwrap_or(*core),
                    core: *core,
                }
            })
            .collect();
        positions.sort_unstable();
        positions.dedup();
        CoreLayout { positions }
    }

    /// Returns the cores' positions, near ones next to each other.
    pub fn positions(&self) -> &[CorePosition] {
        &self.positions
    }

    /// Returns the domain of all `cores`; `None` if they are in several, or unknown here.
    pub fn domain(&self, cores: &[usize]) -> Option<usize> {
        let domain_of = |core: &usize| Some(self.position(*core)?.domain);
        let domain = domain_of(cores.first()?)?;
        let is_there = |core| domain_of(core) == Some(domain);
        cores.iter().all(is_there).then_some(domain)
    }

    /// Returns the part of these cores that belongs to `rank` of `ranks`: whole physical cores if
    /// there are enough of them, neighbours next to each other. The part is empty if ranks
    /// outnumber cores.
    pub fn share(&self, rank: usize, ranks: usize) -> Vec<usize> {
        let physical: Vec<&[CorePosition]> = self
            .positions
            .chunk_by(|one, next| one.sibling == next.sibling)
            .collect();
        let part = |count: usize| rank * count / ranks..(rank + 1) * count / ranks;
        let own = if ranks <= physical.len() {
            physical[part(physical.len())].concat()
        } else if ranks <= self.positions.len() {
            self.positions[part(self.positions.len())].to_vec()
        } else {
            Vec::new()
        };
        own.iter().map(|position| position.core).collect()
    }

    /// Returns the core of `rank` of `ranks` that outnumber these cores: equally many on each core
    /// if possible, neighbours together. The result is empty if there are no cores.
    pub fn seat(&self, rank: usize, ranks: usize) -> Vec<usize> {
        let place = rank * self.positions.len() / ranks.max(1);
        let seat = self.positions.get(place);
        seat.map(|position| position.core).into_iter().collect()
    }

    /// Returns the first physical core of [`share`](CoreLayout::share).
    pub fn first(&self, rank: usize, ranks: usize) -> Vec<usize> {
        let mut share = self.share(rank, ranks);
        let sibling = |core: usize| Some(self.position(core)?.sibling);
        if let Some(first) = share.first().copied() {
            share.retain(|core| sibling(*core) == sibling(first));
        }
        share
    }

    fn position(&self, core: usize) -> Option<&CorePosition> {
        self.positions.iter().find(|position| position.core == core)
    }
}

/// Returns the number of domains of equal size that the ranks occupy, given each rank's domain: 1
/// unless all are known, each domain's ranks are consecutive, and all domains have equally many.
pub fn equal_domains(of_ranks: &[Option<usize>]) -> usize {
    if of_ranks.iter().any(Option::is_none) {
        return 1;
    }
    let runs: Vec<&[Option<usize>]> = of_ranks.chunk_by(|one, next| one == next).collect();
    let distinct: BTreeSet<_> = of_ranks.iter().collect();
    let is_even = runs.windows(2).all(|pair| pair[0].len() == pair[1].len());
    match is_even && distinct.len() == runs.len() {
        true => runs.len().max(1),
        false => 1,
    }
}

/// Returns, for each of `cores`, the first core of the list that `list_of` finds for the core.
fn first_of(
    cores: &[usize],
    list_of: impl Fn(usize) -> Option<Vec<usize>>,
) -> BTreeMap<usize, usize> {
    let mut firsts = BTreeMap::new();
    for core in cores {
        if firsts.contains_key(core) {
            continue;
        }
        let Some(list) = list_of(*core).filter(|list| list.contains(core)) else {
            continue;
        };
        let first = list[0];
        firsts.extend(list.into_iter().map(|member| (member, first)));
    }
    firsts
}

/// Returns the cores that share the last-level cache, from the folder `cache` of a core.
fn last_level(cache: &Path) -> Option<Vec<usize>> {
    let entries = fs::read_dir(cache).ok()?.flatten();
    let mut indices = entries.filter(|entry| {
        let level = read_line(&entry.path().join("level"));
        level.as_deref() == Some(DOMAIN_LEVEL)
    });
    list(&indices.next()?.path().join("shared_cpu_list"))
}

/// Returns the memory node of each core.
fn nodes(root: &Path) -> BTreeMap<usize, usize> {
    let base = root.join("sys/devices/system/node");
    let numbers = entries(&base, "node").into_iter();
    let cores =
        numbers.filter_map(|node| Some((node, list(&base.join(format!("node{node}/cpulist")))?)));
    cores
        .flat_map(|(node, list)| list.into_iter().map(move |core| (core, node)))
        .collect()
}

fn list(path: &Path) -> Option<Vec<usize>> {
    parse_list(&read_line(path)?).filter(|list| !list.is_empty())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::cores::{format_list, tests::Tree};
    use super::*;

    /// A machine as its vendor describes it; cores are numbered socket by socket, second hardware
    /// threads after all first ones, as Linux does.
    pub(crate) struct MachineModel {
        sockets: usize,
        domains_per_socket: usize,
        cores_per_domain: usize,
        threads_per_core: usize,
    }

    /// Two sockets of 24 cores with two threads each: the last-level cache belongs to the socket.
    pub(crate) const XEON: MachineModel = MachineModel {
        sockets: 2,
        domains_per_socket: 1,
        cores_per_domain: 24,
        threads_per_core: 2,
    };

    /// Two sockets of 64 cores: eight cores share a last-level cache.
    pub(crate) const EPYC: MachineModel = MachineModel {
        sockets: 2,
        domains_per_socket: 8,
        cores_per_domain: 8,
        threads_per_core: 1,
    };

    /// One socket of 72 cores on one cache.
    pub(crate) const GRACE: MachineModel = MachineModel {
        sockets: 1,
        domains_per_socket: 1,
        cores_per_domain: 72,
        threads_per_core: 1,
    };

    /// A virtual machine of two cores.
    pub(crate) const SMALL: MachineModel = MachineModel {
        sockets: 1,
        domains_per_socket: 1,
        cores_per_domain: 2,
        threads_per_core: 1,
    };

    impl MachineModel {
        fn physical(&self) -> usize {
            self.sockets * self.domains_per_socket * self.cores_per_domain
        }

        /// Lists all threads of `count` physical cores from `first` on.
        fn threads(&self, first: usize, count: usize) -> String {
            let threads = (0..self.threads_per_core).flat_map(|thread| {
                let base = thread * self.physical() + first;
                base..base + count
            });
            format_list(&threads.collect::<Vec<_>>())
        }

        /// Makes the files that the kernel of such a machine shows.
        pub(crate) fn tree(&self, name: &str) -> Tree {
            let per_socket = self.domains_per_socket * self.cores_per_domain;
            let mut files = Vec::new();
            for core in 0..self.physical() * self.threads_per_core {
                let physical = core % self.physical();
                let start = |unit: usize| physical / unit * unit;
                let socket = self.threads(start(per_socket), per_socket);
                let domain = self.threads(start(self.cores_per_domain), self.cores_per_domain);
                let base = format!("sys/devices/system/cpu/cpu{core}");
                for (file, text) in [
                    ("topology/package_cpus_list", socket.as_str()),
                    ("topology/core_cpus_list", &self.threads(physical, 1)),
                    ("cache/index2/level", "2"),
                    ("cache/index2/shared_cpu_list", &self.threads(physical, 1)),
                    ("cache/index3/level", "3"),
                    ("cache/index3/shared_cpu_list", &domain),
                ] {
                    files.push((format!("{base}/{file}"), format!("{text}\n")));
                }
            }
            for socket in 0..self.sockets {
                let list = self.threads(socket * per_socket, per_socket);
                let path = format!("sys/devices/system/node/node{socket}/cpulist");
                files.push((path, list));
            }
            let files: Vec<_> = files
                .iter()
                .map(|(path, text)| (path.as_str(), text.as_str()))
                .collect();
            Tree::new(name, &files)
        }

        pub(crate) fn layout(&self, name: &str) -> CoreLayout {
            let all: Vec<usize> = (0..self.physical() * self.threads_per_core).collect();
            CoreLayout::read(self.tree(name).root(), &all)
        }
    }

    fn domains(layout: &CoreLayout) -> Vec<usize> {
        let mut domains: Vec<_> = layout
            .positions()
            .iter()
            .map(|position| position.domain)
            .collect();
        domains.dedup();
        domains
    }

    #[test]
    fn domains_are_the_last_level_caches() {
        assert_eq!(domains(&XEON.layout("xeon")), [0, 24]);
        let caches: Vec<usize> = (0..16).map(|domain| domain * 8).collect();
        assert_eq!(domains(&EPYC.layout("epyc")), caches);
        assert_eq!(domains(&GRACE.layout("grace")), [0]);
        assert_eq!(domains(&SMALL.layout("small")), [0]);
    }

    #[test]
    fn siblings_come_next_to_each_other() {
        let layout = XEON.layout("siblings");
        let cores: Vec<usize> = layout
            .positions()
            .iter()
            .map(|position| position.core)
            .collect();
        assert_eq!(cores[..4], [0, 48, 1, 49]);
        assert_eq!(layout.positions()[95].node, 1);
        assert_eq!(layout.share(1, 96), [48]);
    }

    #[test]
    fn shares_are_disjoint_and_cover_all_cores() {
        for (machine, name) in [(XEON, "xeon"), (EPYC, "epyc"), (GRACE, "grace")] {
            let layout = machine.layout(&format!("shares-{name}"));
            for ranks in [1, 2, 3, 7, 48, 64, 72] {
                if ranks > layout.positions().len() {
                    assert!(layout.share(0, ranks).is_empty());
                    continue;
                }
                let mut all: Vec<_> = (0..ranks)
                    .flat_map(|rank| layout.share(rank, ranks))
                    .collect();
                all.sort_unstable();
                assert!(
                    all.iter().copied().eq(0..layout.positions().len()),
                    "{name} {ranks}"
                );
            }
        }
    }

    #[test]
    fn a_set_of_cores_is_in_one_domain_or_in_none() {
        let layout = EPYC.layout("one-domain");
        assert_eq!(layout.domain(&[9, 15]), Some(8));
        assert_eq!(layout.domain(&[7, 8]), None);
        assert_eq!(layout.domain(&[]), None);
        assert_eq!(layout.domain(&[999]), None);
    }

    #[test]
    fn bound_ranks_fill_domains_in_order() {
        let check = |machine: MachineModel, expected: &[(usize, usize)]| {
            let layout = machine.layout(&format!("fill-{}", machine.physical()));
            for &(ranks, domains) in expected {
                let domain = |rank| layout.domain(&layout.first(rank, ranks));
                let found = equal_domains(&(0..ranks).map(domain).collect::<Vec<_>>());
                assert_eq!(found, domains, "{ranks} ranks");
            }
        };
        // Twenty ranks on sixteen caches: some have two.
        let on_caches = [
            (2, 2),
            (4, 4),
            (16, 16),
            (64, 16),
            (128, 16),
            (12, 12),
            (20, 1),
        ];
        check(EPYC, &on_caches);
        check(XEON, &[(48, 2), (96, 2), (7, 1)]);
        check(GRACE, &[(72, 1)]);
        check(SMALL, &[(2, 1)]);
    }

    #[test]
    fn only_domains_of_equal_size_in_order_count() {
        assert_eq!(equal_domains(&[Some(0), Some(0), Some(8), Some(8)]), 2);
        assert_eq!(equal_domains(&[Some(0), Some(8), Some(0), Some(8)]), 1);
        assert_eq!(equal_domains(&[Some(0), Some(8), Some(8)]), 1);
        assert_eq!(equal_domains(&[Some(0), None]), 1);
        assert_eq!(equal_domains(&[]), 1);
    }

    #[test]
    fn a_machine_that_shows_nothing_is_one_domain() {
        let layout = CoreLayout::read(Path::new("/nowhere"), &[3, 1, 2]);
        assert_eq!(layout.domain(&[1, 2, 3]), Some(0));
        assert_eq!(layout.share(0, 3), [1]);
    }
}
