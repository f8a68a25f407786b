//! One chunk of one slice at one rank: the pieces that it holds and waits for, and its next action.
//! No I/O, no clock, no bytes.
//!
//! ```text
//!            begin           all before are here        the sum is there
//! (origin) ───────► Left   Waiting ───────────► Reducing ────────────────► Left
//!                             │ received LATE, or waited too long: sends its own alone
//!                             ▼
//!                          Relaying ── each piece that could still come has passed ──► Left
//! ```
//!
//! The owner has the result when it has left. A relaying rank also leaves when the pieces that
//! could still arrive bypass it.
//!
//! Each event is a call of a method, which appends the actions to take as [`StationOrder`]s, in
//! their order. Claims of peers are checked here: a position that arrives twice, or from an
//! impossible sender, is an error.

use super::places::PlaceNumber;
use super::policy::{MergeTarget, Signals};

/// Positions `first..=last` of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// The first position.
    pub first: u32,
    /// The last position.
    pub last: u32,
}

impl Interval {
    /// Returns the interval of one position.
    pub fn one(position: u32) -> Interval {
        Interval {
            first: position,
            last: position,
        }
    }
}

/// An action that a station orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StationOrder {
    /// Send this rank's contribution.
    SendOwn {
        /// The receiving position.
        to: u32,
    },
    /// Combine the held pieces with this rank's contribution, then call [`Station::combined`].
    Combine,
    /// Send the sum.
    SendSum {
        /// The receiving position.
        to: u32,
        /// The positions in the sum.
        interval: Interval,
    },
    /// Forward a piece as it is.
    Pass {
        /// The receiving position.
        to: u32,
        /// The positions in the piece.
        interval: Interval,
        /// The place of the piece.
        place: PlaceNumber,
    },
    /// Tell the next position that this sum bypasses it.
    TellLate {
        /// The positions in the sum.
        interval: Interval,
    },
    /// Tell the position before that this rank has split.
    TellSkip,
}

/// The reason why a message is impossible.
pub type Nonsense = &'static str;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StationState {
    Waiting,
    Reducing,
    Relaying,
    Left,
}

/// One chunk at one rank.
#[derive(Clone, Debug)]
pub struct Station {
    position: u32,
    owner: u32,
    target: MergeTarget,
    signals: Signals,
    state: StationState,
    /// Whether this rank's sum bypasses the next position.
    is_redirected: bool,
    /// Positions that have arrived, or were announced to bypass this rank: disjoint and in order.
    seen: Vec<Interval>,
    /// Seen positions that need not be waited for when relaying.
    passed: Vec<Interval>,
    /// The pieces that are here, in order.
    held: Vec<(Interval, PlaceNumber)>,
}

