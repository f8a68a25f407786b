//! How long this rank has waited in a call, and whether it has claimed its place in it.

use crate::call::Call;
use crate::control::claims::CLAIM_AFTER;
use crate::transport::Time;

/// A call that is waited in, and since when.
pub struct Waiting {
    sequence: u64,
    since: Time,
    is_claimed: bool,
}

impl Waiting {
    /// It has just begun.
    pub fn new(call: &Call, now: Time) -> Waiting {
        Waiting {
            sequence: call.sequence,
            since: now,
            is_claimed: false,
        }
    }

    /// Whether it is time to tell the others of `call`, in which this rank waits `now`: once, after
    /// a while.
    pub fn is_claim_due(&mut self, call: &Call, now: Time) -> bool {
        if self.sequence != call.sequence {
            *self = Waiting::new(call, now);
        }
        let is_due = !self.is_claimed && now.since(self.since) >= CLAIM_AFTER;
        self.is_claimed |= is_due;
        is_due
    }
}
