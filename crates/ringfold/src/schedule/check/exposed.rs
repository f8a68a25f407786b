//! The proof that accesses to the memory that ranks expose to each other are free of races.
//!
//! Each rank's [`Past`] has a vector clock: its knowledge of the others' progress. A publication
//! ends an interval of its rank, and a rank that waits for it gets the publisher's knowledge. Two
//! accesses to one chunk must be ordered if one of them writes; so must be the last access by a
//! peer and the owner's end. No rank begins before it has seen all exposures: only then does the
//! rank know that all ranks agree on this mode.

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::past::Past;
use super::proof::Violation;
use super::rank::At;

/// The time of an access to a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// An interval of a rank between two of its publications.
    Of { rank: u32, interval: u32 },
    /// The time in which the blocks of a slice were served.
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

/// The accesses to a chunk that matter for later ones.
#[derive(Default)]
struct ChunkAccesses {
    written: Option<Moment>,
    read: Vec<Moment>,
}

/// The accessor of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Toucher {
    /// The rank of the step.
    Itself,
    /// Any rank, from this rank's offer until all ranks have seen that the blocks are complete.
    Anybody,
}

/// A chunk of a rank's memory in a slice; the index is the owner's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub owner: u32,
    pub slice: u32,
    pub index: usize,
}

/// The accesses to all exposed memory.
#[derive(Default)]
pub(super) struct Exposure {
    /// Whether the schedules expose memory.
    pub is_watched: bool,
    /// The phase in which a rank exposed its memory, by rank and slice.
    exposed: HashMap<(u32, u32), u8>,
    touches: HashMap<Cell, ChunkAccesses>,
    /// Pairs of a rank and a slice: the rank knows that all blocks of the slice are served.
    heard_served: HashSet<(u32, u32)>,
}

impl Exposure {
    /// Creates the exposure of schedules that expose memory, or do not.
    pub fn new(is_watched: bool) -> Exposure {
        Exposure {
            is_watched,
            ..Exposure::default()
        }
    }

    /// Records that a rank exposes its memory; a call of `publish` follows.
    pub fn expose(&mut self, at: At, phase: u8) {
        self.exposed.insert((at.rank, at.slice), phase);
    }

    /// Whether `owner` has exposed its memory and `at`'s rank has awaited the exposure. `awaited`
    /// is the last phase awaited, plus 1.
    pub fn is_heard(&self, at: At, owner: u32, awaited: u16) -> bool {
        let exposed = self.exposed.get(&(owner, at.slice));
        exposed.is_some_and(|phase| awaited > u16::from(*phase))
    }

    /// Records that a rank knows that all blocks of its slice are served.
    pub fn hear_served(&mut self, at: At) {
        self.heard_served.insert((at.rank, at.slice));
    }

    /// Whether `rank`, with this past, knows that the accesses at `moment` are over.
    fn is_known(&self, rank: u32, past: &Past, moment: &Moment) -> bool {
        match *moment {
            Moment::Of { rank: by, interval } => by == rank || past.clock[by as usize] >= interval,
            Moment::Served { slice } => self.heard_served.contains(&(rank, slice)),
        }
    }

    /// Records that a rank with this past touches a chunk, or may do so from now on.
    pub fn touch(
        &mut self,
        at: At,
        past: &Past,
        by: Toucher,
        cell: Cell,
        writes: bool,
    ) -> Result<(), Violation> {
        if !self.is_watched {
            return Ok(());
        }
        let now = match by {
            Toucher::Itself => Moment::Of {
                rank: at.rank,
                interval: past.clock[at.rank as usize],
            },
            Toucher::Anybody => Moment::Served { slice: at.slice },
        };
        let mut touches = self.touches.remove(&cell).unwrap_or_default();
        let mut earlier = touches.written.iter().chain(&touches.read);
        let is_unknown =
            |moment: &&Moment| **moment != now && !self.is_known(at.rank, past, moment);
        let conflict = if writes {
            earlier.find(is_unknown)
        } else {
            touches.written.iter().find(is_unknown)
        };
        if let Some(other) = conflict {
            return Err(at.violation(format!(
                "accesses memory of rank {} concurrently with {other}",
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

    /// Checks that every owner knows at its end that its peers are done with its memory.
    pub fn check_ended(&self, past: impl Fn(u32) -> Past) -> Result<(), Violation> {
        for (cell, touches) in &self.touches {
            let (owner, past) = (cell.owner, past(cell.owner));
            let mut all = touches.written.iter().chain(&touches.read);
            let late = all.find(|moment| !self.is_known(owner, &past, moment));
            if let Some(late) = late {
                return Err(Violation::of_all(format!(
                    "rank {owner} may return while {late} still accesses its memory"
                )));
            }
        }
        Ok(())
    }
}
