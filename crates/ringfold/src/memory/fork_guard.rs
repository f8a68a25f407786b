//! Detects whether this process made a communicator, or another guarded value, or was forked since.
//!
//! A forked child has a copy of everything but the threads that serve the value, and its sockets
//! and shared memory are the parent's. Two loads detect the fork before the child does any harm.
//!
//! # Model
//!
//! The process has one word, in a page that forks wipe: the number of its *generation*. A process
//! that finds the word wiped takes the next number, so no process has the number of an ancestor. A
//! guard stores the number of the process that made it.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::mapping::Mapping;

/// The number of no process: the word after a fork, and the mark of a closed guard.
const NONE: u32 = 0;

/// State of a guard's value in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardStage {
    /// Made by this process, and not closed.
    Open,
    /// Made by this process, and closed.
    Closed,
    /// Made by another process, from which this process was forked.
    Forked,
}

/// Distinguishes the process that made a value from the processes forked from it.
#[derive(Debug)]
pub struct ForkGuard {
    /// The process' word, which is never unmapped.
    word: &'static AtomicU32,
    /// The number of the process that made the value.
    made_in: u32,
    /// The number of the process that made the value, or [`NONE`] after closing.
    open_in: AtomicU32,
}

impl ForkGuard {
    /// Makes an open guard.
    pub fn new() -> ForkGuard {
        let word = word();
        let made_in = generation(word);
        ForkGuard {
            word,
            made_in,
            open_in: AtomicU32::new(made_in),
        }
    }

    /// Returns the state, with two loads.
    #[inline]
    pub fn stage(&self) -> GuardStage {
        // Relaxed, as in `close` and `generation`: the words publish no other data.
        let here = self.word.load(Ordering::Relaxed);
        match self.open_in.load(Ordering::Relaxed) {
            open_in if open_in == here && here != NONE => GuardStage::Open,
            _ if self.made_in == here => GuardStage::Closed,
            _ => GuardStage::Forked,
        }
    }

    /// Closes an open guard, and returns the state before.
    pub fn close(&self) -> GuardStage {
        let before = self.stage();
        let (open, closed) = (self.made_in, NONE);
        let relaxed = Ordering::Relaxed;
        let closing = || {
            self.open_in
                .compare_exchange(open, closed, relaxed, relaxed)
        };
        match before {
            GuardStage::Open if closing().is_err() => GuardStage::Closed,
            _ => before,
        }
    }
}

/// Returns the word of this process and its children, on a page of its own that is never unmapped.
fn word() -> &'static AtomicU32 {
    static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
    // Pairs with the exchange below, so that a thread that finds the page finds it initialised.
    let known = WORD.load(Ordering::Acquire);
    // SAFETY: null, or made below and never unmapped.
    if let Some(word) = unsafe { known.as_ref() } {
        return word;
    }
    let page = Mapping::anonymous(size_of::<AtomicU32>())
        .unwrap_or_else(|_| handle_alloc_error(Layout::new::<AtomicU32>()));
    if let Err(error) = page.wipe_on_fork() {
        log::debug!(target: "ringfold::init", "forks will not be detected: {error}");
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

/// Returns the number of this process, which takes the next number if it has none.
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
        assert_eq!(life.stage(), GuardStage::Open);
        assert_eq!(life.close(), GuardStage::Open);
        assert_eq!(life.close(), GuardStage::Closed);
        assert_eq!(life.stage(), GuardStage::Closed);
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
            assert_eq!(guard.stage(), GuardStage::Forked);
            assert_eq!(guard.close(), GuardStage::Forked);
        }
        let made_in = generation(word);
        assert_ne!(made_in, open.made_in);
        for guard in [in_child(&open), in_child(&closed)] {
            assert_eq!(guard.stage(), GuardStage::Forked);
        }
        let own = ForkGuard {
            word,
            made_in,
            open_in: AtomicU32::new(made_in),
        };
        assert_eq!(own.stage(), GuardStage::Open);
    }
}
