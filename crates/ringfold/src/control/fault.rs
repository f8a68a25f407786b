//! The wire form of a fatal error: the same class everywhere, with world ranks.

use super::wire::{Wire, WireReader, WireWriter, wire_struct};
use crate::error::Error;

/// The classes of fatal errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Class {
    /// `Error::PeerFailed`.
    PeerFailed = 1,
    /// `Error::Timeout`.
    Timeout = 2,
    /// `Error::Mismatch`.
    Mismatch = 3,
    /// `Error::Corrupt`.
    Corrupt = 4,
    /// `Error::Aborted`.
    Aborted = 5,
}

impl Wire for Class {
    fn write(&self, to: &mut WireWriter) {
        to.u32(*self as u32);
    }

    fn read(from: &mut WireReader<'_>) -> Option<Class> {
        use Class::*;
        let number = from.u32()?;
        let mut all = [PeerFailed, Timeout, Mismatch, Corrupt, Aborted].into_iter();
        all.find(|class| *class as u32 == number)
    }
}

/// A fatal error without its site, which is each rank's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Class of the error.
    pub class: Class,
    /// World ranks that the error is about.
    pub ranks: Vec<u32>,
    /// Text of the error; for a mismatch, two lines: the call of each of the two ranks.
    pub text: String,
    /// For a timeout, the time waited, in milliseconds.
    pub after_ms: u64,
}

wire_struct!(Fault {
    class,
    after_ms,
    ranks,
    text
});

impl Fault {
    /// Creates the fault of a timeout while waiting for `ranks`.
    pub fn timeout(ranks: Vec<u32>) -> Fault {
        Fault {
            class: Class::Timeout,
            ranks,
            text: String::new(),
            after_ms: 0,
        }
    }

    /// Creates the fault of a rank that has died.
    pub fn peer_failed(rank: u32, reason: impl Into<String>) -> Fault {
        Fault {
            class: Class::PeerFailed,
            ranks: vec![rank],
            text: reason.into(),
            after_ms: 0,
        }
    }

    /// Converts `error` of `members[me]`. An error that is not fatal in itself becomes an abort by
    /// that rank.
    pub fn from_error(error: &Error, members: &[u32], me: usize) -> Fault {
        let world = |rank: usize| members.get(rank).copied().unwrap_or(members[me]);
        let fault = |class, rank, text: &str| Fault {
            class,
            ranks: vec![world(rank)],
            text: text.into(),
            after_ms: 0,
        };
        match error {
            Error::PeerFailed { rank, reason, .. } => fault(Class::PeerFailed, *rank, reason),
            Error::Timeout {
                waiting_for,
                after_ms,
                ..
            } => Fault {
                class: Class::Timeout,
                ranks: waiting_for.iter().map(|rank| world(*rank)).collect(),
                text: String::new(),
                after_ms: *after_ms,
            },
            Error::Mismatch { ranks, calls, .. } => Fault {
                class: Class::Mismatch,
                ranks: ranks.map(world).to_vec(),
                text: calls.join("\n"),
                after_ms: 0,
            },
            Error::Corrupt { peer, what, .. } => fault(Class::Corrupt, *peer, what),
            Error::Aborted { rank, reason } => fault(Class::Aborted, *rank, reason),
            other => fault(Class::Aborted, me, &other.to_string()),
        }
    }

    /// Returns the error for a communicator of `members`: ranks are positions in `members`.
    pub fn to_error(&self, members: &[u32]) -> Error {
        let ranks: Vec<usize> = self
            .ranks
            .iter()
            .filter_map(|rank| members.iter().position(|member| member == rank))
            .collect();
        let first = ranks.first().copied().unwrap_or(0);
        let text = self.text.clone();
        match self.class {
            Class::PeerFailed => Error::peer_failed(first, text),
            Class::Timeout => Error::Timeout {
                waiting_for: ranks,
                after_ms: self.after_ms,
                site: None,
            },
            Class::Mismatch => {
                let (one, other) = text.split_once('\n').unwrap_or((&text, "another call"));
                Error::Mismatch {
                    ranks: [first, ranks.get(1).copied().unwrap_or(first)],
                    calls: Box::new([one.into(), other.into()]),
                    site: None,
                }
            }
            Class::Corrupt => Error::corrupt(first, text),
            Class::Aborted => Error::Aborted {
                rank: first,
                reason: text,
            },
        }
    }
}
