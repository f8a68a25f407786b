//! Other processes of this host that are in a ringfold job, of any user.
//!
//! While a process has a communicator, it holds a name in the abstract namespace of UNIX sockets: a
//! *mark*, `ringfold-process-<process namespace>-<process id>`. Any process can list such names in
//! `/proc/net/unix`, and the kernel removes them with the process, however the process ends: there
//! is no daemon and no file that could be left behind. A mark is visible only in the same network
//! namespace, and its process can be identified only in the same process namespace.
//!
//! Any process can make a mark for any other, so a mark is only a hint where to look. The decision
//! rests on the kernel's report about the process: whether it runs at this moment, and on which
//! cores. So a false mark names, at worst, a process that takes time on these cores without
//! ringfold. Nothing connects to a mark.
//!
//! Processes are counted, not communicators: the threads that drive the communicators of one
//! process mostly do not run at the same time.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::{fs, io};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use super::cores::parse_list;
use crate::sys::fork;
use crate::sys::unshared::Unshared;

/// The prefix of all marks.
const PREFIX: &str = "ringfold-process-";

/// Maximum number of processes, and of threads of each, that are examined: more than in practice.
const LOOKED_AT_MAX: usize = 4096;

/// This process' mark, which ends with the last clone.
#[derive(Debug)]
pub struct ProcessMark {
    /// The marked process: a forked child inherits the value, and is another process.
    process: u32,
    /// Bound, but not listening: the kernel refuses connections.
    _socket: Unshared,
}

/// Marks this process for as long as the value lives. `None` if the kernel refuses, in which case
/// neighbours do not see this process.
pub fn mark() -> Option<Arc<ProcessMark>> {
    static MARK: Mutex<Weak<ProcessMark>> = Mutex::new(Weak::new());
    let process = std::process::id();
    let marked = fork::with_locked(&MARK, |known| {
        if let Some(mark) = known.upgrade().filter(|mark| mark.process == process) {
            return Ok(mark);
        }
        let _socket = Unshared::make(|| bound(process))?;
        let mark = Arc::new(ProcessMark { process, _socket });
        *known = Arc::downgrade(&mark);
        Ok(mark)
    });
    let unmarked = |error: &io::Error| {
        log::debug!(target: "ringfold::init", "this process is not marked: {error}");
    };
    marked.inspect_err(unmarked).ok()
}

/// Makes a socket with the name that marks `process`, which is this process.
fn bound(process: u32) -> io::Result<OwnedFd> {
    let name = format!("{PREFIX}{}-{process}", namespace(Path::new("/")));
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    bind(&socket, &name)?;
    Ok(socket)
}

/// A process in a ringfold job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The process id in this process namespace.
    pub pid: u32,
    /// The cores that the process' first thread may use, ascending.
    pub cores: Vec<usize>,
    /// Whether a thread of the process runs at this moment, or waits only for a core.
    pub is_running: bool,
}

/// Returns the marked processes that exist, by process id, including this one if it is marked.
/// `root` is the parent of `proc`.
pub fn neighbours(root: &Path) -> Vec<Neighbour> {
    let table = fs::read_to_string(root.join("proc/net/unix")).unwrap_or_default();
    let prefix = format!("@{PREFIX}{}-", namespace(root));
    let names = table
        .lines()
        .filter_map(|line| line.split_whitespace().next_back());
    let numbers = names.filter_map(|name| name.strip_prefix(&prefix)?.parse().ok());
    let pids: BTreeSet<u32> = numbers.take(LOOKED_AT_MAX).collect();
    pids.into_iter()
        .filter_map(|pid| look_at(root, pid))
        .collect()
}

impl Neighbour {
    /// Whether the process takes time on one of `cores` at this moment.
    pub fn is_busy_on(&self, cores: &BTreeSet<usize>) -> bool {
        self.is_running && self.cores.iter().any(|core| cores.contains(core))
    }
}

/// Reads the kernel's report about a process; `None` if the process is gone or hidden.
fn look_at(root: &Path, pid: u32) -> Option<Neighbour> {
    let folder = root.join(format!("proc/{pid}"));
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, list) = lines.find(|(name, _)| *name == "Cpus_allowed_list")?;
    let threads = fs::read_dir(folder.join("task")).into_iter().flatten();
    let is_running = threads.flatten().take(LOOKED_AT_MAX).any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the command's name, which may hold brackets itself.
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_some_and(|state| state.starts_with('R'))
    });
    Some(Neighbour {
        pid,
        cores: parse_list(list.trim())?,
        is_running,
    })
}

/// Returns the number of the process namespace; 0 if unknown.
fn namespace(root: &Path) -> u64 {
    fs::metadata(root.join("proc/self/ns/pid")).map_or(0, |metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::super::cores::tests::Tree;
    use super::*;

    #[test]
    fn marked_processes_are_judged_by_what_the_kernel_says_of_them() {
        // The recorded host does not say its process namespace, which counts as 0.
        let marks = format!(
            "Num RefCount Path\n\
             1: 2 0 0 1 01 55\n\
             1: 2 0 0 1 01 5 @{PREFIX}1234-10\n\
             1: 2 0 0 1 01 5 @{PREFIX}0-x\n\
             1: 2 0 0 1 01 5 @{PREFIX}0-7\n\
             1: 2 0 0 1 01 6 @{PREFIX}0-8\n\
             1: 2 0 0 1 01 7 @{PREFIX}0-9\n"
        );
        let tree = Tree::new(
            "neighbours",
            &[
                ("proc/net/unix", &marks),
                ("proc/7/status", "Name:\tx\nCpus_allowed_list:\t0-1,4\n"),
                ("proc/7/task/7/stat", "7 (a) R (b)) S 1 7"),
                ("proc/7/task/9/stat", "9 (x) R 1 7"),
                ("proc/8/status", "Cpus_allowed_list:\t5\n"),
                ("proc/8/task/8/stat", "8 (R ) R) S 1"),
            ],
        );
        let found = neighbours(tree.root());
        let expected = [(7, vec![0, 1, 4], true), (8, vec![5], false)];
        let expected = expected.map(|(pid, cores, is_running)| Neighbour {
            pid,
            cores,
            is_running,
        });
        // Process 9 has a mark, and is gone.
        assert_eq!(found, expected);
        assert!(found[0].is_busy_on(&BTreeSet::from([4])));
        assert!(!found[0].is_busy_on(&BTreeSet::from([5])));
        assert!(!found[1].is_busy_on(&BTreeSet::from([5])));
    }

    #[test]
    fn a_host_that_tells_nothing_has_no_neighbours() {
        assert_eq!(neighbours(Path::new("/no/such/root")), []);
    }
}
