//! Finds the boards of this host's processes.
//!
//! A board is an open file of the process that writes it. A reader finds the file in `/proc/PID/fd`
//! and opens it through that folder. The kernel decides which descriptors a user may see.
//!
//! Any user can make any number of boards, and root reads all of them. So the cost of reading a
//! user's boards is limited ([`Budget`]). A board in a memfd is read only if its memory is fully
//! allocated, so the board costs its owner as much as its reader. Boards are read in ascending
//! order of user IDs, so subordinate user IDs, of which a user may have many, come last.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::layout::{self, FILE_SUFFIX, MEMFD_NAME};
use super::picture::Picture;

/// Maximum number of descriptors examined per process; real processes have fewer.
const DESCRIPTORS_MAX: usize = 1 << 16;

/// Maximum number of unreadable boards of a user that are reported one by one; the others are only
/// counted.
const UNREADABLE_MAX: usize = 8;

/// A board of a process on this host, or a report of boards that were left out.
#[derive(Debug)]
pub struct Found {
    /// The process ID in the reader's namespace.
    pub pid: u32,
    /// The board's content, or the reason why boards of the process were not read.
    pub picture: Result<Picture, String>,
}

/// Limits on the cost of reading boards.
struct Budget {
    /// Number of descriptors that may still be examined.
    descriptors: usize,
    /// Number of boards that may still be read.
    boards: usize,
    /// Bytes of boards that may still be read; only a picture of each board is kept.
    bytes: usize,
    /// Number of ranks whose lateness may still be kept.
    peers: usize,
}

impl Budget {
    /// The budget of one user: enough for many times the communicators of a large host, and used up
    /// in about a second.
    const OF_USER: Budget = Budget {
        descriptors: 1 << 20,
        boards: 1 << 13,
        bytes: 256 << 20,
        peers: 1 << 20,
    };
    /// The budget of all users together: four times that of one user.
    const OF_ALL: Budget = Budget {
        descriptors: 1 << 22,
        boards: 1 << 15,
        bytes: 1 << 30,
        peers: 1 << 22,
    };

    /// Takes `amount` from a part of the budget, or fails if less is left.
    fn take(left: &mut usize, amount: usize) -> Result<(), Spent> {
        *left = left.checked_sub(amount).ok_or(Spent)?;
        Ok(())
    }
}

/// The error that a budget is used up.
struct Spent;

/// A process whose descriptors this user may list.
struct Process {
    /// The ID of the user that started the process, whose budget is charged.
    user: u32,
    pid: u32,
    /// The process ID in the innermost namespace of the process.
    own_number: Option<u32>,
    folder: PathBuf,
}

/// A search for boards.
struct Search {
    keeps_peers: bool,
    all: Budget,
    /// Device and inode numbers of the boards found so far.
    seen: BTreeSet<(u64, u64)>,
    found: Vec<Found>,
}

/// Returns all boards that this user may read, within the limits of a [`Budget`]. A [`Found`]
/// reports each user that exceeds its budget. Without `keeps_peers`, pictures have no peers. `root`
/// is the folder that contains `proc`.
pub fn find(root: &Path, keeps_peers: bool) -> Vec<Found> {
    let mut search = Search {
        keeps_peers,
        all: Budget::OF_ALL,
        seen: BTreeSet::new(),
        found: Vec::new(),
    };
    for user in processes(root).chunk_by(|one, other| one.user == other.user) {
        search.look_at_user(user);
    }
    search.found
}

/// Returns the processes whose descriptors can be listed, sorted by user and process ID.
fn processes(root: &Path) -> Vec<Process> {
    let entries = fs::read_dir(root.join("proc"));
    let entries = entries.into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut processes: Vec<Process> = numbers
        .filter_map(|pid: u32| process(root.join(format!("proc/{pid}")), pid))
        .collect();
    processes.sort_unstable_by_key(|process| (process.user, process.pid));
    processes
}

/// Returns the process, or `None` if the process has exited or this user may not list its
/// descriptors.
fn process(folder: PathBuf, pid: u32) -> Option<Process> {
    fs::read_dir(folder.join("fd")).ok()?;
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let numbers = |key| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().split_whitespace()
    };
    Some(Process {
        user: numbers("Uid:")
            .next()
            .and_then(|user| user.parse().ok())
            .unwrap_or(u32::MAX),
        pid,
        own_number: numbers("NSpid:")
            .next_back()
            .and_then(|number| number.parse().ok()),
        folder,
    })
}

