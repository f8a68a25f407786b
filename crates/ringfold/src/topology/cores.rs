//! The cores that this process may use, their caches and memory nodes.
//!
//! Cores = affinity ∩ the control groups' quota, versions 1 and 2. More waiting threads than that must block, not spin.
//! What the kernel does not say is left out; nothing here is an error.

use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Cores in this process' affinity, no more than its control groups' quota, at least one.
pub fn available() -> usize {
    let affinity = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
    let quota = quota(Path::new("/")).map_or(usize::MAX, |cores| cores as usize);
    affinity.min(quota).max(1)
}

/// Moves this thread to the core that is its own among `local_size` ranks which share this affinity, and lets it go again.
///
/// Processes that were started together may sit on one core while another is idle; when they then wait for each other by
/// spinning and yielding, none of them sleeps, and the scheduler takes its time to part them. This is a start, not a
/// binding: the affinity is as before afterwards. Nothing is done where ranks outnumber cores.
pub fn spread(local_rank: usize, local_size: usize) {
    let Ok(affinity) = sched_getaffinity(None) else {
        return;
    };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|core| affinity.is_set(*core))
        .collect();
    if local_size < 2 || cores.len() < local_size {
        return;
    }
    let mut own = CpuSet::new();
    // Evenly apart, so that ranks do not crowd the first of many cores.
    own.set(cores[local_rank * cores.len() / local_size]);
    if sched_setaffinity(None, &own).is_ok()
        && let Err(error) = sched_setaffinity(None, &affinity)
    {
        log::warn!(target: "ringfold::init", "cannot restore this thread's affinity: {error}");
    }
}

/// How many cores' time the control groups of this process grant; `None` without a limit. `root` is where `proc` and
/// `sys` are.
pub fn quota(root: &Path) -> Option<f64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let base = root.join("sys/fs/cgroup");
    let limits = groups.lines().flat_map(|line| {
        // `hierarchy:controllers:path`
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next().unwrap_or("").to_string();
        let path = parts.next().unwrap_or("/").to_string();
        if controllers.is_empty() {
            return limits_upward(&base, &path, quota_v2);
        }
        if !controllers.split(',').any(|controller| controller == "cpu") {
            return Vec::new();
        }
        let mounts = [base.join("cpu"), base.join(&controllers)];
        let mounts = mounts.iter().filter(|mount| mount.is_dir());
        mounts
            .flat_map(|mount| limits_upward(mount, &path, quota_v1))
            .collect()
    });
    limits.min_by(f64::total_cmp)
}

/// The limits of a group and of all above it: each binds. In a container the path may be the host's and not exist
/// inside; the top does.
fn limits_upward(mount: &Path, path: &str, read: fn(&Path) -> Option<f64>) -> Vec<f64> {
    let mut groups = vec![mount.to_path_buf()];
    for part in Path::new(path).components() {
        if let std::path::Component::Normal(part) = part {
            groups.push(groups[groups.len() - 1].join(part));
        }
    }
    groups.iter().filter_map(|group| read(group)).collect()
}

/// `cpu.max`: the time and the period, or `max` and the period.
fn quota_v2(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    ratio(words.next()?, words.next()?)
}

/// The time, -1 without a limit, and the period, in files of their own.
fn quota_v1(group: &Path) -> Option<f64> {
    let time = fs::read_to_string(group.join("cpu.cfs_quota_us")).ok()?;
    let period = fs::read_to_string(group.join("cpu.cfs_period_us")).ok()?;
    ratio(time.trim(), period.trim())
}

fn ratio(time: &str, period: &str) -> Option<f64> {
    let (time, period) = (time.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (time > 0.0 && period > 0.0).then_some(time / period)
}

/// One cache of the first core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u8,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Its size.
    pub bytes: usize,
    /// How many logical cores share it.
    pub shared_by: usize,
}

/// The caches of the first core, nearest first. `root` as for [`quota`].
pub fn caches(root: &Path) -> Vec<Cache> {
    let base = root.join("sys/devices/system/cpu/cpu0/cache");
    let mut caches: Vec<Cache> = entries(&base, "index")
        .into_iter()
        .filter_map(|index| {
            let read = |name: &str| line(&base.join(format!("index{index}")).join(name));
            Some(Cache {
                level: read("level")?.parse().ok()?,
                kind: read("type")?,
                bytes: crate::env::bytes(&read("size")?).ok()?,
                shared_by: count_list(&read("shared_cpu_list")?),
            })
        })
        .collect();
    caches.sort_by(|a, b| (a.level, &a.kind).cmp(&(b.level, &b.kind)));
    caches
}

