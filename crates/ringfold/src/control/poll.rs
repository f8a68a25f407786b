//! Waiting for descriptors with a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, Timespec, eventfd, poll};

/// A descriptor by which one thread ends another's [`wait_for`].
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Creates a descriptor that is not signalled.
    pub fn new() -> io::Result<EventFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(EventFd(eventfd(0, flags)?))
    }

    /// Makes the descriptor readable until [`clear`](EventFd::clear).
    pub fn signal(&self) {
        // A full counter refuses the write; it is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again.
    pub fn clear(&self) {
        // A descriptor that is not signalled refuses the read; there is nothing to clear.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `entries` is ready; returns the number of ready ones, or 0 at the deadline.
pub fn wait_for(entries: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<usize> {
    loop {
        let timeout = deadline.map(|deadline| {
            let left = remaining(deadline);
            Timespec {
                tv_sec: left.as_secs() as _,
                tv_nsec: left.subsec_nanos() as _,
            }
        });
        match poll(entries, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Returns for each of `entries` whether it is ready.
pub fn ready(entries: &[PollFd<'_>]) -> Vec<bool> {
    let ready = entries.iter().map(|entry| !entry.revents().is_empty());
    ready.collect()
}

/// Returns the time left until `deadline`.
pub fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Whether the call can be retried later.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
