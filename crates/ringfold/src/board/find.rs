//! The boards of this host's processes.
//!
//! A board is a memfd: it is found among the descriptors of its process, as `/proc` lists them, and
//! opened there. The kernel decides whose are shown.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::layout::{self, FILE_SUFFIX, MEMFD_NAME};
use super::picture::Picture;

/// Descriptors of a process that are looked at: more than one has in earnest.
const DESCRIPTORS_MAX: usize = 1 << 16;

/// A board of a process of this host.
#[derive(Debug)]
pub struct Found {
    /// The process, by the number that it has here.
    pub pid: u32,
    /// What its board says, or what is wrong with it.
    pub picture: Result<Picture, String>,
}

/// All boards that this user may read, by process. `root` is the parent of `proc`.
pub fn find(root: &Path) -> Vec<Found> {
    let processes = fs::read_dir(root.join("proc"))
        .into_iter()
        .flatten()
        .flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pids: BTreeSet<u32> = numbers.collect();
    pids.into_iter()
        .flat_map(|pid| boards_of(root, pid))
        .collect()
}

fn boards_of(root: &Path, pid: u32) -> Vec<Found> {
    let folder = root.join(format!("proc/{pid}"));
    // Of another user, or gone.
    let Ok(descriptors) = fs::read_dir(folder.join("fd")) else {
        return Vec::new();
    };
    let links = descriptors
        .flatten()
        .take(DESCRIPTORS_MAX)
        .map(|entry| entry.path());
    let boards = links.filter(|link| fs::read_link(link).is_ok_and(|target| is_board(&target)));
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for link in boards {
        let Some((file, inode)) = open(&link) else {
            continue;
        };
        if !seen.insert(inode) {
            continue;
        }
        let picture = read(file);
        // A child that was made without the library's knowledge has its parent's.
        let is_own = |picture: &Picture| own_number(&folder).is_none_or(|own| own == picture.pid);
        if picture.as_ref().is_ok_and(|picture| !is_own(picture)) {
            continue;
        }
        found.push(Found { pid, picture });
    }
    found
}

fn is_board(target: &Path) -> bool {
    let target = target.to_string_lossy();
    let file = target.strip_suffix(" (deleted)").unwrap_or(&target);
    file.strip_prefix("/memfd:") == Some(MEMFD_NAME) || file.ends_with(FILE_SUFFIX)
}

/// Opens a regular file, and nothing that would block or do anything when it is opened.
fn open(link: &Path) -> Option<(File, (u64, u64))> {
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
    let inode = (metadata.dev(), metadata.ino());
    metadata.is_file().then_some((file, inode))
}

/// Reads a board without its records.
fn read(mut file: File) -> Result<Picture, String> {
    let failed = |error: std::io::Error| format!("it cannot be read: {error}");
    let mut board = Vec::new();
    let beginning = layout::BEGINNING_BYTES as u64;
    file.by_ref()
        .take(beginning)
        .read_to_end(&mut board)
        .map_err(failed)?;
    let rest = Picture::bytes(&board)? - board.len();
    file.take(rest as u64)
        .read_to_end(&mut board)
        .map_err(failed)?;
    Picture::read(&board)
}

/// The number by which a process knows itself: the last one, of its innermost namespace.
fn own_number(folder: &Path) -> Option<u32> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}
