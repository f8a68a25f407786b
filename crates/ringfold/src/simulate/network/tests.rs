use super::*;
use crate::error::Error;
use crate::memory::Owned;
use crate::simulate::model::{Compute, Links, Network, Sending};
use crate::transport::suite::{self, TransportWorld, pattern};

/// Returns a scenario with the slow-node paper's links, 5 µs and 100 Gbit/s, and free computing.
fn scenario(ranks: usize, sending: Sending) -> Scenario {
    Scenario {
        ranks,
        network: Network {
            links: Links::default(),
            sending,
            ..Network::default()
        },
        compute: Compute::FREE,
        ..Scenario::default()
    }
}

fn eager(ranks: usize) -> Vec<Sim> {
    SimNetwork::new(&scenario(ranks, Sending::Eager))
}

fn rendezvous(ranks: usize) -> Vec<Sim> {
    SimNetwork::new(&scenario(ranks, Sending::Rendezvous))
}

suite::transport_tests!(eager);

mod with_rendezvous {
    use crate::transport::suite;
    suite::transport_tests!(super::rendezvous);
}

/// Polls all ranks at `time_ps` until none makes progress.
fn poll_at(world: &mut TransportWorld<Sim>, time_ps: u128) {
    world.now = Time(time_ps);
    while world.round().unwrap() {}
}

#[test]
fn a_message_takes_alpha_and_its_bytes_times_beta() {
    let mut world = TransportWorld::new(eager(2));
    let (source, target) = (pattern(8192, 1), Owned::zeroed(8192));
    let send = world.send(0, (1, 0), 0, source.region());
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    poll_at(&mut world, 655_359);
    assert!(!world.is_done(send));
    poll_at(&mut world, 655_360);
    assert!(world.is_done(send));
    poll_at(&mut world, 5_655_359);
    assert!(!world.is_done(recv));
    assert_eq!(world.ranks[1].next_event(), Some(Time(5_655_360)));
    poll_at(&mut world, 5_655_360);
    assert!(world.is_done(recv));
    assert_eq!(world.ranks[1].next_event(), None);
}

#[test]
fn a_message_that_a_rank_was_working_on_at_its_end_never_arrives() {
    let mut scenario = scenario(2, Sending::Eager);
    scenario.network.links.overhead_ps = 1_000;
    let mut world = TransportWorld::new(SimNetwork::new(&scenario));
    let (source, target) = (pattern(64, 1), Owned::zeroed(64));
    let recv = world.recv(0, (1, 1), 0, Sink::Store(target.region()));
    world.send(1, (0, 1), 0, source.region());
    drop(world.ranks.pop());
    let error = world.run(&[recv]).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 1, .. }),
        "{error}"
    );
}

#[test]
fn messages_of_one_sender_queue_at_its_port() {
    let mut world = TransportWorld::new(eager(3));
    let (source, targets) = (pattern(1000, 1), [Owned::zeroed(1000), Owned::zeroed(1000)]);
    let first = world.recv(1, (0, 0), 0, Sink::Store(targets[0].region()));
    let second = world.recv(2, (0, 0), 0, Sink::Store(targets[1].region()));
    world.send(0, (1, 0), 0, source.region());
    world.send(0, (2, 0), 0, source.region());
    world.run(&[first]).unwrap();
    assert_eq!(world.now, Time(5_080_000));
    world.run(&[second]).unwrap();
    assert_eq!(world.now, Time(5_160_000));
}

#[test]
fn messages_to_one_receiver_queue_at_its_port() {
    let mut world = TransportWorld::new(eager(3));
    let (source, targets) = (pattern(1000, 1), [Owned::zeroed(1000), Owned::zeroed(1000)]);
    let first = world.recv(0, (1, 0), 0, Sink::Store(targets[0].region()));
    let second = world.recv(0, (2, 0), 0, Sink::Store(targets[1].region()));
    world.send(1, (0, 0), 0, source.region());
    world.send(2, (0, 0), 0, source.region());
    world.run(&[first]).unwrap();
    assert_eq!(world.now, Time(5_080_000));
    world.run(&[second]).unwrap();
    assert_eq!(world.now, Time(5_160_000));
}

#[test]
fn both_directions_are_used_at_once() {
    let mut world = TransportWorld::new(eager(2));
    let (source, targets) = (pattern(1000, 1), [Owned::zeroed(1000), Owned::zeroed(1000)]);
    let first = world.recv(0, (1, 0), 0, Sink::Store(targets[0].region()));
    let second = world.recv(1, (0, 0), 0, Sink::Store(targets[1].region()));
    world.send(0, (1, 0), 0, source.region());
    world.send(1, (0, 0), 0, source.region());
    world.run(&[first, second]).unwrap();
    assert_eq!(world.now, Time(5_080_000));
}

#[test]
fn only_a_rendezvous_waits_for_the_receive() {
    for (sending, expected_ps) in [
        (Sending::Eager, 9_000_000),
        (Sending::Rendezvous, 9_000_000 + 5_080_000),
    ] {
        let mut world = TransportWorld::new(SimNetwork::new(&scenario(2, sending)));
        let (source, target) = (pattern(1000, 1), Owned::zeroed(1000));
        world.send(0, (1, 0), 0, source.region());
        poll_at(&mut world, 9_000_000);
        let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
        world.run(&[recv]).unwrap();
        assert_eq!(world.now, Time(expected_ps), "{sending:?}");
    }
}

#[test]
fn a_ring_reduce_scatter_takes_the_time_of_the_closed_form() {
    // The slow-node paper without a slow node: N - 1 steps of transfer and 3 µs of reduction.
    const REDUCE_PS: u128 = 3_000_000;
    for (world_size, expected_ps) in [(4, 25_966_080), (8, 60_587_520)] {
        let mut world = TransportWorld::new(eager(world_size));
        let (source, target) = (pattern(8192, 1), Owned::zeroed(8192));
        for step in 0..world_size as u32 - 1 {
            let ranks = 0..world_size;
            let receives: Vec<_> = ranks
                .map(|rank| {
                    let next = (rank + 1) % world_size;
                    world.send(rank, (next, 0), step, source.region());
                    world.recv(next, (rank, 0), step, Sink::Store(target.region()))
                })
                .collect();
            world.run(&receives).unwrap();
            let reduced = world.now.0 + REDUCE_PS;
            poll_at(&mut world, reduced);
        }
        assert_eq!(world.now, Time(expected_ps), "{world_size} ranks");
    }
}
