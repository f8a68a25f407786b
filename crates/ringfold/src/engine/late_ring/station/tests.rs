//! Tests of stations alone, without a transport.

use super::*;

const RANKS: u32 = 6;

fn station(position: u32, target: MergeTarget) -> Station {
    Station::new(position, RANKS, target, Signals::BOTH)
}

fn to(first: u32, last: u32) -> Interval {
    Interval { first, last }
}

/// Returns the orders that `f` appends.
fn orders(f: impl FnOnce(&mut Vec<StationOrder>)) -> Vec<StationOrder> {
    let mut orders = Vec::new();
    f(&mut orders);
    orders
}

fn arrive(station: &mut Station, interval: Interval, place: PlaceNumber) -> Vec<StationOrder> {
    station.admit(interval).expect("a piece that may come");
    orders(|orders| station.landed(interval, place, orders))
}

#[test]
fn without_a_late_rank_it_is_a_ring() {
    let mut origin = station(0, MergeTarget::Next2);
    assert_eq!(
        orders(|orders| origin.begin(orders)),
        [StationOrder::SendOwn { to: 1 }]
    );
    assert!(origin.has_left());
    let mut middle = station(2, MergeTarget::Next2);
    assert_eq!(arrive(&mut middle, to(0, 1), 7), [StationOrder::Combine]);
    let interval = to(0, 2);
    let due = [StationOrder::SendSum { to: 3, interval }];
    assert_eq!(orders(|orders| middle.combined(orders)), due);
    let mut owner = station(5, MergeTarget::Tail);
    assert_eq!(arrive(&mut owner, to(0, 4), 7), [StationOrder::Combine]);
    assert_eq!(orders(|orders| owner.combined(orders)), []);
    assert!(middle.has_left() && owner.has_left());
}

#[test]
fn a_slow_rank_goes_past_the_next() {
    for (target, goes_to) in [(MergeTarget::Next2, 4), (MergeTarget::Tail, 5)] {
        let mut slow = station(2, target);
        arrive(&mut slow, to(0, 1), 7);
        let interval = to(0, 2);
        let told = orders(|orders| assert!(slow.is_slow(orders)));
        assert_eq!(told, [StationOrder::TellLate { interval }]);
        assert!(
            orders(|orders| slow.on_skip(orders)).is_empty(),
            "both at once"
        );
        let sent = orders(|orders| slow.combined(orders));
        assert_eq!(
            sent,
            [StationOrder::SendSum {
                to: goes_to,
                interval
            }]
        );
        let mut next = station(3, target);
        let own = orders(|orders| next.on_late(interval, orders).unwrap());
        assert_eq!(own, [StationOrder::SendOwn { to: 4 }]);
        assert!(next.has_left(), "nothing more can come to it");
    }
}

#[test]
fn the_rank_after_waits_for_both_in_next2() {
    let mut merging = station(4, MergeTarget::Next2);
    assert_eq!(arrive(&mut merging, to(3, 3), 1), []);
    assert_eq!(arrive(&mut merging, to(0, 2), 2), [StationOrder::Combine]);
    let places: Vec<_> = merging.held().iter().map(|(_, place)| *place).collect();
    assert_eq!(places, [2, 1], "in order of positions");
}

#[test]
fn the_chain_goes_on_without_the_late_piece_in_tail() {
    let mut next = station(4, MergeTarget::Tail);
    assert_eq!(arrive(&mut next, to(3, 3), 1), [StationOrder::Combine]);
    let interval = to(3, 4);
    let sent = orders(|orders| next.combined(orders));
    assert_eq!(sent, [StationOrder::SendSum { to: 5, interval }]);
    let mut owner = station(5, MergeTarget::Tail);
    assert_eq!(arrive(&mut owner, to(3, 4), 1), []);
    assert_eq!(arrive(&mut owner, to(0, 2), 2), [StationOrder::Combine]);
}

