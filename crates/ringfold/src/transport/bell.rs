//! Event counters by which a rank is woken that sleeps on descriptors, because it has peers behind
//! sockets, too.
//!
//! A futex and sockets cannot be waited for together. Such a rank announces in its doorbell that it
//! sleeps on descriptors, one of which is its bell: a ringer that finds this announcement adds to
//! the counter, and the rank's epoll call returns. The rank that makes the shared memory makes the
//! bells, too, and hands all of them to each rank of the host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// A rank's bell.
pub type Bell = Arc<OwnedFd>;

/// An event counter that nothing was added to.
pub fn new_bell() -> Result<Bell> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let bell = eventfd(0, flags)
        .map_err(|error| Error::system("cannot create an event counter", error))?;
    Ok(Arc::new(bell))
}

/// Wakes the bell's owner from its sleep, or keeps it from the next one.
pub fn ring(bell: &OwnedFd) {
    // Failing means that the counter is full of rings already.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Takes back all rings.
pub fn silence(bell: &OwnedFd) {
    // Failing means that the counter is zero, which is what is wanted.
    let _ = rustix::io::read(bell, &mut [0_u8; 8]);
}

/// The bells of the ranks that share a segment, by their numbers; empty where none sleeps on
/// descriptors.
#[derive(Clone, Debug, Default)]
pub struct Bells(Vec<Bell>);

impl Bells {
    /// The most ranks that can have bells: the kernel passes 253 descriptors at once, and one of
    /// them is the memory's.
    pub const RANKS_MAX: usize = 252;

    /// Bells for `ranks` ranks, none if they are too many.
    pub fn new(ranks: usize) -> Result<Bells> {
        if ranks > Bells::RANKS_MAX {
            return Ok(Bells::default());
        }
        (0..ranks)
            .map(|_| new_bell())
            .collect::<Result<_>>()
            .map(Bells)
    }

    /// Those that came from the rank that made them.
    pub fn from_fds(fds: Vec<OwnedFd>) -> Bells {
        Bells(fds.into_iter().map(Arc::new).collect())
    }

    /// To be handed to the other ranks.
    pub fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|bell| bell.as_fd())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// That of a rank.
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
