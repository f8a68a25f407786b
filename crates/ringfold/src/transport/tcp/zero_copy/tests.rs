//! Tests of lent payloads over loopback, where the kernel makes its copy on arrival: bytes for
//! which the peer has no room stay lent.

use std::io::Read;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;
use crate::memory::Owned;
use crate::skipped::skipped;
use crate::transport::suite::{self, TransportWorld, bytes_of, pattern};
use crate::transport::tcp::tests::{frame, mesh, pair, with_bare_peer_and};
use crate::transport::tcp::{Tcp, TcpOptions};
use crate::transport::{Sink, Transport};

mod always {
    use super::*;

    suite::transport_tests!(|world_size| ranks(world_size, ZeroCopy::Always));

    #[test]
    fn sleepers_are_woken_by_their_peers() {
        suite::sleepers_are_woken_by_their_peers(|world_size| ranks(world_size, ZeroCopy::Always));
    }
}

/// Length of a payload: more than the room of a peer that does not read, and less than that of the
/// sender's kernel.
const BYTES: usize = 256 << 10;

/// Room in the sender's kernel for all of a payload.
const SEND_BUFFER_BYTES: usize = 4 * BYTES;

/// Maximum wait for the end of a connection.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Held by tests that need the kernel to accept lent payloads, or to refuse them: the limit is the
/// process'.
static LOCKED_MEMORY: Mutex<()> = Mutex::new(());

fn ranks(world_size: usize, zero_copy: ZeroCopy) -> Vec<Tcp> {
    let options = TcpOptions {
        piece_bytes: 4096,
        zero_copy,
        ..TcpOptions::default()
    };
    let sockets = mesh(world_size, 1).into_iter().enumerate();
    sockets
        .map(|(rank, sockets)| Tcp::new(rank, sockets, options.clone()).unwrap())
        .collect()
}

/// Returns rank 0 with a bare peer, and message 0 to the peer, sent as far as possible while the
/// peer does not read.
fn send_to_bare_peer(
    setting: ZeroCopy,
    payload: &Owned,
) -> (TransportWorld<Tcp>, TcpStream, suite::RankTicket) {
    let (mut world, peer) = with_bare_peer_and(TcpOptions {
        zero_copy: setting,
        socket_buffer_bytes: Some(SEND_BUFFER_BYTES),
        ..TcpOptions::default()
    });
    let send = world.send(0, (1, 0), 0, payload.region());
    for _ in 0..10 {
        world.round().unwrap();
    }
    (world, peer, send)
}

/// Whether this process may lock as much memory as a payload has; if not, records the test that
/// needs it as skipped.
fn may_lend(payload: &Owned) -> bool {
    let (socket, _peer) = pair();
    let mut lent = Lent::new(1, socket.as_fd(), ZeroCopy::Always).unwrap();
    lent.begin(1, BYTES);
    lent.send(socket.as_fd(), payload.region()).unwrap();
    if !lent.is_any() {
        skipped("the limit of locked memory is less than a payload");
    }
    lent.is_any()
}

fn read_all(mut peer: TcpStream) -> thread::JoinHandle<Vec<u8>> {
    peer.set_read_timeout(Some(WATCHDOG)).unwrap();
    thread::spawn(move || {
        let mut came = Vec::new();
        // A reset ends the read; the bytes before are valid.
        let _ = peer.read_to_end(&mut came);
        came
    })
}

#[test]
fn a_payload_is_not_given_back_before_the_peer_has_all_of_it() {
    let _locked = LOCKED_MEMORY.lock();
    let payload = pattern(BYTES, 1);
    if !may_lend(&payload) {
        return;
    }
    let expected = frame(&bytes_of(payload.region()));
    let (mut world, peer, send) = send_to_bare_peer(ZeroCopy::Always, &payload);
    let overwrite = || payload.region().write(&vec![0; BYTES]);
    let was_early = world.is_done(send);
    if was_early {
        overwrite();
    }
    let reader = read_all(peer);
    world.run(&[send]).unwrap();
    overwrite();
    drop(world);
    assert!(
        reader.join().unwrap() == expected,
        "the received bytes differ from the sent ones"
    );
    assert!(
        !was_early,
        "completed while the payload was lent to the kernel"
    );
}

