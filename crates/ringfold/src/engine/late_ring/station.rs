//! One chunk of one slice at one rank: what it holds, what it waits for, and what it does next. No
//! I/O, no clock, no bytes.
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
//! could still come go past it.
//!
//! Events go in by the methods, and what is to be done comes out as [`Order`]s in their order. What
//! a peer says is checked here: a position that comes twice, or from where it cannot come, is an
//! error.

use super::places::Place;
use super::policy::{Signals, Target};

/// Positions `first..=last` of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// The first of them.
    pub first: u32,
    /// The last of them.
    pub last: u32,
}

impl Interval {
    /// One position.
    pub fn one(position: u32) -> Interval {
        Interval {
            first: position,
            last: position,
        }
    }
}

/// What a station wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Send this rank's contribution.
    SendOwn {
        /// To which position.
        to: u32,
    },
    /// Combine what is held with this rank's contribution, and say [`Station::combined`].
    Combine,
    /// Send the sum.
    SendSum {
        /// To which position.
        to: u32,
        /// What it holds.
        interval: Interval,
    },
    /// Send a piece on as it is.
    Pass {
        /// To which position.
        to: u32,
        /// What it holds.
        interval: Interval,
        /// Where it is.
        place: Place,
    },
    /// Tell the next position that this sum goes past it.
    TellLate {
        /// What the sum holds.
        interval: Interval,
    },
    /// Tell the position before that this rank has split.
    TellSkip,
}

/// Why something that came cannot be.
pub type Nonsense = &'static str;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
    target: Target,
    signals: Signals,
    state: State,
    /// Whether its sum goes past the next position.
    is_redirected: bool,
    /// Positions that have come, or were announced to go past: disjoint and in order.
    seen: Vec<Interval>,
    /// Those of them that need not be waited for when relaying.
    passed: Vec<Interval>,
    /// Pieces that are here, in order.
    held: Vec<(Interval, Place)>,
}

