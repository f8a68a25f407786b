//! The cores that this process may use, their caches and memory nodes.
//!
//! Cores = affinity ∩ the control groups' quota, versions 1 and 2. If more threads than cores wait,
//! they must block, not spin. Information that the kernel does not provide is omitted; nothing here
//! is an error.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// Counts the cores in this thread's affinity: at most its control groups' quota, at least one.
pub fn available() -> usize {
    within_quota(affinity().len())
}

/// Limits `cores` to the quota of this process' control groups, but to at least one.
pub fn within_quota(cores: usize) -> usize {
    let quota = quota(Path::new("/")).map_or(usize::MAX, |cores| cores as usize);
    cores.min(quota).max(1)
}

/// Returns the cores in this thread's affinity, ascending.
pub fn affinity() -> Vec<usize> {
    let Ok(affinity) = sched_getaffinity(None) else {
        return Vec::new();
    };
    let is_set = |core: &usize| affinity.is_set(*core);
    (0..CpuSet::MAX_CPU).filter(is_set).collect()
}

/// Returns the cores that this process could use without a narrowed affinity: those of its control
/// groups, otherwise all that are online. `root` as for [`quota`].
pub fn allowed(root: &Path) -> Option<Vec<usize>> {
    let base = root.join("sys/fs/cgroup");
    let read = |group: &Path, file: &str| parse_list(&read_line(&group.join(file))?);
    let effective =
        groups(root)?
            .into_iter()
            .flat_map(|(controllers, path)| match controllers.as_str() {
                "" => upward(&base, &path, |group| read(group, "cpuset.cpus.effective")),
                "cpuset" => upward(&base.join("cpuset"), &path, |group| {
                    read(group, "cpuset.effective_cpus")
                }),
                _ => Vec::new(),
            });
    // An empty list means no restriction; the smallest one is the innermost.
    let innermost = effective
        .filter(|list| !list.is_empty())
        .min_by_key(Vec::len);
    innermost.or_else(|| parse_list(&read_line(&root.join("sys/devices/system/cpu/online"))?))
}

/// Returns the quota of this process' control groups, as a number of cores; `None` without a limit.
/// `root` is the parent of `proc` and `sys`.
pub fn quota(root: &Path) -> Option<f64> {
    let base = root.join("sys/fs/cgroup");
    let limits = groups(root)?.into_iter().flat_map(|(controllers, path)| {
        if controllers.is_empty() {
            return upward(&base, &path, quota_v2);
        }
        if !controllers.split(',').any(|controller| controller == "cpu") {
            return Vec::new();
        }
        let mounts = [base.join("cpu"), base.join(&controllers)];
        let mounts = mounts.iter().filter(|mount| mount.is_dir());
        mounts
            .flat_map(|mount| upward(mount, &path, quota_v1))
            .collect()
    });
    limits.min_by(f64::total_cmp)
}

/// Returns the control groups of this process: the controllers, none in version 2, and the path.
fn groups(root: &Path) -> Option<Vec<(String, String)>> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    // `hierarchy:controllers:path`
    let group = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next().unwrap_or("").to_string();
        (controllers, parts.next().unwrap_or("/").to_string())
    };
    Some(groups.lines().map(group).collect())
}

/// Reads the limits of a group and all its ancestors: each limit binds. In a container, the path
/// may be the host's and not exist inside, but the top group exists.
fn upward<T>(mount: &Path, path: &str, read: impl Fn(&Path) -> Option<T>) -> Vec<T> {
    let mut groups = vec![mount.to_path_buf()];
    for part in Path::new(path).components() {
        if let std::path::Component::Normal(part) = part {
            groups.push(groups[groups.len() - 1].join(part));
        }
    }
    groups.iter().filter_map(|group| read(group)).collect()
}

/// Reads `cpu.max`: the time and the period, or `max` and the period.
fn quota_v2(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    ratio(words.next()?, words.next()?)
}

/// Reads the time, -1 without a limit, and the period, each from its own file.
fn quota_v1(group: &Path) -> Option<f64> {
    let time = fs::read_to_string(group.join("cpu.cfs_quota_us")).ok()?;
    let period = fs::read_to_string(group.join("cpu.cfs_period_us")).ok()?;
    ratio(time.trim(), period.trim())
}

