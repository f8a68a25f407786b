//! The suite of all transports over the software devices, or over those of this machine, and tests
//! of this transport alone.

mod fork;
mod soft;

use super::*;
use crate::memory::Owned;
use crate::transport::suite::{self, TransportWorld, pattern};
use crate::verbs::{Domain, LinkLayer, MemoryAccess, Port, Verbs};

/// Variable that names the devices to test instead of the software's, separated by commas; tests
/// use them in turn.
const DEVICES: &str = "TEST_RDMA_DEVICES";

/// Time after which a test counts as hung.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Returns an active port of the device with this number.
fn port(number: usize) -> (RailPort, Port) {
    let named = std::env::var(DEVICES).ok();
    let library = soft::path();
    let verbs = Verbs::open(match &named {
        Some(_) => None,
        None => library.to_str(),
    });
    let verbs = verbs.expect("a library");
    if named.is_none() {
        println!("SOFTVERBS_SEED={}", soft::seed());
    }
    let found = verbs.devices().expect("a list");
    let names: Vec<&str> = match &named {
        Some(named) => named.split(',').collect(),
        None => found.iter().map(String::as_str).collect(),
    };
    let device = verbs.device(names[number % names.len()]).expect("a device");
    let port = device.ports().expect("ports").remove(0);
    let rail = RailPort {
        domain: Domain::new(device).expect("a domain"),
        port: port.number,
    };
    (rail, port)
}

/// Returns ranks that are connected with each other by these options, over `rails` rails.
fn connected(world_size: usize, rails: usize, options: &RdmaOptions) -> Vec<Rdma> {
    let ports: Vec<Vec<(RailPort, Port)>> = (0..world_size)
        .map(|rank| (0..rails).map(|rail| port(rank + rail)).collect())
        .collect();
    let prepare = |rank: usize| {
        let peers: Vec<bool> = (0..world_size).map(|peer| peer != rank).collect();
        let own: Vec<RailPort> = ports[rank].iter().map(|(rail, _)| rail.clone()).collect();
        UnconnectedPairs::new(rank, &peers, suite::CHANNELS, &own, options.clone())
    };
    let prepared: Vec<UnconnectedPairs> = (0..world_size)
        .map(|rank| prepare(rank).expect("queue pairs"))
        .collect();
    let pairs: Vec<Vec<Vec<u32>>> = prepared
        .iter()
        .map(|own| (0..world_size).map(|peer| own.pairs(peer)).collect())
        .collect();
    let connect = |(rank, own): (usize, UnconnectedPairs)| {
        own.connect(None, |peer, channel, rail| {
            let ((own, port), (_, theirs)) = (&ports[rank][rail], &ports[peer][rail]);
            let gid = theirs
                .gids
                .iter()
                .find(|(index, ..)| Some(*index) == theirs.gid_index());
            Ok(Route {
                port: own.port,
                gid_index: port.gid_index().unwrap_or(0),
                is_global: port.link_layer == LinkLayer::Ethernet,
                pair: pairs[peer][rank][channel],
                lid: theirs.lid,
                gid: gid.map_or([0; 16], |(.., gid)| *gid),
                mtu_bytes: port.mtu_bytes.min(theirs.mtu_bytes),
            })
        })
    };
    prepared
        .into_iter()
        .enumerate()
        .map(|ranks| connect(ranks).expect("a route"))
        .collect()
}

pub(crate) fn ranks(world_size: usize) -> Vec<Rdma> {
    connected(world_size, 1, &RdmaOptions::default())
}

/// Returns ranks that register the memory of each call.
pub(crate) fn registering(world_size: usize) -> Vec<Rdma> {
    let options = RdmaOptions {
        register_bytes_min: 1,
        ..RdmaOptions::default()
    };
    connected(world_size, 1, &options)
}

suite::transport_tests!(ranks);
suite::transport_tests!(
    ranks;
    a_peer_that_left_fails_its_sends,
    an_unexpected_message_is_seen_and_stays,
    sleepers_are_woken_by_their_peers,
);

/// Ranks whose channels take turns on two devices.
mod on_two_rails {
    use super::*;

    fn ranks(world_size: usize) -> Vec<Rdma> {
        connected(world_size, 2, &RdmaOptions::default())
    }

    suite::transport_tests!(ranks);
}

/// Ranks with few, small pieces, so that every message waits for them.
mod with_few_pieces {
    use super::*;

    fn ranks(world_size: usize) -> Vec<Rdma> {
        let options = RdmaOptions {
            piece_bytes: 4096,
            pieces: 2,
            ..RdmaOptions::default()
        };
        connected(world_size, 1, &options)
    }

    suite::transport_tests!(ranks);
}

/// Ranks that register the memory of each call.
mod with_registration_on_the_fly {
    use super::{registering, suite};

