//! Event counters that wake a rank which sleeps on descriptors because it also has peers behind
//! sockets.
//!
//! A futex and sockets cannot be waited for together. Such a rank announces in its doorbell that it
//! sleeps on descriptors, one of which is its bell. A ringer that finds this announcement adds to
//! the counter, and the rank's epoll call returns. The rank that creates the shared memory also
//! creates the bells, and passes all of them to each rank of the host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// A rank's bell.
pub type Bell = Arc<OwnedFd>;

/// Creates an event counter with the value zero.
pub fn new_bell() -> Result<Bell> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let bell = eventfd(0, flags)
        .map_err(|error| Error::system("cannot create an event counter", error))?;
    Ok(Arc::new(bell))
}

/// Wakes the bell's owner, or prevents its next sleep.
pub fn ring(bell: &OwnedFd) {
    // Fails only if the counter is at its maximum, which wakes the owner, too.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Clears all rings.
pub fn silence(bell: &OwnedFd) {
    // Fails only if the counter is zero already.
    let _ = rustix::io::read(bell, &mut [0_u8; 8]);
}

/// The bells of the ranks that share a segment, by their numbers; empty if no rank sleeps on
/// descriptors.
#[derive(Clone, Debug, Default)]
pub struct Bells(Vec<Bell>);

impl Bells {
    /// Maximum number of ranks with bells: the kernel passes 253 descriptors at once, and one of
    /// them is the memory's.
    pub const RANKS_MAX: usize = 252;

    /// Creates bells for `ranks` ranks, or none if there are too many ranks.
    pub fn new(ranks: usize) -> Result<Bells> {
        if ranks > Bells::RANKS_MAX {
            return Ok(Bells::default());
        }
        (0..ranks)
            .map(|_| new_bell())
            .collect::<Result<_>>()
            .map(Bells)
    }

    /// Wraps the bells received from the rank that created them.
    pub fn from_fds(fds: Vec<OwnedFd>) -> Bells {
        Bells(fds.into_iter().map(Arc::new).collect())
    }

    /// Returns the descriptors to pass to the other ranks.
    pub fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|bell| bell.as_fd())
    }

    /// Returns the number of bells.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns a rank's bell.
    pub fn of(&self, rank: usize) -> Option<&Bell> {
        self.0.get(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_ranks_have_no_bells() {
        assert_eq!(
            Bells::new(Bells::RANKS_MAX).unwrap().count(),
            Bells::RANKS_MAX
        );
        assert_eq!(Bells::new(Bells::RANKS_MAX + 1).unwrap().count(), 0);
    }
}
