//! A word that a fork wipes: whether this process has the open communicator that the word stands
//! for.
//!
//! A forked child has a copy of everything but the threads that serve it, and sockets and shared
//! memory that are its parent's. One load tells before any harm is done.

use std::alloc::{Layout, handle_alloc_error};
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::Mapping;

const OPEN: u32 = 1;
const CLOSED: u32 = 2;

/// What a word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Made here, and not closed.
    Open,
    /// Made here, and closed.
    Closed,
    /// This process was forked from the one that made it.
    Forked,
}

/// The word, in a page of its own.
#[derive(Debug)]
pub struct ForkGuard {
    page: Mapping,
}

impl ForkGuard {
    /// An open one.
    pub fn new() -> ForkGuard {
        let page = Mapping::anonymous(rustix::param::page_size())
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<AtomicU32>()));
        if let Err(error) = page.wipe_on_fork() {
            log::debug!(target: "ringfold::init", "a fork will not be noticed: {error}");
        }
        let guard = ForkGuard { page };
        // A word by itself, as everywhere below: nothing is published with it.
        guard.word().store(OPEN, Ordering::Relaxed);
        guard
    }

    /// Where it stands: one load.
    pub fn stage(&self) -> Stage {
        match self.word().load(Ordering::Relaxed) {
            OPEN => Stage::Open,
            CLOSED => Stage::Closed,
            _ => Stage::Forked,
        }
    }

    /// Closes it if it is open; where it stood before.
    pub fn close(&self) -> Stage {
        let closed =
            self.word()
                .compare_exchange(OPEN, CLOSED, Ordering::Relaxed, Ordering::Relaxed);
        match closed {
            Ok(_) => Stage::Open,
            Err(_) => self.stage(),
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the beginning of a mapped page, aligned, and used as this atomic only.
        unsafe { &*self.page.region().address().cast::<AtomicU32>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_closed_once() {
        let life = ForkGuard::new();
        assert_eq!(life.stage(), Stage::Open);
        assert_eq!(life.close(), Stage::Open);
        assert_eq!(life.close(), Stage::Closed);
        assert_eq!(life.stage(), Stage::Closed);
    }
}