fn ratio(time: &str, period: &str) -> Option<f64> {
    let (time, period) = (time.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (time > 0.0 && period > 0.0).then_some(time / period)
}

/// A cache of the first core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The level; 1 is the nearest.
    pub level: u8,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Size in bytes.
    pub bytes: usize,
    /// Number of logical cores that share the cache.
    pub shared_by: usize,
}

/// Returns the caches of the first core, nearest first. `root` as for [`quota`].
pub fn caches(root: &Path) -> Vec<Cache> {
    let base = root.join("sys/devices/system/cpu/cpu0/cache");
    let mut caches: Vec<Cache> = entries(&base, "index")
        .into_iter()
        .filter_map(|index| {
            let read = |name: &str| read_line(&base.join(format!("index{index}")).join(name));
            Some(Cache {
                level: read("level")?.parse().ok()?,
                kind: read("type")?,
                bytes: crate::units::bytes(&read("size")?).ok()?,
                shared_by: parse_list(&read("shared_cpu_list")?)?.len(),
            })
        })
        .collect();
    caches.sort_by(|a, b| (a.level, &a.kind).cmp(&(b.level, &b.kind)));
    caches
}

/// A memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node's number.
    pub number: usize,
    /// The node's logical cores, ascending.
    pub cores: Vec<usize>,
}

/// Returns the memory nodes. `root` as for [`quota`].
pub fn nodes(root: &Path) -> Vec<Node> {
    let base = root.join("sys/devices/system/node");
    entries(&base, "node")
        .into_iter()
        .filter_map(|number| {
            let list = read_line(&base.join(format!("node{number}/cpulist")))?;
            Some(Node {
                number,
                cores: parse_list(&list)?,
            })
        })
        .collect()
}

/// Returns the numbers after `prefix` in a directory's file names, ascending.
pub(super) fn entries(directory: &Path, prefix: &str) -> Vec<usize> {
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

pub(super) fn read_line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

/// Parses a list like `0-3,8` to ascending numbers; `None` for anything else and for cores beyond
/// the maximum of an affinity.
pub fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut numbers = BTreeSet::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers.into_iter().collect())
}

/// Formats ascending `numbers` as a list that [`parse_list`] reads.
pub fn format_list(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let texts = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A recorded tree of files, removed on drop.
    pub(crate) struct Tree(PathBuf);

    impl Tree {
        pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("ringfold-{name}-{}", std::process::id()));
            for (path, content) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            Tree(root)
        }

        pub(crate) fn root(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
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
    fn the_innermost_set_of_cores_is_what_is_allowed() {
        let tree = Tree::new(
            "cpuset",
            &[
                ("proc/self/cgroup", "3:cpuset:/box\n0::/pod\n"),
                ("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"),
                ("sys/fs/cgroup/pod/cpuset.cpus.effective", "2-3\n"),
                ("sys/fs/cgroup/cpuset/cpuset.effective_cpus", "0-3\n"),
                ("sys/devices/system/cpu/online", "0-7\n"),
            ],
        );
        assert_eq!(allowed(tree.root()), Some(vec![2, 3]));
        let free = Tree::new(
            "no-cpuset",
            &[
                ("proc/self/cgroup", "0::/\n"),
                ("sys/devices/system/cpu/online", "0-1\n"),
            ],
        );
        assert_eq!(allowed(free.root()), Some(vec![0, 1]));
        assert_eq!(allowed(Path::new("/nowhere")), None);
    }

    #[test]
    fn lists_of_cores_are_read_and_written() {
        for (text, numbers) in [
            ("0", vec![0]),
            ("0-3,8", vec![0, 1, 2, 3, 8]),
            ("4,6-7", vec![4, 6, 7]),
            ("", vec![]),
        ] {
            assert_eq!(parse_list(text).as_ref(), Some(&numbers));
            assert_eq!(format_list(&numbers), text);
        }
        for text in ["x", "3-1", "0-99999999", "1-", "-"] {
            assert_eq!(parse_list(text), None, "{text}");
        }
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
        let first = [0, 1, 2, 3, 8, 9, 10, 11].to_vec();
        assert_eq!(nodes(&tree.0), [node(0, first), node(1, vec![])]);
    }
}
