//! Tests of TCP over loopback within one process, and of frames written by hand.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::super::suite::{self, TransportWorld, bytes_of, header, pattern};
use super::super::{HEADER_BYTES, Post, checksum};
use super::*;
use crate::error::GONE;
use crate::reduce::Digest;

mod striped;

suite::transport_tests!(ranks);
suite::transport_tests!(
    ranks;
    a_peer_that_left_fails_its_sends,
    an_unexpected_message_is_seen_and_stays,
);

#[test]
fn sleepers_are_woken_by_their_peers() {
    suite::sleepers_are_woken_by_their_peers(ranks);
}

fn ranks(world_size: usize) -> Vec<Tcp> {
    ranks_of(world_size, 1)
}

/// Returns ranks with pieces so small that large messages take many, and with this many sockets for
/// each stream.
fn ranks_of(world_size: usize, sockets: usize) -> Vec<Tcp> {
    let options = TcpOptions {
        piece_bytes: 4096,
        ..TcpOptions::default()
    };
    let sockets = mesh(world_size, sockets).into_iter().enumerate();
    sockets
        .map(|(rank, sockets)| Tcp::new(rank, sockets, options.clone()).unwrap())
        .collect()
}

/// Returns each rank's sockets to each peer.
pub(in crate::transport) fn mesh(world_size: usize, each: usize) -> Vec<Sockets> {
    let stream = || (0..each).map(|_| unshared_pair()).unzip();
    let mut sockets: Vec<Sockets> = Vec::new();
    for rank in 0..world_size {
        let mut mine: Sockets = Vec::new();
        for (peer, theirs) in sockets.iter_mut().enumerate() {
            let (one, other) = (0..suite::CHANNELS).map(|_| stream()).unzip();
            assert_eq!(
                theirs.len(),
                rank,
                "rank {peer} knows the ranks before this one"
            );
            theirs.push(one);
            mine.push(other);
        }
        mine.push(Vec::new());
        sockets.push(mine);
    }
    sockets
}

