//! Tests that messages arrive whole and in order, and that an unexpected one is an error.

use super::{CHANNELS, SIZES, TransportWorld, bytes_of, call, header, pattern};
use crate::error::Error;
use crate::memory::Owned;
use crate::reduce::ReductionKernel;
use crate::transport::{Header, Sink, Transport};
use crate::types::{DType, Op, Protocol};

pub fn messages_of_every_odd_size_arrive<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    for (index, bytes) in SIZES.into_iter().enumerate() {
        let (source, target) = (pattern(bytes, index as u64), Owned::zeroed(bytes));
        let index = index as u32;
        let send = world.send(0, (1, 0), index, source.region());
        let recv = world.recv(1, (0, 0), index, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "{bytes} bytes arrived wrong"
        );
    }
}

pub fn a_receive_may_be_posted_before_its_send<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    let (source, target) = (pattern(300_000, 1), Owned::zeroed(300_000));
    let recv = world.recv(1, (0, 1), 0, Sink::Store(target.region()));
    for _ in 0..3 {
        world.round().unwrap();
    }
    assert!(!world.is_done(recv));
    let send = world.send(0, (1, 1), 0, source.region());
    world.run(&[send, recv]).unwrap();
    assert!(bytes_of(source.region()) == bytes_of(target.region()));
}

pub fn a_send_may_be_posted_before_its_receive<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    let (source, target) = (pattern(3_000_000, 1), Owned::zeroed(3_000_000));
    let send = world.send(0, (1, 1), 0, source.region());
    for _ in 0..3 {
        world.round().unwrap();
    }
    let recv = world.recv(1, (0, 1), 0, Sink::Store(target.region()));
    world.run(&[send, recv]).unwrap();
    assert!(bytes_of(source.region()) == bytes_of(target.region()));
}

pub fn many_messages_of_a_stream_keep_their_order<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    let sources: Vec<_> = (0..300)
        .map(|i| pattern((i * 37) % 2000, i as u64))
        .collect();
    let targets: Vec<_> = (0..300).map(|i| Owned::zeroed((i * 37) % 2000)).collect();
    let mut postings = Vec::new();
    for (index, (source, target)) in sources.iter().zip(&targets).enumerate() {
        postings.push(world.send(0, (1, 0), index as u32, source.region()));
        postings.push(world.recv(1, (0, 0), index as u32, Sink::Store(target.region())));
    }
    world.run(&postings).unwrap();
    for (index, (source, target)) in sources.iter().zip(&targets).enumerate() {
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "message {index} arrived wrong"
        );
    }
}

pub fn streams_do_not_wait_for_each_other<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    let (source, target) = (pattern(5000, 1), Owned::zeroed(5000));
    let stuck = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    for channel in 1..CHANNELS {
        let target = Owned::zeroed(5000);
        let send = world.send(0, (1, channel), 9, source.region());
        let recv = world.recv(1, (0, channel), 9, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
        assert!(bytes_of(source.region()) == bytes_of(target.region()));
    }
    assert!(!world.is_done(stuck));
    let send = world.send(0, (1, 0), 0, source.region());
    world.run(&[send, stuck]).unwrap();
}

pub fn everyone_sends_to_everyone_at_once<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    const BYTES: usize = 700_001;
    let mut world = TransportWorld::new(make(4));
    let sources: Vec<_> = (0..4).map(|rank| pattern(BYTES, rank)).collect();
    let mut targets = Vec::new();
    let mut postings = Vec::new();
    for (rank, source) in sources.iter().enumerate() {
        for peer in (0..4).filter(|peer| *peer != rank) {
            let target = Owned::zeroed(BYTES);
            postings.push(world.send(rank, (peer, 2), 3, source.region()));
            postings.push(world.recv(rank, (peer, 2), 3, Sink::Store(target.region())));
            targets.push((peer, target));
        }
    }
    world.run(&postings).unwrap();
    for (peer, target) in &targets {
        assert!(bytes_of(sources[*peer].region()) == bytes_of(target.region()));
    }
}

pub fn a_reduced_message_equals_the_whole_fold<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    let kernel = ReductionKernel::new(Op::Sum, DType::I32).unwrap();
    let sizes = [0, 4, 16, 4092, 131_076, (1 << 20) + 4];
    let by_both_protocols = sizes.into_iter().flat_map(|bytes| [bytes; 2]);
    for (index, bytes) in by_both_protocols.enumerate() {
        let (source, mine) = (pattern(bytes, 1), pattern(bytes, 2));
        let (into, whole) = (Owned::zeroed(bytes), Owned::zeroed(bytes));
        let sink = Sink::Reduce {
            with: mine.region(),
            into: into.region(),
            kernel,
        };
        let header = header(index as u32, bytes);
        let send = world.send_with(0, (1, 0), header, source.region());
        let recv = world.recv_with(1, (0, 0), header, sink);
        world.run(&[send, recv]).unwrap();
        kernel.fold(whole.region(), &[mine.region(), source.region()]);
        assert!(
            bytes_of(into.region()) == bytes_of(whole.region()),
            "{bytes} bytes were reduced wrong"
        );
    }
}

