//! How long this rank has waited in a call, and when it is to look for what is wrong.

use crate::call::Call;
use crate::control::claims::CLAIM_AFTER;
use crate::transport::Time;

/// A call that is waited in, and since when.
pub struct Waiting {
    sequence: u64,
    /// When it began, or the last look.
    since: Time,
    has_looked: bool,
}

/// A look at what other ranks may be doing instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The first one of this call.
    First,
    /// A later one.
    Again,
}

impl Waiting {
    /// It has just begun.
    pub fn new(call: &Call, now: Time) -> Waiting {
        Waiting {
            sequence: call.sequence,
            since: now,
            has_looked: false,
        }
    }

    /// The look that is due of a rank that waits `now` in `call`: one after a while, and again
    /// after each such while.
    pub fn look(&mut self, call: &Call, now: Time) -> Option<Look> {
        if self.sequence != call.sequence {
            *self = Waiting::new(call, now);
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