fn unshared_pair() -> (Unshared, Unshared) {
    let (one, other) = pair();
    (Unshared::adopt(one), Unshared::adopt(other))
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// Returns rank 0, whose peer, rank 1, is a bare socket for the test.
fn with_bare_peer() -> (TransportWorld<Tcp>, TcpStream) {
    let (world, [theirs]) = with_bare_sockets();
    (world, theirs)
}

/// Returns rank 0, whose peer is several bare sockets.
fn with_bare_sockets<const N: usize>() -> (TransportWorld<Tcp>, [TcpStream; N]) {
    bare_sockets_with(TcpOptions::default())
}

fn bare_sockets_with<const N: usize>(options: TcpOptions) -> (TransportWorld<Tcp>, [TcpStream; N]) {
    let pairs = [(); N].map(|()| pair());
    let theirs = pairs
        .each_ref()
        .map(|(_, theirs)| theirs.try_clone().unwrap());
    let mine = pairs
        .into_iter()
        .map(|(mine, _)| Unshared::adopt(mine))
        .collect();
    let sockets = vec![Vec::new(), vec![mine]];
    let transport = Tcp::new(0, sockets, options).unwrap();
    (TransportWorld::new(vec![transport]), theirs)
}

/// Returns the frame of message 0 of the usual call.
fn frame(payload: &[u8]) -> Vec<u8> {
    frame_of(payload.len(), payload)
}

/// Returns the frame of a stripe of message 0, which has `bytes` bytes.
fn frame_of(bytes: usize, payload: &[u8]) -> Vec<u8> {
    let header = header(0, bytes);
    let sum = checksum::of(&header.encode(0)[..36]);
    let mut frame = header.encode(sum).to_vec();
    frame.extend(payload);
    if !payload.is_empty() {
        frame.extend(Digest::of(payload).to_le_bytes());
    }
    frame
}

#[test]
fn a_frame_on_the_wire_is_as_documented() {
    for bytes in [0, 5, 100_000] {
        let (mut world, mut peer) = with_bare_peer();
        let payload = pattern(bytes, 1);
        let send = world.send(0, (1, 0), 0, payload.region());
        world.run(&[send]).unwrap();
        drop(world);
        let mut came = Vec::new();
        peer.read_to_end(&mut came).unwrap();
        assert!(
            came == frame(&bytes_of(payload.region())),
            "a frame of {bytes} bytes"
        );
    }
}

#[test]
fn a_frame_may_come_byte_by_byte() {
    let (mut world, mut peer) = with_bare_peer();
    let payload = pattern(200, 1);
    let kernel = crate::reduce::ReductionKernel::new(crate::Op::Bxor, crate::DType::U8).unwrap();
    let (with, into) = (pattern(200, 2), Owned::zeroed(200));
    let sink = Sink::Reduce {
        with: with.region(),
        into: into.region(),
        kernel,
    };
    let recv = world.recv(0, (1, 0), 0, sink);
    for byte in frame(&bytes_of(payload.region())) {
        assert!(!world.is_done(recv));
        peer.write_all(&[byte]).unwrap();
        world.round().unwrap();
    }
    world.run(&[recv]).unwrap();
    let whole = Owned::zeroed(200);
    kernel.fold(whole.region(), &[with.region(), payload.region()]);
    assert_eq!(bytes_of(into.region()), bytes_of(whole.region()));
}

#[test]
fn any_flipped_bit_is_corrupt() {
    let payload = bytes_of(pattern(100, 1).region());
    let sound = frame(&payload);
    for bit in (0..sound.len() * 8).step_by(7) {
        let (mut world, mut peer) = with_bare_peer();
        let target = Owned::zeroed(100);
        let recv = world.recv(0, (1, 0), 0, Sink::Store(target.region()));
        let mut damaged = sound.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        peer.write_all(&damaged).unwrap();
        let error = world.run(&[recv]).unwrap_err();
        assert!(
            matches!(error, Error::Corrupt { peer: 1, .. }),
            "bit {bit}: {error}"
        );
    }
}

/// Returns the head of the stream from the bare peer once it is not empty.
fn head(world: &mut TransportWorld<Tcp>) -> Result<Head> {
    let stream = StreamId {
        peer: 1,
        channel: 0,
    };
    world.ranks[0].listen(stream, true)?;
    for _ in 0..1000 {
        world.round()?;
        match world.ranks[0].head(stream)? {
            Head::Nothing => world.ranks[0].block(Duration::from_millis(1))?,
            found => return Ok(found),
        }
    }
    Ok(Head::Nothing)
}

#[test]
fn any_flipped_bit_of_what_is_listened_for_is_corrupt() {
    let payload = bytes_of(pattern(100, 1).region());
    let sound = frame(&payload);
    for bit in (0..sound.len() * 8).step_by(7) {
        let (mut world, mut peer) = with_bare_peer();
        let mut damaged = sound.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        peer.write_all(&damaged).unwrap();
        let target = Owned::zeroed(100);
        let error = head(&mut world).and_then(|found| {
            assert_eq!(found, Head::Message(header(0, 100)), "bit {bit}");
            let recv = world.recv(0, (1, 0), 0, Sink::Store(target.region()));
            world.run(&[recv])
        });
        let error = error.unwrap_err();
        assert!(
            matches!(error, Error::Corrupt { peer: 1, .. }),
            "bit {bit}: {error}"
        );
    }
}

#[test]
fn what_is_listened_for_may_come_byte_by_byte() {
    let (mut world, mut peer) = with_bare_peer();
    let payload = pattern(200, 1);
    let target = Owned::zeroed(200);
    let frame = frame(&bytes_of(payload.region()));
    for byte in &frame[..HEADER_BYTES + 50] {
        peer.write_all(&[*byte]).unwrap();
        world.round().unwrap();
    }
    assert_eq!(head(&mut world).unwrap(), Head::Message(header(0, 200)));
    let recv = world.recv(0, (1, 0), 0, Sink::Store(target.region()));
    for byte in &frame[HEADER_BYTES + 50..] {
        assert!(!world.is_done(recv));
        peer.write_all(&[*byte]).unwrap();
        world.round().unwrap();
    }
    world.run(&[recv]).unwrap();
    assert_eq!(bytes_of(payload.region()), bytes_of(target.region()));
}

#[test]
fn a_listener_tells_an_end_from_a_cut() {
    let sound = frame(&[7; 500]);
    for cut in [0, 1, 39] {
        let (mut world, mut peer) = with_bare_peer();
        peer.write_all(&sound[..cut]).unwrap();
        drop(peer);
        match (cut, head(&mut world)) {
            (0, Ok(Head::End(reason))) => assert_eq!(reason, GONE),
            (1.., Err(Error::PeerFailed { rank: 1, .. })) => {}
            (_, other) => panic!("cut at {cut}: {other:?}"),
        }
    }
}

#[test]
fn a_large_flipped_payload_is_corrupt() {
    let (mut world, mut peer) = with_bare_peer();
    let target = Owned::zeroed(100_000);
    let recv = world.recv(0, (1, 0), 0, Sink::Store(target.region()));
    let mut damaged = frame(&bytes_of(pattern(100_000, 1).region()));
    damaged[77_777] ^= 4;
    let writer = std::thread::spawn(move || peer.write_all(&damaged).unwrap());
    let error = world.run(&[recv]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { peer: 1, .. }), "{error}");
    writer.join().unwrap();
}

