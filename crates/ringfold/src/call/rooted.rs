//! Digests of the collectives with a root that a rank has begun.
//!
//! During a collective with a root a rank may hear from no other rank, and may finish while another
//! rank waits in a collective with another root. The digest of all such calls so far is the same on
//! all ranks that made the same calls. A call's [qualifier](super::Qualifier::After) has the
//! present digest. The digests of the last few calls show where two ranks that wait in different
//! calls parted.

#![forbid(unsafe_code)]

use super::{Call, PREPARED, Qualifier};

/// Number of collectives with a root whose digests are kept. Ranks that are further apart are not
/// compared.
const KEPT: usize = 16;

/// The collectives with a root that a rank has begun so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rooted {
    /// Digest after the last collective with a root; 0 before the first.
    digest: u32,
    /// Index of the oldest mark.
    oldest: u8,
    marks: [SequenceDigest; KEPT],
}

/// The digest after the call number `sequence`; both are 0 before any call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceDigest {
    pub sequence: u64,
    pub digest: u32,
}

impl Rooted {
    /// Adds `call`, the next call, if it has a root; otherwise qualifies it with the digest so far.
    #[inline]
    pub fn qualify(&mut self, call: &mut Call) {
        match call.qualifier {
            Qualifier::Root(_) => self.add(call),
            stated @ (Qualifier::None | Qualifier::After(_)) => {
                let after = Qualifier::after(self.digest);
                // Calls repeat, so the qualifier is usually right already.
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
        self.marks[usize::from(self.oldest)] = SequenceDigest {
            sequence: call.sequence,
            digest: self.digest,
        };
        self.oldest = (self.oldest + 1) % KEPT as u8;
    }

    /// Returns the digest of all collectives with a root so far.
    pub fn digest(&self) -> u32 {
        self.digest
    }

    /// Returns the last marks, in any order.
    pub fn marks(&self) -> RootedCalls {
        RootedCalls(self.marks)
    }
}

/// The last collectives with a root that a rank has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootedCalls(pub [SequenceDigest; KEPT]);

impl RootedCalls {
    /// Returns the digest after all calls up to `sequence`, if it is still known.
    fn at(&self, sequence: u64) -> Option<u32> {
        let until = self.0.iter().filter(|mark| mark.sequence <= sequence);
        until
            .max_by_key(|mark| mark.sequence)
            .map(|mark| mark.digest)
    }
}

/// A rank's position: the call in which the rank waits, and its last collectives with a root. These
/// collectives may be later than the call if the rank has already submitted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPosition {
    pub call: Call,
    pub rooted: RootedCalls,
}

impl CallPosition {
    /// Whether the calls with a root that both ranks have begun are known to differ.
    pub fn parted_before(&self, other: &CallPosition) -> bool {
        let sequences = [self, other].map(|position| position.call.sequence);
        let [is_mine_preparing, is_theirs] = sequences.map(|sequence| sequence < PREPARED);
        let both = sequences[0].min(sequences[1]);
        match (self.rooted.at(both), other.rooted.at(both)) {
            // The library's preparing calls are forgotten when the user's calls begin.
            _ if is_mine_preparing != is_theirs => false,
            (Some(mine), Some(theirs)) => mine != theirs,
            _ => false,
        }
    }
}
