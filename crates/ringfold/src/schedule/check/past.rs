//! The past of a point in a rank's execution.

#![forbid(unsafe_code)]

use std::rc::Rc;

/// The steps of all ranks before a point, as far as the proof needs them. Messages and publications
/// carry their sender's past; a rank that has waited for them joins it to its own.
#[derive(Clone, Default)]
pub(super) struct Past {
    /// Length of the longest chain of dependent messages and publications.
    pub hops: u32,
    /// A vector clock (Fidge, 1988; Mattern, 1989). By rank: the last known of its intervals,
    /// counted from 1; for the rank itself, the current one. A publication ends an interval. A
    /// message does not, since no memory is exposed beside messages. Empty if the proof needs no
    /// clock.
    pub clock: Rc<[u32]>,
}

impl Past {
    /// Creates the past of the start of `rank`, with a clock of `ranks` ranks.
    pub fn new(rank: u32, ranks: u32) -> Past {
        let clock = (0..ranks).map(|other| u32::from(other == rank));
        Past {
            hops: 0,
            clock: clock.collect(),
        }
    }

    /// Joins another past to this one.
    pub fn join(&mut self, other: &Past) {
        self.hops = self.hops.max(other.hops);
        if self.clock != other.clock {
            let clock = Rc::make_mut(&mut self.clock);
            for (own, other) in clock.iter_mut().zip(&*other.clock) {
                *own = (*own).max(*other);
            }
        }
    }

    /// Returns the past as a peer receives it: with one more hop.
    pub fn passed_on(&self) -> Past {
        Past {
            hops: self.hops + 1,
            clock: self.clock.clone(),
        }
    }

    /// Starts the next interval of `rank`, which has this past.
    pub fn tick(&mut self, rank: u32) {
        if let Some(own) = Rc::make_mut(&mut self.clock).get_mut(rank as usize) {
            *own += 1;
        }
    }
}