impl Station {
    /// The station of `position` among `positions`; nothing has come yet.
    pub fn new(position: u32, positions: u32, target: Target, signals: Signals) -> Station {
        assert!(position < positions, "a position outside the ring");
        Station {
            position,
            owner: positions - 1,
            target,
            signals,
            state: State::Waiting,
            is_redirected: false,
            seen: Vec::new(),
            passed: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Back to the beginning, as another position perhaps.
    pub fn reset(&mut self, position: u32) {
        (self.position, self.state, self.is_redirected) = (position, State::Waiting, false);
        self.seen.clear();
        self.passed.clear();
        self.held.clear();
    }

    /// Its position.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Whether it has nothing more to do: at the owner, has its result.
    pub fn has_left(&self) -> bool {
        self.state == State::Left
    }

    /// Whether it still has this rank's contribution to give.
    pub fn has_own(&self) -> bool {
        matches!(self.state, State::Waiting | State::Reducing)
    }

    /// Whether it is the owner's.
    pub fn is_owner(&self) -> bool {
        self.position == self.owner
    }

    /// Whether it waits for something that only the rank before can send.
    pub fn waits_for_previous(&self) -> bool {
        let is_waiting = matches!(self.state, State::Waiting | State::Relaying);
        let previous = self.position.wrapping_sub(1);
        self.position > 0 && is_waiting && self.seen.last().is_none_or(|seen| seen.last != previous)
    }

    /// What is held, in order of positions: the operands of [`Order::Combine`], before this rank's
    /// own.
    pub fn held(&self) -> &[(Interval, Place)] {
        &self.held
    }

    /// Begins: the origin sends what it has.
    pub fn begin(&mut self, orders: &mut Vec<Order>) {
        if self.position != 0 {
            return;
        }
        self.state = State::Left;
        let interval = Interval::one(0);
        if self.is_redirected {
            orders.push(Order::TellLate { interval });
        }
        orders.push(Order::SendOwn { to: self.next() });
    }

    /// Takes note of a piece that comes, before a byte of it is taken.
    pub fn admit(&mut self, interval: Interval) -> Result<(), Nonsense> {
        if !matches!(self.state, State::Waiting | State::Relaying) {
            return Err("a piece of a chunk that is complete here");
        }
        let is_from_chain = interval.last + 1 == self.position;
        if self.target == Target::Tail && !self.is_owner() && !is_from_chain {
            return Err("a piece that belongs to the owner");
        }
        self.see(interval)
    }

    /// A piece that was admitted is here.
    pub fn landed(&mut self, interval: Interval, place: Place, orders: &mut Vec<Order>) {
        if self.state == State::Relaying {
            self.pass(interval, place, orders);
            self.leave_if_all_passed();
            return;
        }
        let behind = self.held.partition_point(|(held, _)| *held < interval);
        self.held.insert(behind, (interval, place));
        if self.has_all() {
            self.state = State::Reducing;
            if self.is_redirected {
                let interval = self.sum();
                orders.push(Order::TellLate { interval });
            }
            orders.push(Order::Combine);
        }
    }

    /// The sum that [`Order::Combine`] asked for is there.
    pub fn combined(&mut self, orders: &mut Vec<Order>) {
        assert_eq!(self.state, State::Reducing, "nothing was combined");
        self.state = State::Left;
        if !self.is_owner() {
            let (to, interval) = (self.next(), self.sum());
            orders.push(Order::SendSum { to, interval });
        }
    }

    /// The reduction takes too long. Whether the next position gets a `LATE`.
    pub fn is_slow(&mut self, orders: &mut Vec<Order>) -> bool {
        let is_late = self.state == State::Reducing && !self.is_redirected && self.can_skip();
        if is_late {
            self.is_redirected = true;
            let interval = self.sum();
            orders.push(Order::TellLate { interval });
        }
        is_late
    }

    /// The next position has split (`SKIP`). Too late if the sum has left.
    pub fn on_skip(&mut self, orders: &mut Vec<Order>) {
        if !self.has_own() || self.is_redirected || !self.can_skip() {
            return;
        }
        self.is_redirected = true;
        if self.state == State::Reducing {
            let interval = self.sum();
            orders.push(Order::TellLate { interval });
        }
    }

    /// The sum of the rank before goes past this one (`LATE`).
    pub fn on_late(&mut self, interval: Interval, orders: &mut Vec<Order>) -> Result<(), Nonsense> {
        let is_between = 0 < self.position && self.position < self.owner;
        if !is_between || interval.last + 1 != self.position {
            return Err("a sum goes past a rank that it could not go past");
        }
        if !matches!(self.state, State::Waiting | State::Relaying) {
            return Err("a sum goes past a rank that has it");
        }
        self.see(interval)?;
        insert(&mut self.passed, interval);
        match self.state {
            State::Waiting if self.signals.late => self.split(false, orders),
            _ => self.leave_if_all_passed(),
        }
        Ok(())
    }

    /// Nothing has come for too long. Whether it splits.
    pub fn is_overdue(&mut self, orders: &mut Vec<Order>) -> bool {
        let splits = self.state == State::Waiting && 0 < self.position && !self.is_owner();
        if splits {
            self.split(self.signals.skip, orders);
        }
        splits
    }

    fn split(&mut self, tells: bool, orders: &mut Vec<Order>) {
        self.state = State::Relaying;
        let to = self.position + 1;
        orders.push(Order::SendOwn { to });
        for (interval, place) in std::mem::take(&mut self.held) {
            self.pass(interval, place, orders);
        }
        if tells {
            orders.push(Order::TellSkip);
        }
        self.leave_if_all_passed();
    }

    fn pass(&mut self, interval: Interval, place: Place, orders: &mut Vec<Order>) {
        let to = match self.target {
            Target::Next2 => self.position + 1,
            Target::Tail => self.owner,
        };
        insert(&mut self.passed, interval);
        orders.push(Order::Pass {
            to,
            interval,
            place,
        });
    }

    /// A relay leaves when nothing can come any more: in `next2` everything before it comes past,
    /// in `tail` one piece of the rank before.
    fn leave_if_all_passed(&mut self) {
        let before = self.position - 1;
        let all_passed = match self.target {
            Target::Next2 => covers(&self.passed, before),
            Target::Tail => self.passed.iter().any(|interval| interval.last == before),
        };
        if self.state == State::Relaying && all_passed {
            self.state = State::Left;
        }
    }

    /// Where its sum goes.
    fn next(&self) -> u32 {
        match self.target {
            _ if !self.is_redirected => self.position + 1,
            Target::Next2 => self.position + 2,
            Target::Tail => self.owner,
        }
    }

    /// Whether there is a position that its sum can go past.
    fn can_skip(&self) -> bool {
        self.position + 2 <= self.owner
    }

    /// What its sum holds.
    fn sum(&self) -> Interval {
        Interval {
            first: self.held.first().map_or(0, |(held, _)| held.first),
            last: self.position,
        }
    }

    /// Whether everything that its sum is to hold is here.
    fn has_all(&self) -> bool {
        let first = match self.target {
            // The chain may begin behind a rank that has split.
            Target::Tail if !self.is_owner() => return !self.held.is_empty(),
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
            return Err("positions that do not come before the receiver's");
        }
        let overlaps = |seen: &Interval| seen.first <= interval.last && interval.first <= seen.last;
        if self.seen.iter().any(overlaps) {
            return Err("a position that has come already");
        }
        insert(&mut self.seen, interval);
        Ok(())
    }
}

fn insert(intervals: &mut Vec<Interval>, interval: Interval) {
    let behind = intervals.partition_point(|other| *other < interval);
    intervals.insert(behind, interval);
}

/// Whether disjoint intervals in order are all of `0..=last`.
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
