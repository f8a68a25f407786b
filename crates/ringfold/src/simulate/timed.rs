//! A timed call between two barriers on one rank: its start, its end, and the rank's work.

use super::network::{Account, World};
use super::report::PathPart;

/// One rank's timed call; complete once the call has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub begun_ps: u64,
    pub finished_ps: u64,
    /// Totals of the rank in the call; until the end of the call, the totals before it.
    pub account: Account,
    /// End of the chain of parts that led to the call's result.
    cause: u32,
}

impl Timed {
    pub fn begin(now_ps: u64, before: Account) -> Timed {
        Timed {
            begun_ps: now_ps,
            finished_ps: now_ps,
            account: before,
            cause: 0,
        }
    }

    pub fn end(&mut self, now_ps: u64, after: Account, cause: u32) {
        self.finished_ps = now_ps;
        self.account = after.since(&self.account);
        self.cause = cause;
    }

    /// Returns the parts that the call waited for, from its beginning.
    pub fn path(&self, world: &World) -> Vec<PathPart> {
        let mut path = world.record.path(self.cause);
        path.retain(|part| part.end_ps > self.begun_ps);
        for part in &mut path {
            part.begin_ps = part.begin_ps.saturating_sub(self.begun_ps);
            part.end_ps -= self.begun_ps;
        }
        path
    }
}