#[test]
fn a_connection_cut_within_a_frame_is_a_failed_peer() {
    let sound = frame(&[7; 500]);
    for cut in [0, 1, 39, 40, 41, 300, 540, 543] {
        let (mut world, mut peer) = with_bare_peer();
        let target = Owned::zeroed(500);
        let recv = world.recv(0, (1, 0), 0, Sink::Store(target.region()));
        peer.write_all(&sound[..cut]).unwrap();
        drop(peer);
        match world.run(&[recv]) {
            Err(Error::PeerFailed {
                rank: 1, reason, ..
            }) => {
                assert_eq!(reason, GONE);
            }
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
}

#[test]
fn a_closed_connection_is_no_error_while_nothing_is_due() {
    let (mut world, peer) = with_bare_peer();
    drop(peer);
    for _ in 0..3 {
        assert!(!world.round().unwrap());
        world.ranks[0].block(Duration::ZERO).unwrap();
    }
}

#[test]
fn a_reset_connection_fails_a_send() {
    let (mut world, peer) = with_bare_peer();
    let payload = pattern(64 << 20, 1);
    let send = world.send(0, (1, 0), 0, payload.region());
    // Closing with unread bytes resets.
    drop(peer);
    let error = world.run(&[send]).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 1, .. }),
        "{error}"
    );
}

#[test]
fn a_silent_host_is_told_from_a_late_reader() {
    // A peer without room acknowledges, and is then probed ever more rarely: full, not silent.
    let (mut world, _peer) = with_bare_peer();
    let payload = pattern(16 << 20, 1);
    let send = world.send(0, (1, 0), 0, payload.region());
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        world.now = Time::default().after(begin.elapsed());
        world.round().unwrap();
        world.ranks[0].block(Duration::from_millis(20)).unwrap();
    }
    assert!(!world.is_done(send));
    world.ranks[0].silence = Silence::of(Duration::from_millis(1));
    world.now = world.now.after(QUIET_CHECK);
    world.round().expect("a full peer is not silent");
}

#[test]
fn a_silent_host_is_a_failed_peer() {
    let (mut world, _peer) = with_bare_peer();
    world.ranks[0].silence = Silence::of(Duration::from_millis(20));
    let target = Owned::zeroed(10);
    world.recv(0, (1, 0), 0, Sink::Store(target.region()));
    let begin = std::time::Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(30), "not noticed");
        world.now = world.now.after(QUIET_CHECK);
        match world.round() {
            Ok(_) => world.ranks[0].block(Duration::from_millis(5)).unwrap(),
            Err(error) => {
                assert!(
                    matches!(error, Error::PeerFailed { rank: 1, .. }),
                    "{error}"
                );
                return;
            }
        }
    }
}

#[test]
fn garbage_is_an_error_and_nothing_else() {
    for seed in 0..200 {
        let (mut world, mut peer) = with_bare_peer();
        let target = Owned::zeroed(60);
        let recv = world.recv(0, (1, 0), 0, Sink::Store(target.region()));
        peer.write_all(&bytes_of(pattern(seed as usize, seed).region()))
            .unwrap();
        drop(peer);
        let error = world.run(&[recv]).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Corrupt { peer: 1, .. } | Error::PeerFailed { rank: 1, .. }
            ),
            "seed {seed}: {error}"
        );
    }
}

#[test]
fn a_channel_without_a_connection_is_refused() {
    let (mut world, _peer) = with_bare_peer();
    let stream = StreamId {
        peer: 1,
        channel: 1,
    };
    let error = world.ranks[0]
        .post_send(Post(stream, 1, header(0, 0)), Region::EMPTY)
        .unwrap_err();
    assert_eq!(error.class(), "InvalidArgument");
}
