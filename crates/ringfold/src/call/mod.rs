//! The description of a rank's call, by which its peers tell whether they are in the same call.
//!
//! A [`Call`] is in every message header and on every published slot. Two ranks whose calls differ
//! never combine their data: the receiver reports `Error::Mismatch` with both.

mod qualifier;
mod rooted;
mod way;

use std::fmt;

pub use qualifier::{EARLIER, Qualifier};
pub use rooted::{CallPosition, Rooted, RootedCalls, SequenceDigest};
pub use way::Way;

use qualifier::KIND_BITS;

use crate::types::{Access, Algorithm, Assignment, Collective, DType, Method, Op, Protocol};

/// A rank's description of its call. 24 bytes on the wire, little endian:
///
/// ```text
/// 0 collective  1 dtype  2 op: 4 bits, kind of qualifier: 3 bits, has lists: 1 bit
/// 3 algorithm: 4 bits, assignment: 1 bit, access: 2 bits, inline payload (`ll`): 1 bit
/// 4 qualifier: u32  8 count: u64; with lists 40 bits, lists: 24 bits  16 sequence: 40 bits
/// 21 reserved for an epoch of the members: 0  22 cut: u16
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The collective.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DType,
    /// The operation's wire number; 0 if the collective does not reduce.
    pub op: u8,
    /// The order in which ranks exchange and combine data. The library chooses it, and it must be
    /// the same on all ranks.
    pub algorithm: Algorithm,
    /// How a rank reaches its peers' data: also chosen.
    pub access: Access,
    /// Which rank does which part: also chosen.
    pub assignment: Assignment,
    /// Whether the payload travels in the line that announces it (`ll`): also chosen.
    pub is_inline: bool,
    /// The root, the tag, or another distinction from calls of the same collective.
    pub qualifier: Qualifier,
    /// Number of elements as the collective counts them (see its documentation). If each rank has
    /// its own count, their sum, at most [`LISTED_MAX`].
    pub count: u64,
    /// A [digest](list_digest) of the list if each rank has its own count, or of the counts of the
    /// longer call if this call is a slice for devices, or [`PAIRWISE`]; else 0.
    pub lists: u32,
    /// The call's number on this communicator, counted from [`PREPARED`]. For a send, the number
    /// among the sender's messages to the peer; for a receive, which no peer ever sees, the number
    /// among this rank's receives. Only the lowest 40 bits are on the wire.
    pub sequence: u64,
    /// The number of channels, the slice size and the demand on the order, see [`Way::cut`]: also
    /// chosen. 0 for messages.
    pub cut: u16,
}

/// Sequence number before the user's first call: users see call numbers from 1. The library's own
/// calls, which prepare a communicator, have smaller numbers. Sequence numbers grow from call to
/// call, so they also show which rank is behind.
pub const PREPARED: u64 = 1 << 39;

/// The value of [`Call::lists`] if each pair of ranks has its own count: no rank knows all counts.
/// A message between two ranks has the pair's count and the count's digest instead.
pub const PAIRWISE: u32 = (1 << LIST_BITS) - 1;

/// The maximum count of a call with lists. The digest distinguishes larger sums.
pub const LISTED_MAX: u64 = (1 << LISTED_BITS) - 1;

/// Bits of the count of a call with lists, and of the lists' digest.
const LISTED_BITS: u32 = 64 - LIST_BITS;
const LIST_BITS: u32 = 24;

/// Fields of byte 2: the operation, and above it the qualifier's kind and the lists.
const OP_BITS: u32 = 4;
const QUALIFIER_BITS: u32 = OP_BITS;
const LISTS_BIT: u32 = QUALIFIER_BITS + KIND_BITS;

/// Number of operations.
const OPS: u8 = Op::NAMES.len() as u8;

/// Error texts for different lists.
const COUNTS_BY_RANK: &str = "the counts of the ranks differ; pass the same list on all ranks";
const COUNTS_BY_PAIR: &str = "the counts differ; a rank's input count for a peer must equal the \
        peer's output count for the rank";

/// Bytes of a call on the wire.
pub const CALL_BYTES: usize = 24;

/// Fields of byte 3, from the algorithm up.
const ALGORITHM_BITS: u32 = 4;
const ASSIGNMENT_BIT: u32 = ALGORITHM_BITS;
const ACCESS_BITS: u32 = 5;
const INLINE_BIT: u32 = 7;

/// Bits of a sequence number on the wire; no program makes more calls.
const SEQUENCE_BITS: u32 = 40;

/// Place of the cut in the last word, above the sequence number and the reserved byte.
const CUT_BIT: u32 = 48;

const _: () = assert!(PREPARED < 1 << SEQUENCE_BITS);

/// Bits of a cut that hold the slice's digest; the bits above hold the number of channels minus 1.
const SLICE_BITS: u32 = 10;

