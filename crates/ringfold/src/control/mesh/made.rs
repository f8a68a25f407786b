//! The connections of a mesh made so far, shared by the threads that make them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::congestion::CongestionAlgorithms;
use crate::control::limit::Limit;
use crate::control::poll::{EventFd, remaining};
use crate::control::socket::Socket;
use crate::error::{Error, Result};
use crate::sync::lock;
use crate::sys::unshared::Unshared;
use crate::transport::tcp::Sockets;

/// Time limit for a rail that does not work yet: a NIC takes seconds to bring its link up. At most
/// half of the time for joining, so that the other rails have the rest.
const RAIL: Duration = Duration::from_secs(10);

/// The connections so far, shared by the threads that make them.
pub(super) struct Made {
    /// Sockets by peer, channel and index.
    sockets: Mutex<Vec<Vec<Vec<Option<Socket>>>>>,
    failure: Mutex<Option<Error>>,
    is_failed: AtomicBool,
    /// Wakes the accepting thread after a failure.
    pub wake: EventFd,
    pub congestion: CongestionAlgorithms,
    /// Time until which a rail that does not work yet is waited for.
    pub rails_until: Instant,
}

impl Made {
    /// Creates an empty table. `counts` has the sockets of each channel by rank, 0 for a rank that
    /// is not a peer. All connections must be made within `limit`.
    pub fn new(
        counts: &[usize],
        channels: usize,
        congestion: CongestionAlgorithms,
        limit: Limit<'_>,
    ) -> Result<Made> {
        let channel = |count: usize| (0..count).map(|_| None).collect();
        let peer = |count: &usize| match *count {
            0 => Vec::new(),
            count => (0..channels).map(|_| channel(count)).collect(),
        };
        let sockets: Vec<_> = counts.iter().map(peer).collect();
        Ok(Made {
            sockets: Mutex::new(sockets),
            failure: Mutex::new(None),
            is_failed: AtomicBool::new(false),
            wake: EventFd::new().map_err(|error| Error::system("cannot make an eventfd", error))?,
            congestion,
            rails_until: Instant::now() + RAIL.min(remaining(limit.deadline()) / 2),
        })
    }

    pub fn has(&self, peer: usize, channel: usize, index: usize) -> bool {
        lock(&self.sockets)[peer][channel][index].is_some()
    }

    pub fn add(&self, peer: usize, channel: usize, index: usize, socket: Socket) {
        lock(&self.sockets)[peer][channel][index] = Some(socket);
    }

    /// Records a failure, unless one is already recorded.
    pub fn fail(&self, error: Error) {
        lock(&self.failure).get_or_insert(error);
        // A hint to stop early; the failure itself is behind the lock.
        self.is_failed.store(true, Ordering::Relaxed);
        self.wake.signal();
    }

    pub fn is_failed(&self) -> bool {
        self.is_failed.load(Ordering::Relaxed)
    }

    pub fn finish(self) -> Result<Sockets> {
        let failure = self.failure.into_inner();
        if let Some(error) = failure.unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let sockets = self.sockets.into_inner();
        let sockets = sockets.unwrap_or_else(PoisonError::into_inner);
        let stream = |socket: Socket| {
            // The kernel's default can be set again; if not, the path is only slower.
            let _ = self.congestion.adapt(&socket);
            socket.into_fd()
        };
        let channel = |sockets: Vec<Option<Socket>>| -> Vec<Unshared> {
            sockets.into_iter().flatten().map(stream).collect()
        };
        let peer = |channels: Vec<_>| channels.into_iter().map(channel).collect();
        Ok(sockets.into_iter().map(peer).collect())
    }
}
