//! The collectives with a root that a rank has begun, as digests.
//!
//! In a collective with a root a rank may hear of no other one, and may be through with it while
//! another rank waits in one of another root. Digests of all such calls until now are the same on
//! all ranks that made the same calls. That of the present call is in its
//! [qualifier](super::Qualifier::After); those of the last few calls show where two ranks that
//! wait in different calls parted.

#![forbid(unsafe_code)]

use super::{Call, PREPARED, Qualifier};

/// Collectives with a root of which the digest is kept. A rank that is ahead of another by more of
/// them is not compared with it.
const KEPT: usize = 16;

/// What a rank has begun, up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rooted {
    /// After the last one; 0 before any.
    digest: u32,
    /// The place of the oldest mark.
    oldest: u8,
    marks: [Mark; KEPT],
}

/// The digest after the call of a number; at first after none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub sequence: u64,
    pub digest: u32,
}

impl Rooted {
    /// Has `call`, the next one, say which came before it, if it has no root; or adds it.
    #[inline]
    pub fn qualify(&mut self, call: &mut Call) {
        match call.qualifier {
            Qualifier::Root(_) => self.add(call),
            stated @ (Qualifier::None | Qualifier::After(_)) => {
                let after = Qualifier::after(self.digest);
                // Calls repeat: mostly it says so already.
                if stated != after {
                    call.qualifier = after;
                }
            }
            _ => {}
        }
    }

    #[inline(never)]
    fn add(&mut self, call: &Call) {
        self.digest = call.digest_after(self.digest);
        self.marks[usize::from(self.oldest)] = Mark {
            sequence: call.sequence,
            digest: self.digest,
        };
        self.oldest = (self.oldest + 1) % KEPT as u8;
    }

    /// The digest of all until now.
    pub fn digest(&self) -> u32 {
        self.digest
    }

    /// The last ones, in any order.
    pub fn marks(&self) -> Marks {
        Marks(self.marks)
    }
}

/// The last collectives with a root that a rank has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks(pub [Mark; KEPT]);

impl Marks {
    /// The digest after all up to the call `sequence`, if it is still known.
    fn at(&self, sequence: u64) -> Option<u32> {
        let until = self.0.iter().filter(|mark| mark.sequence <= sequence);
        until
            .max_by_key(|mark| mark.sequence)
            .map(|mark| mark.digest)
    }
}

/// Where a rank is: the call that it waits in, and the last collectives with a root up to it or
/// later ones, which it has submitted already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub call: Call,
    pub rooted: Marks,
}

impl Position {
    /// Whether the calls with a root that both ranks have begun are known to differ.
    pub fn parted_before(&self, other: &Position) -> bool {
        let sequences = [self, other].map(|position| position.call.sequence);
        let [is_mine_preparing, is_theirs] = sequences.map(|sequence| sequence < PREPARED);
        let both = sequences[0].min(sequences[1]);
        match (self.rooted.at(both), other.rooted.at(both)) {
            // The calls that prepare a communicator are forgotten when its user's begin.
            _ if is_mine_preparing != is_theirs => false,
            (Some(mine), Some(theirs)) => mine != theirs,
            _ => false,
        }
    }
}