#[test]
fn copies_that_the_kernel_reports_end_the_trial() {
    let _locked = LOCKED_MEMORY.lock();
    let mut world = TransportWorld::new(ranks(2, ZeroCopy::Auto));
    let (payload, target) = (pattern(BYTES, 1), Owned::zeroed(BYTES));
    if !may_lend(&payload) {
        return;
    }
    for index in 0..2 * COPIES_MAX {
        let send = world.send(0, (1, 0), index, payload.region());
        let recv = world.recv(1, (0, 0), index, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
    }
    let connections = world.ranks[0].connections.all_mut();
    let choices: Vec<_> = connections.map(|c| c.outgoing.lends()).collect();
    assert!(
        !choices[0],
        "the kernel's copies on loopback went unnoticed"
    );
    assert!(choices[1], "another connection has its own trial");
}

#[test]
fn many_payloads_are_lent_at_once() {
    const MESSAGES: u32 = 40;
    let mut world = TransportWorld::new(ranks(2, ZeroCopy::Always));
    let payloads: Vec<_> = (0..MESSAGES)
        .map(|index| pattern(BYTES / 2, index.into()))
        .collect();
    let expected: Vec<_> = payloads
        .iter()
        .map(|payload| bytes_of(payload.region()))
        .collect();
    let targets: Vec<_> = payloads.iter().map(|_| Owned::zeroed(BYTES / 2)).collect();
    let send = |(index, payload): (u32, &Owned)| world.send(0, (1, 0), index, payload.region());
    let sends: Vec<_> = (0..).zip(&payloads).map(send).collect();
    for _ in 0..10 {
        world.round().unwrap();
    }
    let recv =
        |(index, target): (u32, &Owned)| world.recv(1, (0, 0), index, Sink::Store(target.region()));
    let recvs: Vec<_> = (0..).zip(&targets).map(recv).collect();
    // Each payload is overwritten as soon as its send is complete.
    for (send, payload) in sends.iter().zip(&payloads) {
        world.run(&[*send]).unwrap();
        payload.region().write(&vec![0; BYTES / 2]);
    }
    world.run(&recvs).unwrap();
    for (target, expected) in targets.iter().zip(&expected) {
        assert!(bytes_of(target.region()) == *expected);
    }
}

#[test]
fn a_peer_that_is_killed_gives_back_what_was_lent() {
    let _locked = LOCKED_MEMORY.lock();
    let payload = pattern(BYTES, 1);
    if !may_lend(&payload) {
        return;
    }
    let (mut world, peer, send) = send_to_bare_peer(ZeroCopy::Always, &payload);
    assert!(!world.is_done(send));
    // Closing with unread bytes resets, as the kernel does for a killed process.
    drop(peer);
    world.run(&[send]).unwrap();
}

#[test]
fn what_is_withdrawn_is_not_sent_any_more() {
    let _locked = LOCKED_MEMORY.lock();
    let payload = pattern(BYTES, 1);
    if !may_lend(&payload) {
        return;
    }
    let expected = frame(&bytes_of(payload.region()));
    let (mut world, peer, send) = send_to_bare_peer(ZeroCopy::Always, &payload);
    assert!(!world.is_done(send));
    world.ranks[0].withdraw();
    payload.region().write(&vec![0; BYTES]);
    let came = read_all(peer).join().unwrap();
    assert!(came.len() < expected.len(), "nothing was left to withdraw");
    assert!(
        expected.starts_with(&came),
        "the peer received bytes that the owner wrote later"
    );
}

#[test]
fn what_the_kernel_refuses_is_copied() {
    let _locked = LOCKED_MEMORY.lock();
    // Runs in a thread, whose capabilities are its own.
    let refused = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        let limit = getrlimit(Resource::Memlock);
        let none = Rlimit {
            current: Some(0),
            ..limit
        };
        setrlimit(Resource::Memlock, none).unwrap();
        let payload = pattern(BYTES, 1);
        let expected = frame(&bytes_of(payload.region()));
        let (world, peer, send) = send_to_bare_peer(ZeroCopy::Always, &payload);
        setrlimit(Resource::Memlock, limit).unwrap();
        assert!(world.is_done(send), "nothing was copied");
        payload.region().write(&vec![0; BYTES]);
        drop(world);
        assert!(read_all(peer).join().unwrap() == expected);
    };
    thread::spawn(refused).join().unwrap();
}

/// Returns a `Lent` with messages of so many sends each, the first of which has the number `next`.
fn lent(next: u64, sends: &[u64]) -> Lent {
    let (socket, _peer) = pair();
    let mut lent = Lent::new(1, socket.as_fd(), ZeroCopy::Always).unwrap();
    lent.next = next;
    for (ticket, sends) in (100..).zip(sends) {
        lent.messages.push_back(LentMessage {
            ticket,
            first: lent.next,
            sends: *sends,
            unreported: *sends,
            is_sent: true,
        });
        lent.next += sends;
        lent.unreported += sends;
    }
    lent
}

fn report(first: u32, last: u32) -> SendNotification {
    SendNotification {
        first,
        last,
        is_copied: false,
    }
}

#[test]
fn a_message_is_complete_when_all_its_sends_are_reported() {
    // The kernel's numbers begin again here.
    let mut lent = lent((1 << 32) - 3, &[2, 3, 1]);
    let left = |lent: &Lent| {
        lent.messages
            .iter()
            .map(|m| m.unreported)
            .collect::<Vec<_>>()
    };
    lent.note(report(u32::MAX - 1, 0)).unwrap();
    assert_eq!(left(&lent), [1, 1, 1]);
    lent.note(report(2, 2)).unwrap();
    lent.note(report(u32::MAX - 2, u32::MAX - 2)).unwrap();
    assert_eq!(left(&lent), [0, 1, 0]);
    lent.note(report(1, 1)).unwrap();
    assert!(!lent.is_any());
}

#[test]
fn a_report_that_cannot_be_is_an_error() {
    // Reports in the wrong order, beyond the last send, and twice.
    for (first, last) in [(5, 4), (4, 6), (8, 8), (3, 3)] {
        let mut lent = lent(3, &[2, 1]);
        lent.note(report(3, 4)).unwrap();
        let refused = lent.note(report(first, last));
        assert!(refused.is_err(), "{first} to {last}");
    }
}

#[test]
fn what_the_variable_may_say() {
    for (text, setting) in [
        ("auto", Ok(ZeroCopy::Auto)),
        ("0", Ok(ZeroCopy::Never)),
        ("1", Ok(ZeroCopy::Always)),
        ("on", Err("must be auto, 0 or 1".into())),
    ] {
        assert_eq!(text.parse(), setting);
    }
}