/// A memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: usize,
    /// Its logical cores.
    pub cores: usize,
}

/// The memory nodes. `root` as for [`quota`].
pub fn nodes(root: &Path) -> Vec<Node> {
    let base = root.join("sys/devices/system/node");
    entries(&base, "node")
        .into_iter()
        .filter_map(|number| {
            let list = line(&base.join(format!("node{number}/cpulist")))?;
            Some(Node {
                number,
                cores: count_list(&list),
            })
        })
        .collect()
}

/// The numbers behind `prefix` in the names of a directory, ascending.
fn entries(directory: &Path, prefix: &str) -> Vec<usize> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut numbers: Vec<usize> = names
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_prefix(prefix)?
                .parse()
                .ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

fn line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

/// How many numbers a list like `0-3,8` has.
fn count_list(list: &str) -> usize {
    let parts = list
        .split(',')
        .filter_map(|part| match part.split_once('-') {
            Some((first, last)) => {
                let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
                Some(last.saturating_sub(first) + 1)
            }
            None => part.parse::<usize>().ok().map(|_| 1),
        });
    parts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A recorded tree of files, removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("ringfold-{name}-{}", std::process::id()));
            for (path, content) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn spreading_leaves_the_affinity_as_it_was() {
        let before = sched_getaffinity(None).expect("an affinity");
        for (local_rank, local_size) in [(0, 1), (1, 2), (3, 4), (999, 1000)] {
            spread(local_rank, local_size);
            assert_eq!(sched_getaffinity(None).expect("an affinity"), before);
        }
    }

    #[test]
    fn the_tightest_group_on_the_way_up_binds() {
        let tree = Tree::new(
            "v2",
            &[
                ("proc/self/cgroup", "0::/pod/box\n"),
                ("sys/fs/cgroup/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/pod/cpu.max", "250000 100000\n"),
                ("sys/fs/cgroup/pod/box/cpu.max", "400000 100000\n"),
            ],
        );
        assert_eq!(quota(&tree.0), Some(2.5));
    }

    #[test]
    fn version_1_is_understood_also_where_the_path_is_the_hosts() {
        let tree = Tree::new(
            "v1",
            &[
                (
                    "proc/self/cgroup",
                    "3:memory:/x\n2:cpu,cpuacct:/docker/abc\n",
                ),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ],
        );
        assert_eq!(quota(&tree.0), Some(1.5));
    }

    #[test]
    fn no_limit_is_none() {
        let tree = Tree::new(
            "free",
            &[
                ("proc/self/cgroup", "1:cpu:/\n0::/\n"),
                ("sys/fs/cgroup/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ],
        );
        assert_eq!(quota(&tree.0), None);
        assert_eq!(quota(Path::new("/nowhere")), None);
    }

    #[test]
    fn this_process_has_a_core() {
        let cores = available();
        assert!(cores >= 1);
        assert!(cores <= std::thread::available_parallelism().unwrap().get());
    }

    #[test]
    fn caches_and_nodes_are_read() {
        let index = "sys/devices/system/cpu/cpu0/cache/index2";
        let tree = Tree::new(
            "caches",
            &[
                (&format!("{index}/level"), "2\n"),
                (&format!("{index}/type"), "Unified\n"),
                (&format!("{index}/size"), "2048K\n"),
                (&format!("{index}/shared_cpu_list"), "0-1,8\n"),
                ("sys/devices/system/node/node0/cpulist", "0-3,8-11\n"),
                ("sys/devices/system/node/node1/cpulist", "\n"),
            ],
        );
        let cache = Cache {
            level: 2,
            kind: "Unified".into(),
            bytes: 2 << 20,
            shared_by: 3,
        };
        assert_eq!(caches(&tree.0), [cache]);
        let node = |number, cores| Node { number, cores };
        assert_eq!(nodes(&tree.0), [node(0, 8), node(1, 0)]);
    }
}
