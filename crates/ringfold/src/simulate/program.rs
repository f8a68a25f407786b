//! What a rank's device does for a call: the steps of its lane, and what each moves.
//!
//! * The host handles slices, or devices only move them: a slice is brought and taken, with a call
//!   of the host's between.
//! * Devices combine: so is each half of a slice, and the kernel comes before the second is
//!   brought.
//! * One kernel does it: it stores its row, and reads those of its peers behind their flags.
//!
//! The cuts, halves and orders are the product's.

use crate::communicator::Request;
use crate::lane::cut::{Cut, Part};
use crate::lane::fold::shares::Shares;
use crate::lane::program::{Half, Halves, Step, steps};
use crate::lane::staging::Bank;

/// Calls of the driver in a step beside its copies: a wait and a write.
const CALLS_BESIDE_COPIES: u64 = 2;

/// What the halves of a slice have more that devices combine: an event behind the first when it is
/// taken; before the second is brought two events, two copies on the device and the kernel; and an
/// event before it is taken.
const CALLS_SCATTERED: u64 = 1;
const CALLS_FOLDED: u64 = 5;
const CALLS_GATHERED: u64 = 1;

/// The program of one rank.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// The host handles slices, or devices only move them.
    Cut(Box<Cut>),
    /// Devices combine.
    Folded(Folded),
    /// One kernel does it.
    OneShot {
        /// The vector.
        bytes: u64,
        ranks: usize,
    },
}

/// A call that devices combine, on one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folded {
    pub shares: Shares,
    pub halves: Halves,
    pub bank: Bank,
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
    /// Its numbers: those of slices, or of their halves.
    pub fn places(&self) -> u32 {
        match self {
            Program::Cut(cut) => cut.slices(),
            Program::Folded(folded) => folded.halves.count(),
            Program::OneShot { .. } => 1,
        }
    }

    /// The calls of the host that it waits for.
    pub fn host_calls(&self) -> u32 {
        match self {
            Program::OneShot { .. } => 0,
            _ => self.places(),
        }
    }

    /// The place that must have been taken before the half at `place` is brought.
    pub fn needed(&self, place: u32) -> Option<u32> {
        match self {
            Program::Folded(folded) => folded.halves.needed(place),
            Program::Cut(_) | Program::OneShot { .. } => None,
        }
    }

    /// Its steps, in the order in which they are enqueued.
    pub fn steps(&self, depth: u32) -> Vec<Step> {
        steps(self.places(), depth, |place| self.needed(place)).collect()
    }

    /// What `step` moves.
    pub fn moved(&self, step: Step) -> Moved {
        let lengths =
            |parts: Vec<Part>| Moved::of(parts.into_iter().map(|part| part.of_buffer.len()));
        match (self, step) {
            (Program::Cut(cut), Step::Bring(slice)) => lengths(cut.brought(slice)),
            (Program::Cut(cut), Step::Take(slice)) if cut.bank() == Bank::Direct => {
                let fetched = cut.fetched(slice).into_iter();
                Moved::of(fetched.map(|from| from.part.of_buffer.len()))
            }
            (Program::Cut(cut), Step::Take(slice)) => lengths(cut.taken(slice)),
            (Program::Folded(folded), Step::Bring(place)) => folded.brought(place),
            (Program::Folded(folded), Step::Take(place)) => folded.taken(place),
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

    /// Calls of the driver for `step`.
    pub fn calls(&self, step: Step) -> u64 {
        let more = match (self, step) {
            // The launch, which is both steps.
            (Program::OneShot { .. }, Step::Bring(_)) => return 1,
            (Program::OneShot { .. }, Step::Take(_)) => return 0,
            (Program::Cut(_), _) => 0,
            (Program::Folded(folded), step) => folded.further_calls(step),
        };
        CALLS_BESIDE_COPIES + self.moved(step).copies + more
    }

    /// The bytes that a kernel reads and writes before `step`, which brings what it combines; none
    /// where it combines nothing.
    pub fn combined_bytes(&self, step: Step) -> u64 {
        let (Program::Folded(folded), Step::Bring(place)) = (self, step) else {
            return 0;
        };
        match folded.halves.at(place) {
            Half::Gather(slice) if !folded.shares.own(slice).is_empty() => {
                let rows = folded.shares.world_size + 1;
                (rows * folded.shares.block_bytes(slice)) as u64
            }
            _ => 0,
        }
    }
}

impl Folded {
    /// The call that `shares` cuts, through so many slots of `bank`.
    pub fn new(shares: Shares, depth: u32, bank: Bank) -> Folded {
        let halves = Halves::new(shares.slices(), depth);
        Folded {
            shares,
            halves,
            bank,
        }
    }

    fn brought(&self, place: u32) -> Moved {
        match self.halves.at(place) {
            Half::Scatter(slice) => Moved::of(self.shares.foreign(slice).map(|range| range.len())),
            Half::Gather(slice) => Moved::of([self.shares.own(slice).len()].into_iter()),
        }
    }

    fn taken(&self, place: u32) -> Moved {
        let shares = &self.shares;
        let others = || (0..shares.world_size).filter(|rank| *rank != shares.rank);
        match (self.bank, self.halves.at(place)) {
            (_, Half::Scatter(slice)) if shares.own(slice).is_empty() => Moved::default(),
            (Bank::Host, Half::Scatter(slice)) => {
                let block = shares.block_bytes(slice);
                let (before, behind) = (shares.rank, shares.world_size - 1 - shares.rank);
                Moved::of([before * block, behind * block].into_iter())
            }
            (Bank::Host, Half::Gather(slice)) => {
                Moved::of(shares.foreign(slice).map(|range| range.len()))
            }
            (Bank::Direct, Half::Scatter(slice)) => {
                Moved::of(others().map(|_| shares.own(slice).len()))
            }
            (Bank::Direct, Half::Gather(slice)) => {
                Moved::of(others().map(|rank| shares.of_rank(rank).own(slice).len()))
            }
        }
    }

    fn further_calls(&self, step: Step) -> u64 {
        let (Step::Bring(place) | Step::Take(place)) = step;
        match (self.halves.at(place), step) {
            (Half::Scatter(_), Step::Bring(_)) => 0,
            (Half::Scatter(_), Step::Take(_)) => CALLS_SCATTERED,
            (Half::Gather(_), Step::Bring(_)) => CALLS_FOLDED,
            (Half::Gather(_), Step::Take(_)) => CALLS_GATHERED,
        }
    }

    /// The call of the host for the half at `place` of `request`, without memory, and the bytes of
    /// its input and output.
    pub fn of_half(&self, request: &Request, place: u32) -> (Request, [usize; 2]) {
        self.shares.of_half(self.halves.at(place), request)
    }
}