impl Search {
    fn look_at_user(&mut self, processes: &[Process]) {
        let mut budget = Budget::OF_USER;
        let mut unreadable = 0;
        for process in processes {
            let looked = self.look_at(process, &mut budget, &mut unreadable);
            if looked.is_err() {
                let Process { user, pid, .. } = process;
                let Budget {
                    boards,
                    bytes,
                    peers,
                    ..
                } = Budget::OF_USER;
                self.report(
                    *pid,
                    format!(
                        "user {user} exceeds the limits ({boards} boards, {} MiB and {peers} peers \
                         per user, four times as much in all); boards of this process and of user \
                         {user}'s later ones are left out",
                        bytes >> 20
                    ),
                );
                break;
            }
        }
        if let (Some(more), [.., last]) = (unreadable.checked_sub(UNREADABLE_MAX + 1), processes) {
            let why = format!("as are {} other boards of user {}", more + 1, last.user);
            self.report(last.pid, why);
        }
    }

    fn report(&mut self, pid: u32, why: String) {
        let picture = Err(why);
        self.found.push(Found { pid, picture });
    }

    /// Reads the boards of a process.
    fn look_at(
        &mut self,
        process: &Process,
        budget: &mut Budget,
        unreadable: &mut usize,
    ) -> Result<(), Spent> {
        let Ok(descriptors) = fs::read_dir(process.folder.join("fd")) else {
            return Ok(());
        };
        for entry in descriptors.flatten().take(DESCRIPTORS_MAX) {
            for budget in [&mut *budget, &mut self.all] {
                Budget::take(&mut budget.descriptors, 1)?;
            }
            let link = entry.path();
            let Some(is_memfd) = fs::read_link(&link).ok().and_then(|to| is_board(&to)) else {
                continue;
            };
            let Some((file, metadata)) = open(&link) else {
                continue;
            };
            let inode = (metadata.dev(), metadata.ino());
            if self.seen.contains(&inode) {
                continue;
            }
            for budget in [&mut *budget, &mut self.all] {
                Budget::take(&mut budget.boards, 1)?;
            }
            let picture = match self.read(file, is_memfd.then_some(&metadata), budget)? {
                // A child created without the library's knowledge inherits its parent's board.
                Ok(picture) if process.own_number.is_some_and(|own| own != picture.pid) => continue,
                other => other,
            };
            self.seen.insert(inode);
            *unreadable += usize::from(picture.is_err());
            if picture.is_ok() || *unreadable <= UNREADABLE_MAX {
                let pid = process.pid;
                self.found.push(Found { pid, picture });
            }
        }
        Ok(())
    }

    /// Reads a board up to its records; `memfd` is the file's metadata if the board is a memfd.
    fn read(
        &mut self,
        mut file: File,
        memfd: Option<&Metadata>,
        budget: &mut Budget,
    ) -> Result<Result<Picture, String>, Spent> {
        let mut board = Vec::new();
        let beginning = read_up_to(&mut file, layout::BEGINNING_BYTES, &mut board);
        let bytes = match beginning.and_then(|()| Picture::bytes(&board)) {
            Ok(bytes) => bytes,
            Err(why) => return Ok(Err(why)),
        };
        if memfd.is_some_and(|memfd| memfd.blocks().saturating_mul(512) < bytes as u64) {
            return Ok(Err("its memory is not fully allocated".into()));
        }
        for budget in [&mut *budget, &mut self.all] {
            Budget::take(&mut budget.bytes, bytes)?;
        }
        let rest = bytes - board.len();
        let rest = read_up_to(&mut file, rest, &mut board);
        let mut picture = match rest.and_then(|()| Picture::read(&board)) {
            Ok(picture) => picture,
            Err(why) => return Ok(Err(why)),
        };
        if !self.keeps_peers {
            picture.peers = Vec::new();
        }
        for budget in [budget, &mut self.all] {
            Budget::take(&mut budget.peers, picture.peers.len())?;
        }
        Ok(Ok(picture))
    }
}

/// Appends the next bytes of a file, or fewer if the file ends.
fn read_up_to(file: &mut File, bytes: usize, into: &mut Vec<u8>) -> Result<(), String> {
    let mut part = file.take(bytes as u64);
    part.read_to_end(into)
        .map(|_| ())
        .map_err(|error| format!("I/O error: {error}"))
}

/// Returns whether the board in the open file `target` is a memfd; `None` if the file's name is not
/// a board's.
fn is_board(target: &Path) -> Option<bool> {
    let target = target.to_string_lossy();
    let file = target.strip_suffix(" (deleted)").unwrap_or(&target);
    let is_memfd = file.strip_prefix("/memfd:") == Some(MEMFD_NAME);
    (is_memfd || file.ends_with(FILE_SUFFIX)).then_some(is_memfd)
}

/// Opens a regular file; rejects files whose opening could block or have side effects.
fn open(link: &Path) -> Option<(File, Metadata)> {
    if !fs::metadata(link).ok()?.is_file() {
        return None;
    }
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(link)
        .ok()?;
    let metadata = file.metadata().ok()?;
    metadata.is_file().then_some((file, metadata))
}