pub fn a_different_call_is_a_mismatch_that_names_both<T: Transport>(
    make: impl Fn(usize) -> Vec<T>,
) {
    let mut world = TransportWorld::new(make(2));
    let (source, target) = (pattern(64, 1), Owned::zeroed(64));
    let theirs = Header {
        call: call(1234),
        ..header(0, 64)
    };
    let send = world.send_with(0, (1, 0), theirs, source.region());
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    match world.run(&[send, recv]) {
        Err(Error::Mismatch {
            ranks: [1, 0],
            calls,
            ..
        }) => {
            let [mine, other] = *calls;
            assert!(mine.contains("of 7 "), "not this rank's call: {mine}");
            assert!(other.contains("of 1234 "), "not the peer's call: {other}");
        }
        other => panic!("not a mismatch of ranks 1 and 0: {other:?}"),
    }
    assert_eq!(
        bytes_of(target.region()),
        [0; 64],
        "the refused message was delivered"
    );
}

/// Ranks that choose differently are in different calls.
pub fn a_different_protocol_is_a_mismatch<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    for (sent, due) in [
        (Protocol::Simple, Protocol::Ll),
        (Protocol::Ll, Protocol::Simple),
    ] {
        let mut world = TransportWorld::new(make(2));
        let (source, target) = (pattern(8, 1), Owned::zeroed(8));
        let by = |protocol| {
            let mut header = header(0, 8);
            header.call.is_inline = protocol == Protocol::Ll;
            header
        };
        let send = world.send_with(0, (1, 0), by(sent), source.region());
        let recv = world.recv_with(1, (0, 0), by(due), Sink::Store(target.region()));
        let refused = world.run(&[send, recv]);
        assert!(
            matches!(refused, Err(Error::Mismatch { .. })),
            "{refused:?}"
        );
        assert_eq!(
            bytes_of(target.region()),
            [0; 8],
            "the refused message was delivered"
        );
    }
}

pub fn a_wrong_slice_is_corrupt<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    let (source, target) = (pattern(64, 1), Owned::zeroed(64));
    let theirs = Header {
        slice: 3,
        ..header(0, 64)
    };
    let send = world.send_with(0, (1, 0), theirs, source.region());
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    let error = world.run(&[send, recv]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { peer: 0, .. }), "{error}");
    assert_eq!(
        bytes_of(target.region()),
        [0; 64],
        "the refused message was delivered"
    );
}

pub fn a_peer_that_left_fails_its_receives<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    let target = Owned::zeroed(64);
    let recv = world.recv(0, (1, 1), 0, Sink::Store(target.region()));
    world.round().unwrap();
    drop(world.ranks.pop());
    let error = world.run(&[recv]).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 1, .. }),
        "{error}"
    );
}

/// Tests sends to a peer that left, for transports on which a departure is not final when others
/// learn of it.
pub fn a_peer_that_left_fails_its_sends<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    // More than a transport has room for if no message is taken.
    const MESSAGES: u32 = 2000;
    let mut world = TransportWorld::new(make(2));
    let source = pattern(3000, 1);
    drop(world.ranks.pop());
    let mut send = |index| {
        let sent = world.send(0, (1, 1), index, source.region());
        world.run(&[sent])
    };
    let error = (0..MESSAGES).find_map(|index| send(index).err());
    assert!(
        matches!(error, Some(Error::PeerFailed { rank: 1, .. })),
        "{error:?}"
    );
}

pub fn what_was_sent_before_leaving_arrives<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = TransportWorld::new(make(2));
    let (source, target) = (pattern(5000, 1), Owned::zeroed(5000));
    let first = world.recv(0, (1, 1), 0, Sink::Store(target.region()));
    let send = world.send(1, (0, 1), 0, source.region());
    world.run(&[send]).unwrap();
    drop(world.ranks.pop());
    world.run(&[first]).unwrap();
    assert!(bytes_of(source.region()) == bytes_of(target.region()));
    let second = world.recv(0, (1, 1), 1, Sink::Store(target.region()));
    let error = world.run(&[second]).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 1, .. }),
        "{error}"
    );
}
