//! How far ranks are: the answer to why a call takes so long.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::wire::{Reader, Wire, Writer};
use crate::call::Position;
use crate::sync::lock;

/// The longest description of a call on the wire; longer ones are cut.
const CALL_BYTES_MAX: usize = 256;

/// How far a rank is in a communicator.
///
/// The numbers count collectives, and say who is ahead of whom; to the user they are given from 1
/// on, without those by which the library prepares a communicator. A small call that has only just
/// begun may not count yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Collectives that are done on this rank.
    pub finished: u64,
    /// Collectives that it has begun.
    pub begun: u64,
    /// What it has been waiting in for a while, and for whom, in words; empty if it waits in
    /// nothing.
    pub call: String,
}

impl Wire for Standing {
    fn write(&self, to: &mut Writer) {
        self.finished.write(to);
        self.begun.write(to);
        to.text(&self.call, CALL_BYTES_MAX);
    }

    fn read(from: &mut Reader<'_>) -> Option<Standing> {
        Some(Standing {
            finished: Wire::read(from)?,
            begun: Wire::read(from)?,
            call: from.text(CALL_BYTES_MAX)?,
        })
    }
}

/// Where a rank notes how far it is: written by the thread that drives its calls, read by any
/// other.
#[derive(Debug, Default)]
pub struct Progress {
    finished: AtomicU64,
    begun: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// What is waited in; empty where nothing is.
#[derive(Debug, Default)]
struct Waiting {
    position: Option<Position>,
    text: String,
}

impl Progress {
    /// So many collectives are done, and so many begun.
    pub fn note(&self, finished: u64, begun: u64) {
        self.begun.store(begun, Ordering::Relaxed);
        // Pairs with the load in `standing`, so that no reader sees more done than begun.
        self.finished.store(finished, Ordering::Release);
    }

    /// What is waited in, also in words.
    pub fn describe(&self, position: Position, text: String) {
        let position = Some(position);
        *lock(&self.waiting) = Waiting { position, text };
    }

    /// Nothing is waited in any more.
    pub fn clear(&self) {
        *lock(&self.waiting) = Waiting::default();
    }

    /// What is waited in.
    pub fn position(&self) -> Option<Position> {
        lock(&self.waiting).position
    }

    /// All of it.
    pub fn standing(&self) -> Standing {
        // Pairs with the store in `note`.
        let finished = self.finished.load(Ordering::Acquire);
        Standing {
            finished,
            begun: self.begun(),
            call: lock(&self.waiting).text.clone(),
        }
    }

    /// Collectives that are begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }
}
