//! Whether this process has the open communicator, or other value, that a guard belongs to.
//!
//! A forked child has a copy of everything but the threads that serve it, and sockets and shared
//! memory that are its parent's. Two loads tell before any harm is done.
//!
//! # Model
//!
//! The process has one word, in a page that forks wipe: the number of its *generation*. A process
//! that finds the word wiped takes the next number, so no process has the number of one that it
//! descends from. A guard remembers the number of the process that made it.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::mapping::Mapping;

/// No process has this number: what a fork leaves of the word, and the mark of a closed guard.
const NONE: u32 = 0;

/// State of a guard's value in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Made here, and not closed.
    Open,
    /// Made here, and closed.
    Closed,
    /// This process was forked from the one that made it.
    Forked,
}

/// Tells the process that made a value from the processes that were forked from it.
#[derive(Debug)]
pub struct ForkGuard {
    /// The process' word, which is never unmapped.
    word: &'static AtomicU32,
    /// The number of the process that made the value.
    made_in: u32,
    /// The same number, or [`NONE`] after closing.
    open_in: AtomicU32,
}

impl ForkGuard {
    /// An open guard.
    pub fn new() -> ForkGuard {
        let word = word();
        let made_in = generation(word);
        ForkGuard {
            word,
            made_in,
            open_in: AtomicU32::new(made_in),
        }
    }

    /// The state: two loads.
    #[inline]
    pub fn stage(&self) -> Stage {
        // Words by themselves, as everywhere below: nothing is published with them.
        let here = self.word.load(Ordering::Relaxed);
        match self.open_in.load(Ordering::Relaxed) {
            open_in if open_in == here && here != NONE => Stage::Open,
            _ if self.made_in == here => Stage::Closed,
            _ => Stage::Forked,
        }
    }

    /// Closes an open guard; the state before.
    pub fn close(&self) -> Stage {
        let before = self.stage();
        let (open, closed) = (self.made_in, NONE);
        let relaxed = Ordering::Relaxed;
        let closing = || {
            self.open_in
                .compare_exchange(open, closed, relaxed, relaxed)
        };
        match before {
            Stage::Open if closing().is_err() => Stage::Closed,
            _ => before,
        }
    }
}

/// The word of this process and its children, which has a page of its own for as long as they live.
fn word() -> &'static AtomicU32 {
    static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
    // Pairs with the exchange below, so that a thread that finds the page finds it as it was made.
    let known = WORD.load(Ordering::Acquire);
    // SAFETY: null, or made below and never unmapped.
    if let Some(word) = unsafe { known.as_ref() } {
        return word;
    }
    let page = Mapping::anonymous(size_of::<AtomicU32>())
        .unwrap_or_else(|_| handle_alloc_error(Layout::new::<AtomicU32>()));
    if let Err(error) = page.wipe_on_fork() {
        log::debug!(target: "ringfold::init", "a fork will not be noticed: {error}");
    }
    let made = page.region().address().cast::<AtomicU32>();
    let word = WORD.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    let word = word.map_or_else(
        |first| first,
        |_| {
            std::mem::forget(page);
            made
        },
    );
    // SAFETY: the beginning of a mapped page, aligned, used as this atomic only, never unmapped.
    unsafe { &*word }
}

/// The number of this process, which it takes on if it has none yet.
fn generation(word: &AtomicU32) -> u32 {
    static TAKEN: AtomicU32 = AtomicU32::new(NONE);
    let here = word.load(Ordering::Relaxed);
    if here != NONE {
        return here;
    }
    let next = TAKEN.fetch_add(1, Ordering::Relaxed) + 1;
    let taken = word.compare_exchange(NONE, next, Ordering::Relaxed, Ordering::Relaxed);
    taken.map_or_else(|other| other, |_| next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_closed_once() {
        let life = ForkGuard::new();
        assert_eq!(life.stage(), Stage::Open);
        assert_eq!(life.close(), Stage::Open);
        assert_eq!(life.close(), Stage::Closed);
        assert_eq!(life.stage(), Stage::Closed);
    }

    #[test]
    fn a_wiped_word_makes_guards_forked_and_new_ones_open() {
        let before = ForkGuard::new();
        let child = AtomicU32::new(NONE);
        let word: &'static AtomicU32 = Box::leak(Box::new(child));
        let (closed, open) = (ForkGuard::new(), before);
        closed.close();
        let in_child = |guard: &ForkGuard| ForkGuard {
            word,
            made_in: guard.made_in,
            open_in: AtomicU32::new(guard.open_in.load(Ordering::Relaxed)),
        };
        for guard in [in_child(&open), in_child(&closed)] {
            assert_eq!(guard.stage(), Stage::Forked);
            assert_eq!(guard.close(), Stage::Forked);
        }
        let made_in = generation(word);
        assert_ne!(made_in, open.made_in);
        for guard in [in_child(&open), in_child(&closed)] {
            assert_eq!(guard.stage(), Stage::Forked);
        }
        let own = ForkGuard {
            word,
            made_in,
            open_in: AtomicU32::new(made_in),
        };
        assert_eq!(own.stage(), Stage::Open);
    }
}