    suite::transport_tests!(registering);
}

#[test]
fn channels_of_collectives_take_turns_on_the_rails() {
    let rails: Vec<usize> = (0..6).map(|channel| rail_of(channel, [0, 1], 2)).collect();
    assert_eq!(rails, [0, 0, 1, 0, 1, 0]);
}

#[test]
fn both_ends_name_the_same_rail_and_pairs_between_two_hosts_take_turns() {
    let of = |one, other| rail_of(P2P_CHANNEL + 1, [one, other], 2);
    // Two hosts of four ranks.
    let rails: Vec<usize> = (0..4).map(|rank| of(rank, rank + 4)).collect();
    assert_eq!(rails, [0, 1, 0, 1]);
    let ring: Vec<usize> = (0..4).map(|rank| of(rank, rank + 1)).collect();
    assert_eq!(ring, [0, 1, 0, 1]);
    for (one, other) in [(0, 1), (2, 7), (5, 6)] {
        assert_eq!(of(one, other), of(other, one));
    }
}

/// Returns ranks without pieces: only held memory can be used for long messages.
fn without_pieces(world_size: usize) -> Vec<Rdma> {
    let options = RdmaOptions {
        pieces: 0,
        ..RdmaOptions::default()
    };
    connected(world_size, 1, &options)
}

#[test]
fn held_memory_is_read_and_written_in_place() {
    const BYTES: usize = 3 << 20;
    let mut world = TransportWorld::new(without_pieces(2));
    let (source, target) = (pattern(BYTES, 1), Owned::zeroed(BYTES));
    let holds = [
        world.ranks[0].hold(source.region(), Term::Long),
        world.ranks[1].hold(target.region(), Term::Long),
    ];
    assert!(holds.iter().all(Option::is_some));
    // The whole, then parts, in any order.
    for (index, part) in [(0, 0..BYTES), (1, 5001..700_003), (2, 9..9 + (1 << 20))] {
        let send = world.send(0, (1, 1), index, source.region().part(part.clone()));
        let into = Sink::Store(target.region().part(part.clone()));
        let recv = world.recv(1, (0, 1), index, into);
        world.run(&[send, recv]).unwrap();
        let [sent, came] = [&source, &target].map(|memory| {
            let part = memory.region().part(part.clone());
            suite::bytes_of(part)
        });
        assert!(sent == came, "message {index}");
    }
}

#[test]
fn the_memory_of_a_call_is_registered_by_windows_and_deregistered_behind() {
    const WINDOWS: usize = 40;
    let (rail, _) = port(0);
    let memory = Owned::zeroed(WINDOWS * memory::WINDOW_BYTES);
    let held = memory::HeldMemory::new(
        &rail.domain,
        memory.region(),
        MemoryAccess::PeersWrite,
        memory::WINDOW_BYTES,
    );
    let mut used = None;
    let mut at = 0;
    let mut windows = 0;
    while at < memory.region().bytes() {
        let rest = memory.region().part(at..memory.region().bytes());
        let (window, bytes) = held.window(rest).expect("room").expect("no end");
        assert!((1..=memory::WINDOW_BYTES).contains(&bytes));
        (at, windows) = (at + bytes, windows + 1);
        // The first window stays in use.
        used.get_or_insert(window);
        assert!(held.count() <= memory::WINDOWS_MAX + 1);
    }
    assert!(windows >= WINDOWS);
    let first = held
        .window(memory.region())
        .expect("room")
        .expect("no end")
        .0;
    assert!(used.is_some_and(|used| std::sync::Arc::ptr_eq(&used, &first)));
    held.end();
    assert!(held.window(memory.region()).expect("no error").is_none());
    assert_eq!(held.count(), 0);
}

#[test]
fn nothing_is_written_to_memory_that_was_given_back() {
    const BYTES: usize = 1 << 20;
    for gives_up in [false, true] {
        let mut world = TransportWorld::new(ranks(2));
        let (source, target) = (pattern(BYTES, 1), Owned::zeroed(BYTES));
        let hold = world.ranks[1].hold(target.region(), Term::Long);
        world.recv(1, (0, 1), 0, Sink::Store(target.region()));
        // Waits for the grant.
        for _ in 0..50 {
            world.round().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        if gives_up {
            drop(hold);
        } else {
            world.ranks[1].withdraw();
        }
        world.send(0, (1, 1), 0, source.region());
        let begin = Instant::now();
        let error = loop {
            assert!(
                begin.elapsed() < WATCHDOG,
                "a write to unregistered memory succeeded"
            );
            match world.round() {
                Ok(_) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::PeerFailed { .. }), "{error}");
        let content = suite::bytes_of(target.region());
        assert!(content.iter().all(|byte| *byte == 0), "a late write");
    }
}