const _: () = assert!(Algorithm::ALL.len() <= 1 << ALGORITHM_BITS);

impl Call {
    /// The bits of a cut that hold the slice's digest. In reproducible calls they are inverted, so
    /// that ranks whose demands differ are in different calls.
    pub const SLICE_MASK: u16 = (1 << SLICE_BITS) - 1;

    /// Encodes the call for the wire.
    pub fn encode(&self) -> [u8; CALL_BYTES] {
        let mut bytes = [0; CALL_BYTES];
        let (places, _) = bytes.as_chunks_mut::<8>();
        for (place, word) in places.iter_mut().zip(self.words()) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// Encodes the call as three words, by shifts: bytes that are stored one by one and loaded as
    /// one word stall a processor.
    #[inline]
    pub fn words(&self) -> [u64; CALL_BYTES / 8] {
        let (qualifier, value) = self.qualifier.encode();
        let kind = self.collective as u64
            | (self.dtype as u64) << 8
            | (self.op as u64) << 16
            | (qualifier as u64) << (16 + QUALIFIER_BITS)
            | ((self.lists != 0) as u64) << (16 + LISTS_BIT)
            | (self.algorithm as u64) << 24
            | (self.assignment as u64) << (24 + ASSIGNMENT_BIT)
            | (self.access as u64) << (24 + ACCESS_BITS)
            | (self.is_inline as u64) << (24 + INLINE_BIT)
            | (value as u64) << 32;
        let sequence = self.sequence & ((1 << SEQUENCE_BITS) - 1);
        [
            kind,
            self.count | (self.lists as u64) << LISTED_BITS,
            sequence | (self.cut as u64) << CUT_BIT,
        ]
    }

    /// Returns the cut of a call: the number of channels, and a digest of the slice size. Two slice
    /// sizes have the same digest by chance, once in a thousand.
    #[inline]
    pub fn cut(channels: usize, slice_bytes: u64) -> u16 {
        let digest = slice_bytes.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLICE_BITS);
        (channels.saturating_sub(1) << SLICE_BITS) as u16 | digest as u16
    }

    /// Returns the digest of the collectives with a root up to this call; `before` is the digest of
    /// the earlier ones. Covers the part of a call that all ranks must request alike. Never 0.
    #[inline]
    pub fn digest_after(&self, before: u32) -> u32 {
        // The choices are left out: they differ if the ranks' settings do.
        const CHOICES: u64 = 0xff << 24;
        let [kind, counts, _] = self.words();
        let mixed = [u64::from(before), kind & !CHOICES, counts]
            .into_iter()
            .fold(0x9e37_79b9_7f4a_7c15, |state: u64, word| {
                let product = (state ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                product ^ (product >> 29)
            });
        (mixed >> 32) as u32 | 1
    }

    /// Returns the call's method.
    pub fn method(&self) -> Method {
        Method::new(self.algorithm, self.access, self.assignment)
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        usize::from(self.cut >> SLICE_BITS) + 1
    }

    /// Whether `other` is the same call, carried out differently: the ranks' choices differ.
    pub fn is_chosen_differently(&self, other: &Call) -> bool {
        let alike = Call {
            algorithm: self.algorithm,
            access: self.access,
            assignment: self.assignment,
            is_inline: self.is_inline,
            cut: self.cut,
            ..*other
        };
        alike == *self && other != self
    }

    /// Returns the call's number as users see it: 1 for the first call of the user.
    pub fn number(&self) -> u64 {
        self.sequence.checked_sub(PREPARED).unwrap_or(self.sequence)
    }

    /// Describes the first difference from `other`, with a hint. Returns `None` if the collectives
    /// differ, or if the calls differ only in how they are carried out.
    pub fn difference(&self, other: &Call) -> Option<&'static str> {
        if self.collective != other.collective {
            None
        } else if self.dtype != other.dtype {
            Some("the data types differ")
        } else if self.op != other.op {
            Some("the operations differ")
        } else if self.lists != other.lists {
            Some(match self.collective {
                Collective::Send | Collective::Recv => "the counts differ",
                Collective::AllToAll => COUNTS_BY_PAIR,
                _ => COUNTS_BY_RANK,
            })
        } else if self.count != other.count {
            Some("the counts differ")
        } else {
            self.qualifier.difference(other.qualifier)
        }
    }

    /// Whether the call is a message, whose sequence number concerns its two ranks alone.
    pub fn is_message(&self) -> bool {
        matches!(self.collective, Collective::Send | Collective::Recv)
    }

