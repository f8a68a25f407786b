//! What lies behind a point of a rank's execution.

#![forbid(unsafe_code)]

use std::rc::Rc;

/// The steps of all ranks that come before a point, as far as the proof asks for them. A message
/// and a publication carry their sender's past; the rank that has waited for them adds it to its
/// own.
#[derive(Clone, Default)]
pub(super) struct Past {
    /// The longest chain of dependent messages and publications.
    pub hops: u32,
    /// A vector clock (Fidge, 1988; Mattern, 1989). By rank: the last of its intervals, counted
    /// from 1, that is known; of the rank itself, the current one. A publication ends an interval;
    /// a message does not, since no memory is exposed beside messages. Empty if nothing asks for
    /// it.
    pub clock: Rc<[u32]>,
}

impl Past {
    /// The beginning of `rank`, with a clock of `ranks` ranks.
    pub fn new(rank: u32, ranks: u32) -> Past {
        let clock = (0..ranks).map(|other| u32::from(other == rank));
        Past {
            hops: 0,
            clock: clock.collect(),
        }
    }

    /// Adds another past.
    pub fn join(&mut self, other: &Past) {
        self.hops = self.hops.max(other.hops);
        if self.clock != other.clock {
            let clock = Rc::make_mut(&mut self.clock);
            for (own, other) in clock.iter_mut().zip(&*other.clock) {
                *own = (*own).max(*other);
            }
        }
    }

    /// As a peer gets it: one hop more.
    pub fn passed_on(&self) -> Past {
        Past {
            hops: self.hops + 1,
            clock: self.clock.clone(),
        }
    }

    /// Begins the next interval of `rank`, whose past this is.
    pub fn tick(&mut self, rank: u32) {
        if let Some(own) = Rc::make_mut(&mut self.clock).get_mut(rank as usize) {
            *own += 1;
        }
    }
}
