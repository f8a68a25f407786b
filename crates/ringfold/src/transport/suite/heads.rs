//! Tests of the header of a stream's next message, seen before a receive is posted.

use std::time::Instant;

use super::{SIZES, TransportWorld, WATCHDOG, bytes_of, call, header, pattern};
use crate::error::Error;
use crate::memory::Owned;
use crate::transport::{Head, Header, Sink, StreamId, Transport};

/// Waits for the head of `at`'s stream from a peer.
fn awaited_head<T: Transport>(
    world: &mut TransportWorld<T>,
    at: usize,
    from: (usize, usize),
) -> Head {
    let (peer, channel) = from;
    let stream = StreamId { peer, channel };
    let begin = Instant::now();
    loop {
        world.round().unwrap();
        match world.ranks[at].head(stream).unwrap() {
            Head::Nothing => {}
            found => return found,
        }
        assert!(begin.elapsed() < WATCHDOG, "no head on {stream:?}");
        world.pass();
    }
}

fn listen<T: Transport>(world: &mut TransportWorld<T>, at: usize, (peer, channel): (usize, usize)) {
    let stream = StreamId { peer, channel };
    world.ranks[at].listen(stream, true).unwrap();
    assert_eq!(world.ranks[at].head(stream).unwrap(), Head::Nothing);
}

pub fn a_head_is_seen_before_its_receive_is_posted<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    listen(&mut world, 1, (0, 0));
    for (index, bytes) in SIZES.into_iter().enumerate() {
        let (source, target) = (pattern(bytes, index as u64), Owned::zeroed(bytes));
        let send = world.send(0, (1, 0), index as u32, source.region());
        let due = header(index as u32, bytes);
        // The message stays in place however often its head is read.
        for _ in 0..2 {
            let head = awaited_head(&mut world, 1, (0, 0));
            assert_eq!(head, Head::Message(due), "{bytes} bytes");
        }
        let recv = world.recv(1, (0, 0), index as u32, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "{bytes} bytes arrived wrong"
        );
    }
}

pub fn heads_of_messages_in_a_row_are_seen_one_after_the_other<T: Transport>(
    make: impl Fn(usize) -> Vec<T>,
) {
    let bytes = |index: usize| [0, 10, 9000, 1, 300_000, 8192, 40][index % 7];
    let mut world = TransportWorld::new(make(2));
    listen(&mut world, 1, (0, 2));
    let sources: Vec<_> = (0..50)
        .map(|index| pattern(bytes(index), index as u64))
        .collect();
    let sends: Vec<_> = (0..50)
        .map(|index| world.send(0, (1, 2), index as u32, sources[index].region()))
        .collect();
    for (index, source) in sources.iter().enumerate() {
        // A rank that does not listen for a while misses nothing.
        let stream = StreamId {
            peer: 0,
            channel: 2,
        };
        world.ranks[1].listen(stream, index % 3 > 0).unwrap();
        world.round().unwrap();
        world.ranks[1].listen(stream, true).unwrap();
        let head = awaited_head(&mut world, 1, (0, 2));
        assert_eq!(head, Head::Message(header(index as u32, bytes(index))));
        let target = Owned::zeroed(bytes(index));
        world.ranks[1].listen(stream, index % 2 == 0).unwrap();
        let recv = world.recv(1, (0, 2), index as u32, Sink::Store(target.region()));
        world.run(&[recv]).unwrap();
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "message {index}"
        );
    }
    world.run(&sends).unwrap();
}