    /// Whether both calls have the same sequence number but request different things. The choices
    /// of how the calls are carried out are ignored.
    pub fn contradicts(&self, other: &Call) -> bool {
        let requested = |call: &Call| {
            let qualifier = match call.qualifier {
                stated @ (Qualifier::Root(_) | Qualifier::After(_) | Qualifier::Registration) => {
                    stated
                }
                _ => Qualifier::None,
            };
            (call.collective, call.dtype, call.op, qualifier)
        };
        let counted = |call: &Call| (call.count, call.lists);
        // If each pair has its own count, the counts of two ranks need not agree.
        let is_by_pair = self.lists == PAIRWISE || other.lists == PAIRWISE;
        let is_counted_alike = is_by_pair || counted(self) == counted(other);
        self.sequence == other.sequence
            && (requested(self) != requested(other) || !is_counted_alike)
    }

    /// Decodes a call; `None` if a field is invalid.
    pub fn decode(bytes: &[u8; CALL_BYTES]) -> Option<Call> {
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let has_lists = bytes[2] >> LISTS_BIT == 1;
        let op = bytes[2] & ((1 << OP_BITS) - 1);
        let qualifier = bytes[2] >> QUALIFIER_BITS & ((1 << KIND_BITS) - 1);
        let (count, lists) = match has_lists {
            true => (word(8) & LISTED_MAX, (word(8) >> LISTED_BITS) as u32),
            false => (word(8), 0),
        };
        let access = Access::from_wire(bytes[3] >> ACCESS_BITS & 3)?;
        let is_inline = bytes[3] >> INLINE_BIT == 1;
        let has_epoch = word(16) << (64 - CUT_BIT) >> (64 - CUT_BIT + SEQUENCE_BITS) != 0;
        // A call with lists has a digest, and an inline payload is never in registered buffers.
        if has_epoch
            || (has_lists && lists == 0)
            || (is_inline && matches!(access, Access::Registered | Access::Slots))
        {
            return None;
        }
        Some(Call {
            collective: Collective::from_wire(bytes[0])?,
            dtype: DType::from_wire(bytes[1])?,
            op: (op < OPS).then_some(op)?,
            algorithm: Algorithm::from_wire(bytes[3] & ((1 << ALGORITHM_BITS) - 1))?,
            access,
            assignment: Assignment::from_wire(bytes[3] >> ASSIGNMENT_BIT & 1)?,
            is_inline,
            qualifier: Qualifier::decode(qualifier, (word(0) >> 32) as u32)?,
            count,
            lists,
            sequence: word(16) & ((1 << SEQUENCE_BITS) - 1),
            cut: (word(16) >> CUT_BIT) as u16,
        })
    }
}

/// Returns a digest of a list of counts, one per rank; never 0 nor [`PAIRWISE`]. Different lists
/// have the same digest by chance, once in 16 million.
pub fn list_digest(counts: impl IntoIterator<Item = u64>) -> u32 {
    // Each step is a bijection of the state, so lists that differ in one count give different
    // states.
    let mixed = counts
        .into_iter()
        .fold(0x9e37_79b9_7f4a_7c15, |state: u64, count| {
            let product = (state ^ count).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            product ^ (product >> 29)
        });
    (mixed % u64::from(PAIRWISE - 1)) as u32 + 1
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (collective, dtype) = (self.collective, self.dtype);
        write!(f, "#{} {collective} of ", self.number())?;
        match (self.count, self.lists) {
            (_, PAIRWISE) => write!(f, "{dtype} by pair")?,
            (count, 0) => write!(f, "{count} {dtype}")?,
            (count, _) if collective == Collective::AllToAll => {
                write!(f, "{count} {dtype} between these two")?;
            }
            (count, whole) if self.is_message() => {
                write!(f, "{count} {dtype} of a message of {whole:06x}")?;
            }
            (count, lists) => write!(f, "{count} {dtype} in all, counts {lists:06x}")?,
        }
        if self.collective.reduces() {
            write!(f, " {}", Op::wire_name(self.op))?;
        }
        match self.qualifier {
            Qualifier::Tag(tag) => return write!(f, " tag {tag}"),
            Qualifier::Root(root) => write!(f, " root {root}")?,
            Qualifier::Registration => write!(f, " to register memory")?,
            _ => {}
        }
        if self.access == Access::Slots {
            return write!(f, " by devices");
        }
        write!(f, " by {}", self.method())?;
        if self.is_inline {
            write!(f, " ({})", Protocol::Ll)?;
        }
        if self.channels() > 1 {
            write!(f, " on {} channels", self.channels())?;
        }
        match self.qualifier {
            Qualifier::Weights(mark) => {
                let (epoch, digest) = (mark >> 16, mark & 0xffff);
                write!(f, " with the weights of epoch {epoch} ({digest:04x})")
            }
            Qualifier::StragglerPolicy(policy) => {
                write!(f, " around slow ranks (policy {policy:#x})")
            }
            Qualifier::LateRank(rank) => write!(f, " with rank {rank} late"),
            _ => Ok(()),
        }
    }
}
