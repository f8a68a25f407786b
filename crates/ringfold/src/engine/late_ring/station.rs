//! One chunk of one slice at one rank: what it holds, what it waits for, and what it does next. No I/O, no clock, no bytes.
//!
//! ```text
//!            begin                 all before are here            the sum is there
//! (origin) ─────────► Left     Waiting ───────────────► Reducing ─────────────────► Left (the owner: has the result)
//!                                 │ told LATE, or waited too long: sends its own alone
//!                                 ▼
//!                              Relaying ── each piece that could still come has passed, or goes past it ──► Left
//! ```
//!
//! Events go in by the methods, and what is to be done comes out as [`Order`]s in their order. Whatever a peer says is checked
//! here: a position that comes twice, or where it cannot come from, is an error.

use super::places::Place;
use super::{Signals, Target};

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
    settled: Vec<Interval>,
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
            settled: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Back to the beginning, as another position perhaps.
    pub fn reset(&mut self, position: u32) {
        (self.position, self.state, self.is_redirected) = (position, State::Waiting, false);
        self.seen.clear();
        self.settled.clear();
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

    /// What is held, in order of positions: the operands of [`Order::Combine`], before this rank's own.
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
            self.leave_if_settled();
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

    /// The reduction takes too long. Whether the next position is told.
    pub fn is_slow(&mut self, orders: &mut Vec<Order>) -> bool {
        let is_late = self.state == State::Reducing && !self.is_redirected && self.can_skip();
        if is_late {
            self.is_redirected = true;
            let interval = self.sum();
            orders.push(Order::TellLate { interval });
        }
        is_late
    }

    /// The next position has split. Too late if the sum has left.
    pub fn told_skip(&mut self, orders: &mut Vec<Order>) {
        if !self.has_own() || self.is_redirected || !self.can_skip() {
            return;
        }
        self.is_redirected = true;
        if self.state == State::Reducing {
            let interval = self.sum();
            orders.push(Order::TellLate { interval });
        }
    }

    /// The sum of the rank before goes past this one.
    pub fn told_late(
        &mut self,
        interval: Interval,
        orders: &mut Vec<Order>,
    ) -> Result<(), Nonsense> {
        let is_between = 0 < self.position && self.position < self.owner;
        if !is_between || interval.last + 1 != self.position {
            return Err("a sum goes past a rank that it could not go past");
        }
        if !matches!(self.state, State::Waiting | State::Relaying) {
            return Err("a sum goes past a rank that has it");
        }
        self.see(interval)?;
        insert(&mut self.settled, interval);
        match self.state {
            State::Waiting if self.signals.late => self.split(false, orders),
            _ => self.leave_if_settled(),
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
        self.leave_if_settled();
    }

    fn pass(&mut self, interval: Interval, place: Place, orders: &mut Vec<Order>) {
        let to = match self.target {
            Target::Next2 => self.position + 1,
            Target::Tail => self.owner,
        };
        insert(&mut self.settled, interval);
        orders.push(Order::Pass {
            to,
            interval,
            place,
        });
    }

    /// A relay leaves when nothing can come any more: in `next2` everything before it comes past, in `tail` one piece of the
    /// rank before.
    fn leave_if_settled(&mut self) {
        let before = self.position - 1;
        let is_settled = match self.target {
            Target::Next2 => covers(&self.settled, before),
            Target::Tail => self.settled.iter().any(|interval| interval.last == before),
        };
        if self.state == State::Relaying && is_settled {
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
            // The chain may begin behind somebody who split.
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
mod tests {
    use super::*;

    const RANKS: u32 = 6;

    fn station(position: u32, target: Target) -> Station {
        Station::new(position, RANKS, target, Signals::BOTH)
    }

    fn to(first: u32, last: u32) -> Interval {
        Interval { first, last }
    }

    /// What a station orders when `f` happens to it.
    fn orders(f: impl FnOnce(&mut Vec<Order>)) -> Vec<Order> {
        let mut orders = Vec::new();
        f(&mut orders);
        orders
    }

    fn arrive(station: &mut Station, interval: Interval, place: Place) -> Vec<Order> {
        station.admit(interval).expect("a piece that may come");
        orders(|orders| station.landed(interval, place, orders))
    }

    #[test]
    fn without_a_late_rank_it_is_a_ring() {
        let mut origin = station(0, Target::Next2);
        assert_eq!(
            orders(|orders| origin.begin(orders)),
            [Order::SendOwn { to: 1 }]
        );
        assert!(origin.has_left());
        let mut middle = station(2, Target::Next2);
        assert_eq!(arrive(&mut middle, to(0, 1), 7), [Order::Combine]);
        let interval = to(0, 2);
        let due = [Order::SendSum { to: 3, interval }];
        assert_eq!(orders(|orders| middle.combined(orders)), due);
        let mut owner = station(5, Target::Tail);
        assert_eq!(arrive(&mut owner, to(0, 4), 7), [Order::Combine]);
        assert_eq!(orders(|orders| owner.combined(orders)), []);
        assert!(middle.has_left() && owner.has_left());
    }

    #[test]
    fn a_slow_rank_goes_past_the_next() {
        for (target, goes_to) in [(Target::Next2, 4), (Target::Tail, 5)] {
            let mut slow = station(2, target);
            arrive(&mut slow, to(0, 1), 7);
            let interval = to(0, 2);
            let told = orders(|orders| assert!(slow.is_slow(orders)));
            assert_eq!(told, [Order::TellLate { interval }]);
            assert!(
                orders(|orders| slow.told_skip(orders)).is_empty(),
                "both at once"
            );
            let sent = orders(|orders| slow.combined(orders));
            assert_eq!(
                sent,
                [Order::SendSum {
                    to: goes_to,
                    interval
                }]
            );
            let mut next = station(3, target);
            let own = orders(|orders| next.told_late(interval, orders).unwrap());
            assert_eq!(own, [Order::SendOwn { to: 4 }]);
            assert!(next.has_left(), "nothing more can come to it");
        }
    }

    #[test]
    fn the_rank_after_waits_for_both_in_next2() {
        let mut merging = station(4, Target::Next2);
        assert_eq!(arrive(&mut merging, to(3, 3), 1), []);
        assert_eq!(arrive(&mut merging, to(0, 2), 2), [Order::Combine]);
        let places: Vec<_> = merging.held().iter().map(|(_, place)| *place).collect();
        assert_eq!(places, [2, 1], "in order of positions");
    }

    #[test]
    fn the_chain_goes_on_without_the_late_piece_in_tail() {
        let mut next = station(4, Target::Tail);
        assert_eq!(arrive(&mut next, to(3, 3), 1), [Order::Combine]);
        let interval = to(3, 4);
        let sent = orders(|orders| next.combined(orders));
        assert_eq!(sent, [Order::SendSum { to: 5, interval }]);
        let mut owner = station(5, Target::Tail);
        assert_eq!(arrive(&mut owner, to(3, 4), 1), []);
        assert_eq!(arrive(&mut owner, to(0, 2), 2), [Order::Combine]);
    }

    #[test]
    fn who_split_by_its_timer_stays_until_the_late_piece_is_past() {
        for (target, passes_to) in [(Target::Next2, 4), (Target::Tail, 5)] {
            let mut split = station(3, target);
            let own = orders(|orders| assert!(split.is_overdue(orders)));
            assert_eq!(own, [Order::SendOwn { to: 4 }, Order::TellSkip]);
            assert!(!split.has_left());
            let interval = to(0, 2);
            let passed = Order::Pass {
                to: passes_to,
                interval,
                place: 9,
            };
            let mut relay = split.clone();
            assert_eq!(arrive(&mut relay, interval, 9), [passed]);
            assert!(relay.has_left());
            assert_eq!(
                orders(|orders| split.told_late(interval, orders).unwrap()),
                []
            );
            assert!(split.has_left());
        }
    }

    #[test]
    fn a_relay_in_next2_sees_all_pieces_past() {
        let mut split = station(3, Target::Next2);
        orders(|orders| assert!(split.is_overdue(orders)));
        arrive(&mut split, to(2, 2), 1);
        assert!(!split.has_left(), "what the late one holds can still come");
        arrive(&mut split, to(0, 1), 2);
        assert!(split.has_left());
    }

    #[test]
    fn a_late_origin_is_gone_around() {
        let mut origin = station(0, Target::Tail);
        assert_eq!(orders(|orders| origin.told_skip(orders)), []);
        let interval = Interval::one(0);
        let due = [Order::TellLate { interval }, Order::SendOwn { to: 5 }];
        assert_eq!(orders(|orders| origin.begin(orders)), due);
    }

    #[test]
    fn who_is_asked_to_skip_and_splits_itself_keeps_to_the_chain() {
        let mut middle = station(2, Target::Next2);
        assert_eq!(orders(|orders| middle.told_skip(orders)), []);
        let own = orders(|orders| assert!(middle.is_overdue(orders)));
        assert_eq!(own, [Order::SendOwn { to: 3 }, Order::TellSkip]);
    }

    #[test]
    fn the_last_two_are_never_gone_around() {
        for position in [4, 5] {
            let mut last = station(position, Target::Next2);
            arrive(&mut last, to(0, position - 1), 0);
            let told = orders(|orders| {
                assert!(!last.is_slow(orders));
                last.told_skip(orders);
            });
            assert_eq!(told, []);
        }
        let mut owner = station(5, Target::Next2);
        assert!(!owner.is_overdue(&mut Vec::new()));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut middle = station(3, Target::Next2);
        middle.admit(to(1, 2)).unwrap();
        for nonsense in [to(2, 2), to(0, 1), to(3, 3), to(2, 1), to(0, 9)] {
            assert!(middle.admit(nonsense).is_err(), "{nonsense:?}");
        }
        assert!(middle.told_late(to(0, 2), &mut Vec::new()).is_err());
        let mut in_tail = station(3, Target::Tail);
        assert!(in_tail.admit(to(0, 1)).is_err(), "that is the owner's");
        let mut owner = station(5, Target::Tail);
        assert!(owner.told_late(to(0, 4), &mut Vec::new()).is_err());
        arrive(&mut owner, to(0, 4), 0);
        assert!(owner.admit(to(0, 0)).is_err(), "it has all");
    }

    #[test]
    fn by_the_papers_rule_nobody_acts_on_a_word() {
        let signals = Signals {
            late: false,
            skip: false,
            silent: true,
        };
        let mut next = Station::new(3, RANKS, Target::Next2, signals);
        let waits = orders(|orders| next.told_late(to(0, 2), orders).unwrap());
        assert_eq!(waits, [], "it goes by its own timer");
        let own = orders(|orders| assert!(next.is_overdue(orders)));
        assert_eq!(own, [Order::SendOwn { to: 4 }]);
        assert!(next.has_left());
    }
}