#[test]
fn a_rank_that_split_by_its_timer_stays_until_the_late_piece_is_past() {
    for (target, passes_to) in [(MergeTarget::Next2, 4), (MergeTarget::Tail, 5)] {
        let mut split = station(3, target);
        let own = orders(|orders| assert!(split.is_overdue(orders)));
        assert_eq!(
            own,
            [StationOrder::SendOwn { to: 4 }, StationOrder::TellSkip]
        );
        assert!(!split.has_left());
        let interval = to(0, 2);
        let passed = StationOrder::Pass {
            to: passes_to,
            interval,
            place: 9,
        };
        let mut relay = split.clone();
        assert_eq!(arrive(&mut relay, interval, 9), [passed]);
        assert!(relay.has_left());
        assert_eq!(
            orders(|orders| split.on_late(interval, orders).unwrap()),
            []
        );
        assert!(split.has_left());
    }
}

#[test]
fn a_relay_in_next2_sees_all_pieces_past() {
    let mut split = station(3, MergeTarget::Next2);
    orders(|orders| assert!(split.is_overdue(orders)));
    arrive(&mut split, to(2, 2), 1);
    assert!(!split.has_left(), "what the late one holds can still come");
    arrive(&mut split, to(0, 1), 2);
    assert!(split.has_left());
}

#[test]
fn a_late_origin_is_bypassed() {
    let mut origin = station(0, MergeTarget::Tail);
    assert_eq!(orders(|orders| origin.on_skip(orders)), []);
    let interval = Interval::one(0);
    let due = [
        StationOrder::TellLate { interval },
        StationOrder::SendOwn { to: 5 },
    ];
    assert_eq!(orders(|orders| origin.begin(orders)), due);
}

#[test]
fn a_rank_asked_to_skip_that_splits_itself_keeps_to_the_chain() {
    let mut middle = station(2, MergeTarget::Next2);
    assert_eq!(orders(|orders| middle.on_skip(orders)), []);
    let own = orders(|orders| assert!(middle.is_overdue(orders)));
    assert_eq!(
        own,
        [StationOrder::SendOwn { to: 3 }, StationOrder::TellSkip]
    );
}

#[test]
fn the_last_two_are_never_bypassed() {
    for position in [4, 5] {
        let mut last = station(position, MergeTarget::Next2);
        arrive(&mut last, to(0, position - 1), 0);
        let told = orders(|orders| {
            assert!(!last.is_slow(orders));
            last.on_skip(orders);
        });
        assert_eq!(told, []);
    }
    let mut owner = station(5, MergeTarget::Next2);
    assert!(!owner.is_overdue(&mut Vec::new()));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut middle = station(3, MergeTarget::Next2);
    middle.admit(to(1, 2)).unwrap();
    for nonsense in [to(2, 2), to(0, 1), to(3, 3), to(2, 1), to(0, 9)] {
        assert!(middle.admit(nonsense).is_err(), "{nonsense:?}");
    }
    assert!(middle.on_late(to(0, 2), &mut Vec::new()).is_err());
    let mut in_tail = station(3, MergeTarget::Tail);
    assert!(in_tail.admit(to(0, 1)).is_err(), "that is the owner's");
    let mut owner = station(5, MergeTarget::Tail);
    assert!(owner.on_late(to(0, 4), &mut Vec::new()).is_err());
    arrive(&mut owner, to(0, 4), 0);
    assert!(owner.admit(to(0, 0)).is_err(), "it has all");
}

#[test]
fn by_the_papers_rule_no_rank_acts_on_a_signal() {
    let signals = Signals {
        late: false,
        skip: false,
        silent: true,
    };
    let mut next = Station::new(3, RANKS, MergeTarget::Next2, signals);
    let waits = orders(|orders| next.on_late(to(0, 2), orders).unwrap());
    assert_eq!(waits, [], "it goes by its own timer");
    let own = orders(|orders| assert!(next.is_overdue(orders)));
    assert_eq!(own, [StationOrder::SendOwn { to: 4 }]);
    assert!(next.has_left());
}
