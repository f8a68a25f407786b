//! Tests of each fault's effect on a message, and that no mixture of faults yields a wrong result.

use super::*;
use crate::simulate::Scenario;
use crate::simulate::network::model::{Compute, Links, Network, Sending};
use crate::simulate::network::{Sim, SimNetwork};
use crate::transport::local::{local, rendezvous};
use crate::transport::suite::{self, TransportWorld, bytes_of, pattern};

suite::transport_tests!(|world_size| wrap(local(world_size), Faults::default()));

mod with_delays {
    use super::*;
    suite::transport_tests!(|world_size| wrap(network(world_size), DELAYS));
}

const DELAYS: Faults = Faults {
    delay: 300,
    delay_limit: Duration::from_micros(50),
    ..NONE
};

const NONE: Faults = Faults {
    seed: 1,
    delay: 0,
    drop: 0,
    duplicate: 0,
    truncate: 0,
    flip: 0,
    half_close: 0,
    delay_limit: Duration::ZERO,
    fault_limit: 1,
};

fn wrap<T: Transport>(ranks: Vec<T>, faults: Faults) -> Vec<FaultInjector<T>> {
    let seeded = |(rank, inner)| {
        let seed = faults.seed + rank as u64;
        FaultInjector::new(inner, rank, Faults { seed, ..faults })
    };
    ranks.into_iter().enumerate().map(seeded).collect()
}

fn network(world_size: usize) -> Vec<Sim> {
    let network = Network {
        links: Links {
            alpha_ps: 1_000_000,
            ps_per_byte: 100,
            ..Links::default()
        },
        sending: Sending::Rendezvous,
        ..Network::default()
    };
    SimNetwork::new(&Scenario {
        ranks: world_size,
        network,
        compute: Compute::FREE,
        ..Scenario::default()
    })
}

/// Sends one message; returns the outcome of its receive, or `None` if nothing arrives.
fn send_one(faults: Faults) -> Option<Result<()>> {
    let mut world = TransportWorld::new(wrap(local(2), faults));
    let (source, target) = (pattern(1000, 1), Owned::zeroed(1000));
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    let send = world.send(0, (1, 0), 0, source.region());
    for _ in 0..10 {
        if let Err(error) = world.round() {
            return Some(Err(error));
        }
    }
    assert!(world.is_done(send), "the sender does not notice");
    let came = bytes_of(target.region()) == bytes_of(source.region());
    assert_eq!(world.is_done(recv), came);
    came.then_some(Ok(()))
}

#[test]
fn a_flipped_bit_is_corrupt_wherever_it_is() {
    for seed in 0..300 {
        let faults = Faults {
            seed,
            flip: 1000,
            ..NONE
        };
        let outcome = send_one(faults).expect("something arrives");
        assert_eq!(outcome.unwrap_err().class(), "Corrupt", "seed {seed}");
    }
}

#[test]
fn a_truncated_message_is_corrupt() {
    for seed in 0..300 {
        let faults = Faults {
            seed,
            truncate: 1000,
            ..NONE
        };
        let outcome = send_one(faults).expect("something arrives");
        assert_eq!(outcome.unwrap_err().class(), "Corrupt", "seed {seed}");
    }
}

#[test]
fn a_dropped_message_does_not_come() {
    assert!(send_one(Faults { drop: 1000, ..NONE }).is_none());
}

#[test]
fn nothing_comes_after_a_half_close() {
    let faults = Faults {
        half_close: 1000,
        ..NONE
    };
    let mut world = TransportWorld::new(wrap(local(2), faults));
    let (source, target) = (pattern(10, 1), Owned::zeroed(10));
    for index in 0..3 {
        let send = world.send(0, (1, 0), index, source.region());
        let recv = world.recv(1, (0, 0), index, Sink::Store(target.region()));
        world.round().unwrap();
        assert!(world.is_done(send) && !world.is_done(recv));
    }
    assert_eq!(world.ranks[0].faults_made, 1);
}

#[test]
fn a_duplicate_is_not_taken_for_the_next_message() {
    for ranks in [local, rendezvous] {
        let mut world = TransportWorld::new(wrap(
            ranks(2),
            Faults {
                duplicate: 1000,
                ..NONE
            },
        ));
        let (source, target) = (pattern(10, 1), Owned::zeroed(10));
        let send = world.send(0, (1, 0), 0, source.region());
        let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
        let next = world.send(0, (1, 0), 1, source.region());
        let recv = world.recv(1, (0, 0), 1, Sink::Store(target.region()));
        assert_eq!(world.run(&[next, recv]).unwrap_err().class(), "Corrupt");
    }
}

#[test]
fn what_is_reported_done_is_right_under_any_faults() {
    for seed in 0..200 {
        let faults = Faults {
            seed: seed * 1000,
            delay: 100,
            drop: 20,
            duplicate: 20,
            truncate: 20,
            flip: 20,
            half_close: 5,
            delay_limit: Duration::from_micros(5),
            fault_limit: 2,
        };
        exchange(wrap(network(3), faults), seed);
    }
}

/// Sends around a ring of ranks until all have arrived, a rank fails or progress ends.
fn exchange(ranks: Vec<FaultInjector<Sim>>, seed: u64) {
    const MESSAGES: u32 = 20;
    let mut world = TransportWorld::new(ranks);
    let sources: Vec<_> = (0..MESSAGES)
        .map(|i| pattern(i as usize * 9, i.into()))
        .collect();
    let mut receives = Vec::new();
    for rank in 0..3_usize {
        for index in 0..MESSAGES {
            let source = sources[index as usize].region();
            let target = Owned::zeroed(source.bytes());
            let recv = world.recv(
                (rank + 1) % 3,
                (rank, 1),
                index,
                Sink::Store(target.region()),
            );
            world.send(rank, ((rank + 1) % 3, 1), index, source);
            receives.push((recv, source, target));
        }
    }
    loop {
        let progress = match world.round() {
            Ok(progress) => progress,
            Err(error) => {
                assert!(
                    matches!(error, Error::Corrupt { .. }),
                    "seed {seed}: {error}"
                );
                break;
            }
        };
        let next = world.ranks.iter().filter_map(Transport::next_event).min();
        match next {
            Some(next) => world.now = world.now.max(next),
            None if progress => {}
            None => break,
        }
    }
    for (recv, source, target) in &receives {
        if world.is_done(*recv) {
            assert_eq!(bytes_of(target.region()), bytes_of(*source), "seed {seed}");
        }
    }
}
