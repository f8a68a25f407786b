//! The time that this rank has waited in a call, and when to look for the cause.

use crate::call::Call;
use crate::control::claims::CLAIM_AFTER;
use crate::transport::Time;

/// A call in which this rank waits, and since when.
pub struct CallWait {
    sequence: u64,
    /// Start of the wait, or time of the last look.
    since: Time,
    has_looked: bool,
}

/// A look at the calls in which other ranks may be instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The first look in this call.
    First,
    /// A later look.
    Again,
}

impl CallWait {
    /// Returns a wait in `call` that begins at `now`.
    pub fn new(call: &Call, now: Time) -> CallWait {
        CallWait {
            sequence: call.sequence,
            since: now,
            has_looked: false,
        }
    }

    /// Returns the look that is due, if any, for a rank that at `now` waits in `call`: one after
    /// [`CLAIM_AFTER`], and another after each further [`CLAIM_AFTER`].
    pub fn look(&mut self, call: &Call, now: Time) -> Option<Look> {
        if self.sequence != call.sequence {
            *self = CallWait::new(call, now);
        }
        if now.since(self.since) < CLAIM_AFTER {
            return None;
        }
        self.since = now;
        Some(match std::mem::replace(&mut self.has_looked, true) {
            false => Look::First,
            true => Look::Again,
        })
    }
}
