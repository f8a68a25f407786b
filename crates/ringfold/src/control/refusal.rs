//! Refusals of a connection: their number on the wire, and their text for users.

use std::fmt;

use super::wire::VERSION;

/// Reason to refuse a connection. Its [`number`](Refusal::number) is on the wire and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The other end does not speak this protocol.
    Nonsense,
    /// The other end speaks this version, which is not [`VERSION`].
    Version(u16),
    /// The connection is for another purpose.
    Purpose,
    /// The secrets differ.
    Secret,
    /// The rank does not exist, or does not belong here.
    Rank,
    /// The rank is connected already.
    Duplicate,
    /// The world sizes differ.
    WorldSize {
        /// World size of the refused rank.
        claimed: u32,
        /// World size of the acceptor.
        expected: u32,
    },
    /// The communicators differ.
    Communicator,
    /// The acceptor's process has no descriptors left.
    Descriptors,
    /// Rank 0 has stopped waiting for ranks to join.
    GivenUp,
    /// Rank 0's process has ended.
    Ended,
}

impl Refusal {
    /// Refusals that one byte describes completely. A version is in the greeting itself, and a
    /// world size follows the byte.
    const PLAIN: [Refusal; 9] = [
        Refusal::Nonsense,
        Refusal::Purpose,
        Refusal::Secret,
        Refusal::Rank,
        Refusal::Duplicate,
        Refusal::Communicator,
        Refusal::Descriptors,
        Refusal::GivenUp,
        Refusal::Ended,
    ];

    /// Returns the number on the wire.
    pub fn number(self) -> u8 {
        match self {
            Refusal::Nonsense => 1,
            Refusal::Version(_) => 2,
            Refusal::Purpose => 3,
            Refusal::Secret => 4,
            Refusal::Rank => 5,
            Refusal::Duplicate => 6,
            Refusal::WorldSize { .. } => 7,
            Refusal::Communicator => 8,
            Refusal::Descriptors => 9,
            Refusal::GivenUp => 10,
            Refusal::Ended => 11,
        }
    }

    /// Decodes the refusal of a peer of this version, to which this rank has `claimed` a world
    /// size. A peer of another version has been detected before.
    pub(super) fn from_wire(number: u8, claimed: u32, expected: u32) -> Refusal {
        if number == (Refusal::WorldSize { claimed, expected }).number() {
            return Refusal::WorldSize { claimed, expected };
        }
        let mut plain = Refusal::PLAIN.into_iter();
        let known = plain.find(|refusal| refusal.number() == number);
        known.unwrap_or(Refusal::Nonsense)
    }

    /// Whether another attempt cannot help.
    pub fn is_final(self) -> bool {
        self != Refusal::Nonsense
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Nonsense => "the other end does not speak ringfold's protocol",
            Refusal::Version(theirs) => {
                return write!(
                    f,
                    "the other end speaks version {theirs} of ringfold's wire format, and this end \
                     version {VERSION}; install the same release of ringfold for all ranks"
                );
            }
            Refusal::Purpose => {
                "the connection reached a listener for something else; check the address"
            }
            Refusal::Secret => {
                "the secrets differ; set RINGFOLD_SECRET or RINGFOLD_SECRET_FILE to the same \
                 content on all ranks"
            }
            Refusal::Rank => "the rank does not belong there; check the ranks",
            Refusal::Duplicate => {
                "this rank is already connected; assign a different rank to every process"
            }
            Refusal::WorldSize { claimed, expected } => {
                return write!(
                    f,
                    "the world sizes differ: {claimed} on the refused rank, {expected} on rank 0; \
                     set the same on all ranks"
                );
            }
            Refusal::Communicator => {
                "the connection is for another communicator or job; check the address"
            }
            Refusal::Descriptors => {
                "the process there has no descriptors left for a connection; raise its limit \
                 (ulimit -n)"
            }
            Refusal::GivenUp => "rank 0 stopped waiting for ranks to join; see rank 0's error",
            Refusal::Ended => "rank 0's process has ended before it joined",
        })
    }
}
