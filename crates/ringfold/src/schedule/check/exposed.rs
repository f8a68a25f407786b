//! Which rank may access the memory that ranks expose to each other, and when: the proof that there
//! are no races.
//!
//! Each rank has a vector clock (Fidge, 1988; Mattern, 1989): its knowledge of the others'
//! progress. A publication ends an interval of its rank, and a rank that waits for it gets the
//! publisher's knowledge. Two accesses to one chunk, of which one writes, must be ordered; so must
//! be the last access by a peer and the owner's end. And no rank begins before it has seen all
//! exposures, because only then does it know that all ranks agree on this mode.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::proof::Violation;
use super::rank::At;

/// The time of an access to a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// In an interval of a rank between two of its publications.
    Of { rank: u32, interval: u32 },
    /// While the blocks of this slice were served.
    Served { slice: u32 },
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Of { rank, .. } => write!(f, "rank {rank}"),
            Moment::Served { .. } => f.write_str("a serving rank"),
        }
    }
}

/// The accesses to a chunk, as far as they matter for later ones.
#[derive(Default)]
struct Touches {
    written: Option<Moment>,
    read: Vec<Moment>,
}

/// The accessor of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Toucher {
    /// The rank itself that says so.
    Itself,
    /// Any rank, once this rank has offered itself: at any time until all have seen that the blocks
    /// are complete.
    Anybody,
}

/// A chunk of a rank's memory in a slice; the index is that rank's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub owner: u32,
    pub slice: u32,
    pub index: usize,
}

/// The clocks of all ranks and the touches of all exposed memory.
#[derive(Default)]
pub(super) struct Exposure {
    /// By rank: the interval of every rank that it knows to be over, its own current one at its own
    /// place.
    clocks: Vec<Vec<u32>>,
    /// What each publication passes on, by rank, slice and phase.
    passed_on: HashMap<(u32, u32), BTreeMap<u8, Vec<u32>>>,
    /// In which phase a rank exposed its memory, by rank and slice.
    exposed: HashMap<(u32, u32), u8>,
    touches: HashMap<Cell, Touches>,
    /// Which ranks have heard of which slice that its blocks are served.
    heard_served: HashSet<(u32, u32)>,
}

impl Exposure {
    /// The exposure of this many ranks; none if no schedule exposes memory.
    pub fn new(ranks: usize) -> Exposure {
        let clock = |own: usize| {
            let mut clock = vec![0; ranks];
            clock[own] = 1;
            clock
        };
        Exposure {
            clocks: (0..ranks).map(clock).collect(),
            ..Exposure::default()
        }
    }

    /// Whether anything is watched at all.
    pub fn is_watched(&self) -> bool {
        !self.clocks.is_empty()
    }

    /// A rank publishes `phase`.
    pub fn publish(&mut self, at: At, phase: u8) {
        if !self.is_watched() {
            return;
        }
        let clock = &mut self.clocks[at.rank as usize];
        let phases = self.passed_on.entry((at.rank, at.slice)).or_default();
        phases.insert(phase, clock.clone());
        clock[at.rank as usize] += 1;
    }

    /// A rank exposes its memory; `publish` follows.
    pub fn expose(&mut self, at: At, phase: u8) {
        self.exposed.insert((at.rank, at.slice), phase);
    }

    /// A rank has awaited `phase` of `peer`, or a later one.
    pub fn hear(&mut self, at: At, peer: u32, phase: u8) {
        let phases = self.passed_on.get(&(peer, at.slice));
        let Some((_, passed_on)) = phases.and_then(|phases| phases.range(phase..).next()) else {
            return;
        };
        for (known, new) in self.clocks[at.rank as usize].iter_mut().zip(passed_on) {
            *known = (*known).max(*new);
        }
    }

    /// Whether `owner` has exposed its memory, and `at`'s rank has waited for that: all phases up
    /// to `awaited`, minus 1.
    pub fn is_heard(&self, at: At, owner: u32, awaited: u16) -> bool {
        let exposed = self.exposed.get(&(owner, at.slice));
        exposed.is_some_and(|phase| awaited > u16::from(*phase))
    }

    /// A rank has heard that all blocks of its slice are served.
    pub fn hear_served(&mut self, at: At) {
        self.heard_served.insert((at.rank, at.slice));
    }

    /// Whether `rank` knows that what happened at `moment` is over.
    fn is_known(&self, rank: u32, moment: &Moment) -> bool {
        match *moment {
            Moment::Of { rank: by, interval } => {
                by == rank || self.clocks[rank as usize][by as usize] >= interval
            }
            Moment::Served { slice } => self.heard_served.contains(&(rank, slice)),
        }
    }

    /// A rank touches a chunk, or may do so from now on.
    pub fn touch(
        &mut self,
        at: At,
        by: Toucher,
        cell: Cell,
        writes: bool,
    ) -> Result<(), Violation> {
        if !self.is_watched() {
            return Ok(());
        }
        let now = match by {
            Toucher::Itself => Moment::Of {
                rank: at.rank,
                interval: self.clocks[at.rank as usize][at.rank as usize],
            },
            Toucher::Anybody => Moment::Served { slice: at.slice },
        };
        let mut touches = self.touches.remove(&cell).unwrap_or_default();
        let mut earlier = touches.written.iter().chain(&touches.read);
        let is_unknown = |moment: &&Moment| **moment != now && !self.is_known(at.rank, moment);
        let conflict = if writes {
            earlier.find(is_unknown)
        } else {
            touches.written.iter().find(is_unknown)
        };
        if let Some(other) = conflict {
            return Err(at.violation(format!(
                "touches memory of rank {} at the same time as {other} does",
                cell.owner
            )));
        }
        if writes {
            touches.written = Some(now);
            touches.read.clear();
        } else {
            touches.read.push(now);
        }
        self.touches.insert(cell, touches);
        Ok(())
    }

    /// Whether every owner knows at its end that its peers are done with its memory.
    pub fn check_ended(&self) -> Result<(), Violation> {
        for (cell, touches) in &self.touches {
            let mut all = touches.written.iter().chain(&touches.read);
            let late = all.find(|moment| !self.is_known(cell.owner, moment));
            if let Some(late) = late {
                return Err(Violation::of_all(format!(
                    "rank {} may return while {late} still works in its memory",
                    cell.owner
                )));
            }
        }
        Ok(())
    }
}