pub fn a_head_leaves_other_streams_alone<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(3));
    let source = pattern(100_000, 1);
    for peer in [0, 2] {
        listen(&mut world, 1, (peer, 0));
    }
    let waits = world.send(0, (1, 0), 0, source.region());
    for (from, to) in [(0, 1), (1, 0), (2, 1)] {
        let target = Owned::zeroed(100_000);
        let send = world.send(from, (to, 1), 7, source.region());
        let recv = world.recv(to, (from, 1), 7, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
        assert!(bytes_of(source.region()) == bytes_of(target.region()));
    }
    let head = awaited_head(&mut world, 1, (0, 0));
    assert_eq!(head, Head::Message(header(0, 100_000)));
    let stream = StreamId {
        peer: 2,
        channel: 0,
    };
    assert_eq!(world.ranks[1].head(stream).unwrap(), Head::Nothing);
    let target = Owned::zeroed(100_000);
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    world.run(&[waits, recv]).unwrap();
}

pub fn the_end_of_a_stream_is_seen_behind_its_last_message<T: Transport>(
    make: impl Fn(usize) -> Vec<T>,
) {
    let mut world = TransportWorld::new(make(2));
    let (source, target) = (pattern(5000, 1), Owned::zeroed(5000));
    listen(&mut world, 0, (1, 1));
    // A receive takes the only message.
    let first = world.recv(0, (1, 1), 0, Sink::Store(target.region()));
    let send = world.send(1, (0, 1), 0, source.region());
    world.run(&[send, first]).unwrap();
    drop(world.ranks.pop());
    let head = awaited_head(&mut world, 0, (1, 1));
    assert!(matches!(head, Head::End(_)), "{head:?}");
    let second = world.recv(0, (1, 1), 1, Sink::Store(target.region()));
    let error = world.run(&[second]).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 1, .. }),
        "{error}"
    );
}

pub fn a_different_receive_than_the_head_is_a_mismatch<T: Transport>(
    make: impl Fn(usize) -> Vec<T>,
) {
    let mut world = TransportWorld::new(make(2));
    listen(&mut world, 1, (0, 0));
    let (source, target) = (pattern(64, 1), Owned::zeroed(64));
    let theirs = Header {
        call: call(1234),
        ..header(0, 64)
    };
    let send = world.send_with(0, (1, 0), theirs, source.region());
    assert_eq!(awaited_head(&mut world, 1, (0, 0)), Head::Message(theirs));
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    let error = world.run(&[send, recv]).unwrap_err();
    assert_eq!(error.class(), "Mismatch", "{error}");
    assert_eq!(
        bytes_of(target.region()),
        [0; 64],
        "the refused message was delivered"
    );
}

/// Tests the search for messages without a posted receive, for transports that support it.
pub fn an_unexpected_message_is_seen_and_stays<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    for bytes in [0, 8, 9000, 300_000] {
        let mut world = TransportWorld::new(make(3));
        let (source, target) = (pattern(bytes, 1), Owned::zeroed(bytes));
        // Not found: a message to another rank, and one on the channel of `send`.
        let elsewhere = world.send(0, (2, 1), 0, source.region());
        let message = world.send(0, (1, 0), 0, source.region());
        let send = world.send(0, (1, 1), 0, source.region());
        let stream = StreamId {
            peer: 0,
            channel: 1,
        };
        let begin = Instant::now();
        let mut found = Vec::new();
        while found.len() < 2 {
            assert!(begin.elapsed() < WATCHDOG, "{bytes} bytes: {found:?}");
            world.round().unwrap();
            world.ranks[1].unexpected(&mut found).unwrap();
            world.pass();
        }
        found
            .iter()
            .for_each(|one| assert_eq!(*one, (stream, header(0, bytes))));
        let other = Owned::zeroed(bytes);
        let received = [
            world.recv(1, (0, 1), 0, Sink::Store(target.region())),
            world.recv(2, (0, 1), 0, Sink::Store(other.region())),
        ];
        world
            .run(&[send, elsewhere, received[0], received[1]])
            .unwrap();
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "{bytes} bytes"
        );
        found.clear();
        world.ranks[1].unexpected(&mut found).unwrap();
        assert_eq!(found, []);
        // The sender would otherwise wait for this receive.
        let target = Owned::zeroed(bytes);
        let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
        world.run(&[message, recv]).unwrap();
    }
}
