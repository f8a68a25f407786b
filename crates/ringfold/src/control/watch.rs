//! Watching the processes of this host's ranks.
//!
//! A process descriptor becomes readable when its process has ended, even if a forked child still
//! holds all of its sockets. Only ranks with the same [`HostId`](crate::topology::HostId) are
//! watched. The id includes the process namespace, so that process ids mean the same on both ranks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::frame::Presence;

/// One rank's process.
#[derive(Debug)]
pub struct Watched {
    /// World rank of the process.
    pub rank: u32,
    /// The process descriptor; `None` if the process had ended before it could be watched.
    descriptor: Option<OwnedFd>,
}

impl Watched {
    /// Whether the process was gone from the start.
    pub fn is_gone(&self) -> bool {
        self.descriptor.is_none()
    }

    /// Returns the descriptor to poll.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

/// Watches the processes on rank `me`'s host, other than its own.
pub fn watch(ranks: &[Presence], me: usize) -> Vec<Watched> {
    let mine = ranks[me];
    let neighbours = ranks.iter().enumerate().filter(|(rank, presence)| {
        *rank != me && presence.host == mine.host && presence.pid != mine.pid
    });
    let mut watched = Vec::new();
    for (rank, presence) in neighbours {
        let rank = rank as u32;
        let Some(pid) = i32::try_from(presence.pid).ok().and_then(Pid::from_raw) else {
            continue;
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => watched.push(Watched {
                rank,
                descriptor: Some(descriptor),
            }),
            Err(Errno::SRCH) => watched.push(Watched {
                rank,
                descriptor: None,
            }),
            Err(error) => {
                log::warn!(
                    target: "ringfold::control",
                    "rank {rank}'s process cannot be watched: {error}"
                );
            }
        }
    }
    watched
}