impl Station {
    /// Creates the station of `position` among `positions`, for which nothing has arrived yet.
    pub fn new(position: u32, positions: u32, target: MergeTarget, signals: Signals) -> Station {
        assert!(position < positions, "a position outside the ring");
        Station {
            position,
            owner: positions - 1,
            target,
            signals,
            state: StationState::Waiting,
            is_redirected: false,
            seen: Vec::new(),
            passed: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Resets the station to its beginning, possibly at another position.
    pub fn reset(&mut self, position: u32) {
        (self.position, self.state, self.is_redirected) = (position, StationState::Waiting, false);
        self.seen.clear();
        self.passed.clear();
        self.held.clear();
    }

    /// Returns the position of this rank.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Whether the station has nothing more to do; the owner then has its result.
    pub fn has_left(&self) -> bool {
        self.state == StationState::Left
    }

    /// Whether the station has yet to send this rank's contribution.
    pub fn has_own(&self) -> bool {
        matches!(self.state, StationState::Waiting | StationState::Reducing)
    }

    /// Whether this rank is the chunk's owner.
    pub fn is_owner(&self) -> bool {
        self.position == self.owner
    }

    /// Whether the station waits for a message that only the rank before can send.
    pub fn waits_for_previous(&self) -> bool {
        let is_waiting = matches!(self.state, StationState::Waiting | StationState::Relaying);
        let previous = self.position.wrapping_sub(1);
        self.position > 0 && is_waiting && self.seen.last().is_none_or(|seen| seen.last != previous)
    }

    /// Returns the held pieces in order of positions: the operands of [`StationOrder::Combine`],
    /// before this rank's own.
    pub fn held(&self) -> &[(Interval, PlaceNumber)] {
        &self.held
    }

    /// Begins the chunk: the origin sends its contribution.
    pub fn begin(&mut self, orders: &mut Vec<StationOrder>) {
        if self.position != 0 {
            return;
        }
        self.state = StationState::Left;
        let interval = Interval::one(0);
        if self.is_redirected {
            orders.push(StationOrder::TellLate { interval });
        }
        orders.push(StationOrder::SendOwn { to: self.next() });
    }

    /// Checks and records a piece that arrives, before any byte of it is received.
    pub fn admit(&mut self, interval: Interval) -> Result<(), Nonsense> {
        if !matches!(self.state, StationState::Waiting | StationState::Relaying) {
            return Err("a piece of a chunk that is already complete");
        }
        let is_from_chain = interval.last + 1 == self.position;
        if self.target == MergeTarget::Tail && !self.is_owner() && !is_from_chain {
            return Err("a piece that must go to the owner");
        }
        self.see(interval)
    }

    /// Handles an admitted piece that is here.
    pub fn landed(
        &mut self,
        interval: Interval,
        place: PlaceNumber,
        orders: &mut Vec<StationOrder>,
    ) {
        if self.state == StationState::Relaying {
            self.pass(interval, place, orders);
            self.leave_if_all_passed();
            return;
        }
        let behind = self.held.partition_point(|(held, _)| *held < interval);
        self.held.insert(behind, (interval, place));
        if self.has_all() {
            self.state = StationState::Reducing;
            if self.is_redirected {
                let interval = self.sum();
                orders.push(StationOrder::TellLate { interval });
            }
            orders.push(StationOrder::Combine);
        }
    }

    /// Handles the completion of [`StationOrder::Combine`].
    pub fn combined(&mut self, orders: &mut Vec<StationOrder>) {
        assert_eq!(self.state, StationState::Reducing, "nothing was combined");
        self.state = StationState::Left;
        if !self.is_owner() {
            let (to, interval) = (self.next(), self.sum());
            orders.push(StationOrder::SendSum { to, interval });
        }
    }

    /// Handles a reduction that takes too long; returns whether the next position gets a `LATE`.
    pub fn is_slow(&mut self, orders: &mut Vec<StationOrder>) -> bool {
        let is_late =
            self.state == StationState::Reducing && !self.is_redirected && self.can_skip();
        if is_late {
            self.is_redirected = true;
            let interval = self.sum();
            orders.push(StationOrder::TellLate { interval });
        }
        is_late
    }

    /// Handles `SKIP`: the next position has split. No effect if the sum has been sent.
    pub fn on_skip(&mut self, orders: &mut Vec<StationOrder>) {
        if !self.has_own() || self.is_redirected || !self.can_skip() {
            return;
        }
        self.is_redirected = true;
        if self.state == StationState::Reducing {
            let interval = self.sum();
            orders.push(StationOrder::TellLate { interval });
        }
    }

    /// Handles `LATE`: the sum of the rank before bypasses this one.
    pub fn on_late(
        &mut self,
        interval: Interval,
        orders: &mut Vec<StationOrder>,
    ) -> Result<(), Nonsense> {
        let is_between = 0 < self.position && self.position < self.owner;
        if !is_between || interval.last + 1 != self.position {
            return Err("LATE for a sum that cannot bypass this rank");
        }
        if !matches!(self.state, StationState::Waiting | StationState::Relaying) {
            return Err("LATE for a sum that has already arrived");
        }
        self.see(interval)?;
        insert(&mut self.passed, interval);
        match self.state {
            StationState::Waiting if self.signals.late => self.split(false, orders),
            _ => self.leave_if_all_passed(),
        }
        Ok(())
    }

    /// Handles a wait that takes too long; returns whether the station splits.
    pub fn is_overdue(&mut self, orders: &mut Vec<StationOrder>) -> bool {
        let splits = self.state == StationState::Waiting && 0 < self.position && !self.is_owner();
        if splits {
            self.split(self.signals.skip, orders);
        }
        splits
    }

    fn split(&mut self, tells: bool, orders: &mut Vec<StationOrder>) {
        self.state = StationState::Relaying;
        let to = self.position + 1;
        orders.push(StationOrder::SendOwn { to });
        for (interval, place) in std::mem::take(&mut self.held) {
            self.pass(interval, place, orders);
        }
        if tells {
            orders.push(StationOrder::TellSkip);
        }
        self.leave_if_all_passed();
    }

    fn pass(&mut self, interval: Interval, place: PlaceNumber, orders: &mut Vec<StationOrder>) {
        let to = match self.target {
            MergeTarget::Next2 => self.position + 1,
            MergeTarget::Tail => self.owner,
        };
        insert(&mut self.passed, interval);
        orders.push(StationOrder::Pass {
            to,
            interval,
            place,
        });
    }

    /// Leaves as a relay when nothing more can arrive: in `next2` once all earlier positions have
    /// passed, in `tail` once one piece of the rank before has.
    fn leave_if_all_passed(&mut self) {
        let before = self.position - 1;
        let all_passed = match self.target {
            MergeTarget::Next2 => covers(&self.passed, before),
            MergeTarget::Tail => self.passed.iter().any(|interval| interval.last == before),
        };
        if self.state == StationState::Relaying && all_passed {
            self.state = StationState::Left;
        }
    }

    /// Returns the position that receives the sum.
    fn next(&self) -> u32 {
        match self.target {
            _ if !self.is_redirected => self.position + 1,
            MergeTarget::Next2 => self.position + 2,
            MergeTarget::Tail => self.owner,
        }
    }

    /// Whether the sum can bypass the next position.
    fn can_skip(&self) -> bool {
        self.position + 2 <= self.owner
    }

    /// Returns the positions in the sum.
    fn sum(&self) -> Interval {
        Interval {
            first: self.held.first().map_or(0, |(held, _)| held.first),
            last: self.position,
        }
    }

    /// Whether all pieces of the sum are here.
    fn has_all(&self) -> bool {
        let first = match self.target {
            // The chain may begin behind a rank that has split.
            MergeTarget::Tail if !self.is_owner() => return !self.held.is_empty(),
            _ => 0,
        };
        let mut next = first;
        for (held, _) in &self.held {
            if held.first != next {
                return false;
            }
            next = held.last + 1;
        }
        next == self.position
    }

    fn see(&mut self, interval: Interval) -> Result<(), Nonsense> {
        if interval.first > interval.last || interval.last >= self.position {
            return Err("positions that are not before the receiver's");
        }
        let overlaps = |seen: &Interval| seen.first <= interval.last && interval.first <= seen.last;
        if self.seen.iter().any(overlaps) {
            return Err("a position that has already arrived");
        }
        insert(&mut self.seen, interval);
        Ok(())
    }
}

fn insert(intervals: &mut Vec<Interval>, interval: Interval) {
    let behind = intervals.partition_point(|other| *other < interval);
    intervals.insert(behind, interval);
}

/// Returns whether disjoint intervals in order cover `0..=last`.
fn covers(intervals: &[Interval], last: u32) -> bool {
    let mut next = 0;
    for interval in intervals {
        if interval.first != next {
            return false;
        }
        next = interval.last + 1;
    }
    next == last + 1
}

#[cfg(test)]
mod tests;
