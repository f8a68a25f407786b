//! The qualifier of a call, which distinguishes calls of the same collective, type and size.

#![forbid(unsafe_code)]

/// The part of a [`Call`](super::Call) besides its collective, type and counts. On the wire, a kind
/// of [`KIND_BITS`] bits and a value of 32 bits; no two qualifiers have the same encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qualifier {
    /// No qualifier.
    None,
    /// A [digest](super::Call::digest_after) of the rank's earlier collectives with a root on this
    /// communicator. A rank may hear from no peer in such a call, so a difference shows here.
    After(u32),
    /// The root of a collective that has one.
    Root(u32),
    /// The tag of a message between two ranks.
    Tag(u32),
    /// The rank known to be late, for `stragglar`.
    LateRank(u32),
    /// The mark of a call by which the library registers memory.
    Registration,
    /// The policy of a ring that bypasses slow ranks.
    StragglerPolicy(u32),
    /// The [mark](crate::schedule::Weights::mark) of the ownership weights by which the ranks'
    /// shares are cut.
    Weights(u32),
}

/// Error text for different digests of earlier calls.
pub const EARLIER: &str = "an earlier collective with a root differed";

/// Bits of the kind on the wire.
pub const KIND_BITS: u32 = 3;

impl Qualifier {
    /// Returns the qualifier of a call without its own. `digest` is that of the earlier collectives
    /// with a root; 0 for none.
    #[inline]
    pub const fn after(digest: u32) -> Qualifier {
        match digest {
            0 => Qualifier::None,
            digest => Qualifier::After(digest),
        }
    }

    /// Encodes the kind and the value; the value is 0 for a kind without one.
    #[inline]
    pub const fn encode(self) -> (u8, u32) {
        match self {
            Qualifier::None => (0, 0),
            Qualifier::After(digest) => (0, digest),
            Qualifier::Root(rank) => (1, rank),
            Qualifier::Tag(tag) => (2, tag),
            Qualifier::LateRank(rank) => (3, rank),
            Qualifier::Registration => (4, 0),
            Qualifier::StragglerPolicy(policy) => (5, policy),
            Qualifier::Weights(mark) => (6, mark),
        }
    }

    /// Decodes a peer's qualifier; `None` if the numbers are invalid.
    pub const fn decode(kind: u8, value: u32) -> Option<Qualifier> {
        Some(match (kind, value) {
            (0, digest) => Qualifier::after(digest),
            (1, rank) => Qualifier::Root(rank),
            (2, tag) => Qualifier::Tag(tag),
            (3, rank) => Qualifier::LateRank(rank),
            (4, 0) => Qualifier::Registration,
            (5, policy) => Qualifier::StragglerPolicy(policy),
            (6, mark) => Qualifier::Weights(mark),
            _ => return None,
        })
    }

    /// Describes the difference between two qualifiers, if there is one.
    pub fn difference(self, other: Qualifier) -> Option<&'static str> {
        use Qualifier::{After, LateRank, Registration, Root, StragglerPolicy, Tag, Weights};
        match (self, other) {
            _ if self == other => None,
            (Tag(_), Tag(_)) => Some("the tags differ"),
            (Root(_), Root(_)) => Some("the roots differ"),
            (LateRank(_), LateRank(_)) => Some("the ranks known to be late differ"),
            (StragglerPolicy(_), StragglerPolicy(_)) => Some("the straggler policies differ"),
            (Weights(_), Weights(_)) => Some("the ownership weights differ"),
            (Registration, _) | (_, Registration) => Some("one of them registers memory"),
            (Weights(_), _) | (_, Weights(_)) => Some("one of them has ownership weights"),
            (LateRank(_), _) | (_, LateRank(_)) => Some("one of them expects a late rank"),
            (StragglerPolicy(_), _) | (_, StragglerPolicy(_)) => {
                Some("one of them bypasses slow ranks")
            }
            (After(_), _) | (_, After(_)) => Some(EARLIER),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualifiers_survive_the_wire_and_nothing_else_is_one() {
        let mut found = 0;
        for kind in 0..1 << KIND_BITS {
            for value in [0, 1, 7, u32::MAX] {
                if let Some(qualifier) = Qualifier::decode(kind, value) {
                    assert_eq!(qualifier.encode(), (kind, value));
                    found += 1;
                }
            }
        }
        assert_eq!(found, 6 * 4 + 1);
    }

    #[test]
    fn equal_values_of_other_kinds_are_different_calls() {
        let all = [
            Qualifier::Root(5),
            Qualifier::Tag(5),
            Qualifier::LateRank(5),
            Qualifier::StragglerPolicy(5),
            Qualifier::Weights(5),
        ];
        for (index, one) in all.iter().enumerate() {
            for other in &all[..index] {
                assert_ne!(one.encode(), other.encode());
            }
        }
    }
}
