//! What a rank's device does for a call: the steps of its lane, and what each moves.
//!
//! * The host handles slices: a slice is brought and taken, with the host's schedule between.
//! * Devices move slices through the slots of all ranks, and ranks combine them there: a barrier
//!   when all have brought theirs, and if there are sums another when all have combined.
//! * One kernel does it: it stores its row, and reads those of its peers behind their flags.
//!
//! The cuts and orders are the product's.

use crate::lane::cut::{Cut, Part, Share};
use crate::lane::program::{Step, steps};
use crate::lane::staging::Bank;
use crate::tune::devices::pipeline::{is_batched, word_calls};

/// The program of one rank.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// The host handles slices, or devices move them through slots.
    Cut(Box<Cut>),
    /// One kernel does it.
    OneShot {
        /// The vector.
        bytes: u64,
        ranks: usize,
    },
}

/// What a step moves over the device's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub bytes: u64,
    pub copies: u64,
}

impl Moved {
    fn of(bytes: impl Iterator<Item = usize>) -> Moved {
        let mut moved = Moved::default();
        for bytes in bytes.filter(|bytes| *bytes > 0) {
            moved.bytes += bytes as u64;
            moved.copies += 1;
        }
        moved
    }
}

impl Program {
    /// Its slices.
    pub fn places(&self) -> u32 {
        match self {
            Program::Cut(cut) => cut.slices(),
            Program::OneShot { .. } => 1,
        }
    }

    /// Whether devices move slices through the slots of all ranks.
    pub fn is_direct(&self) -> bool {
        matches!(self, Program::Cut(cut) if cut.bank() == Bank::Direct)
    }

    /// The calls of the host that it waits for: slices, or barriers around them.
    pub fn host_calls(&self) -> u32 {
        match self {
            Program::OneShot { .. } => 0,
            Program::Cut(_) => self.places() * self.calls_of_slice(),
        }
    }

    /// The host's calls of a slice: one more if devices take sums that other ranks combine.
    pub fn calls_of_slice(&self) -> u32 {
        let shares = |cut: &Cut| cut.bank() == Bank::Direct && cut.shares_sums();
        match self {
            Program::Cut(cut) if shares(cut) => 2,
            _ => 1,
        }
    }

    /// The share that the rank combines behind its host's call number `call`, with its slice.
    pub fn share_behind(&self, call: u32) -> Option<(u32, Share)> {
        let slice = call / self.calls_of_slice();
        match self {
            Program::Cut(cut) if cut.bank() == Bank::Direct && self.is_first(call) => {
                Some((slice, cut.share(slice)?))
            }
            _ => None,
        }
    }

    /// Whether the host's call number `call` is the first of its slice.
    fn is_first(&self, call: u32) -> bool {
        call.is_multiple_of(self.calls_of_slice())
    }

    /// Whether the host's call number `call` is the last of its slice.
    pub fn releases_behind(&self, call: u32) -> bool {
        self.is_first(call + 1)
    }

    /// Its steps, in the order in which they are enqueued.
    pub fn steps(&self, depth: u32) -> Vec<Step> {
        steps(self.places(), depth).collect()
    }

    /// What `step` moves.
    pub fn moved(&self, step: Step) -> Moved {
        let lengths =
            |parts: Vec<Part>| Moved::of(parts.into_iter().map(|part| part.of_buffer.len()));
        match (self, step) {
            (Program::Cut(cut), Step::Bring(slice)) => lengths(cut.brought(slice)),
            (Program::Cut(cut), Step::Take(slice)) if cut.bank() == Bank::Direct => {
                let fetched = cut.fetched(slice).into_iter().map(|from| from.part);
                lengths(fetched.chain(cut.taken_sum(slice)).collect())
            }
            (Program::Cut(cut), Step::Take(slice)) => lengths(cut.taken(slice)),
            (Program::OneShot { bytes, .. }, Step::Bring(_)) => Moved {
                bytes: *bytes,
                copies: 0,
            },
            (Program::OneShot { bytes, ranks }, Step::Take(_)) => Moved {
                bytes: bytes * (*ranks as u64 - 1),
                copies: 0,
            },
        }
    }

    /// Calls of the driver for `step`, among `depth` slots.
    pub fn calls(&self, step: Step, depth: u32) -> u64 {
        match (self, step) {
            // The launch, which is both steps.
            (Program::OneShot { .. }, Step::Bring(_)) => 1,
            (Program::OneShot { .. }, Step::Take(_)) => 0,
            (Program::Cut(_), Step::Bring(slice) | Step::Take(slice)) => {
                // A word that no further wait is batched with is written by itself.
                let is_last = is_batched(depth) && slice + 1 == self.places();
                let words = word_calls(depth) + u32::from(is_last);
                u64::from(words) + self.moved(step).copies
            }
        }
    }
}
