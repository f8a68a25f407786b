//! Tests of streams of several sockets.

use std::ops::Range;

use super::*;
use crate::reduce::ReductionKernel;
use crate::{DType, Op};

suite::transport_tests!(ranks_of_three);
suite::transport_tests!(
    ranks_of_three;
    a_peer_that_left_fails_its_sends,
    an_unexpected_message_is_seen_and_stays,
);

fn ranks_of_three(world_size: usize) -> Vec<Tcp> {
    ranks_of(world_size, 3)
}

/// Length of a message that three sockets share, the last with less than the others.
const BYTES: usize = 100_001;
const PARTS: [Range<usize>; 3] = [0..33_344, 33_344..66_688, 66_688..BYTES];

/// Returns the frame on each socket.
fn frames(payload: &[u8]) -> [Vec<u8>; 3] {
    PARTS.map(|part| frame_of(BYTES, &payload[part]))
}

#[test]
fn the_frames_of_a_striped_message_are_as_documented() {
    let (mut world, peers) = with_bare_sockets::<3>();
    let payload = pattern(BYTES, 1);
    let send = world.send(0, (1, 0), 0, payload.region());
    world.run(&[send]).unwrap();
    drop(world);
    let due = frames(&bytes_of(payload.region()));
    for (mut peer, due) in peers.into_iter().zip(due) {
        let mut came = Vec::new();
        peer.read_to_end(&mut came).unwrap();
        assert!(came == due);
    }
}

#[test]
fn a_short_message_uses_the_first_socket_alone() {
    let (mut world, peers) = with_bare_sockets::<3>();
    let payload = pattern(65_535, 1);
    let send = world.send(0, (1, 0), 0, payload.region());
    world.run(&[send]).unwrap();
    drop(world);
    let due = [frame(&bytes_of(payload.region())), Vec::new(), Vec::new()];
    for (mut peer, due) in peers.into_iter().zip(due) {
        let mut came = Vec::new();
        peer.read_to_end(&mut came).unwrap();
        assert!(came == due);
    }
}

/// Polls long enough for all bytes written to loopback sockets to arrive.
fn drain(world: &mut TransportWorld<Tcp>) {
    for _ in 0..20 {
        world.round().unwrap();
        world.ranks[0].block(Duration::from_millis(1)).unwrap();
    }
}

#[test]
fn a_message_waits_for_the_stripe_that_is_late() {
    for late in 0..3 {
        let (mut world, mut peers) = with_bare_sockets::<3>();
        let (payload, with) = (pattern(BYTES, 1), pattern(BYTES, 2));
        let target = Owned::zeroed(BYTES);
        let kernel = ReductionKernel::new(Op::Bxor, DType::U8).unwrap();
        let sink = Sink::Reduce {
            with: with.region(),
            into: target.region(),
            kernel,
        };
        let recv = world.recv(0, (1, 0), 0, sink);
        let frames = frames(&bytes_of(payload.region()));
        for index in (0..3).filter(|index| *index != late) {
            peers[index].write_all(&frames[index]).unwrap();
        }
        let (last, begin) = frames[late].split_last().unwrap();
        peers[late].write_all(begin).unwrap();
        drain(&mut world);
        assert!(!world.is_done(recv), "without the end of stripe {late}");
        peers[late].write_all(&[*last]).unwrap();
        world.run(&[recv]).unwrap();
        let whole = Owned::zeroed(BYTES);
        kernel.fold(whole.region(), &[with.region(), payload.region()]);
        assert!(bytes_of(target.region()) == bytes_of(whole.region()));
    }
}

/// Returns the errors of a receive, without and with a crew, after `frames` are sent and the peer
/// leaves.
fn errors_of(frames: [&[u8]; 3]) -> [Error; 2] {
    [TcpOptions::default(), helped::options()].map(|options| {
        let (mut world, mut peers) = bare_sockets_with::<3>(options);
        let target = Owned::zeroed(BYTES);
        let recv = world.recv(0, (1, 0), 0, Sink::Store(target.region()));
        for (peer, frame) in peers.iter_mut().zip(frames) {
            peer.write_all(frame).unwrap();
        }
        drop(peers);
        world.run(&[recv]).unwrap_err()
    })
}

#[test]
fn a_damaged_stripe_is_corrupt() {
    let sound = frames(&bytes_of(pattern(BYTES, 1).region()));
    for index in 0..3 {
        let length = sound[index].len();
        for byte in [0, 35, 39, 40, 20_000, length - 5, length - 1] {
            let mut damaged = sound.clone();
            damaged[index][byte] ^= 4;
            for error in errors_of(damaged.each_ref().map(Vec::as_slice)) {
                let is_corrupt = matches!(error, Error::Corrupt { peer: 1, .. });
                assert!(is_corrupt, "byte {byte} of stripe {index}: {error}");
            }
        }
    }
}

#[test]
fn a_stripe_that_is_cut_is_a_failed_peer() {
    let sound = frames(&bytes_of(pattern(BYTES, 1).region()));
    for index in 0..3 {
        for cut in [0, 1, 40, 30_000, sound[index].len() - 1] {
            let mut short = sound.each_ref().map(Vec::as_slice);
            short[index] = &short[index][..cut];
            for error in errors_of(short) {
                let is_failed = matches!(error, Error::PeerFailed { rank: 1, .. });
                assert!(is_failed, "stripe {index} cut at {cut}: {error}");
            }
        }
    }
}

#[test]
fn a_stripe_of_another_message_is_an_error() {
    let payload = bytes_of(pattern(BYTES, 1).region());
    let sound = frames(&payload);
    // As from a peer that orders the sockets differently.
    let other = frame_of(BYTES - 1, &payload[PARTS[2].clone()]);
    for error in errors_of([&sound[0], &sound[1], &other]) {
        assert!(matches!(error, Error::Corrupt { peer: 1, .. }), "{error}");
    }
}

/// Tests of streams of several sockets that a crew moves.
mod helped {
    use super::*;

    suite::transport_tests!(helped_ranks);

    fn helped_ranks(world_size: usize) -> Vec<Tcp> {
        let sockets = mesh(world_size, 4).into_iter().enumerate();
        sockets
            .map(|(rank, sockets)| Tcp::new(rank, sockets, options()).unwrap())
            .collect()
    }

    pub fn options() -> TcpOptions {
        TcpOptions {
            piece_bytes: 4096,
            threads: 2,
            ..TcpOptions::default()
        }
    }

    /// Waits until this many threads of this process help, as the kernel names them. The kernel
    /// shows the start and the end of a thread a little later.
    fn await_crew(due: usize) {
        let begin = std::time::Instant::now();
        loop {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")));
            let is_ours = |name: &String| name.trim() == CREW_NAME;
            let count = names.flatten().filter(is_ours).count();
            if count == due {
                return;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "{count} of {due}"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_crew_gives_the_same_sums_and_its_errors() {
        let kernel = ReductionKernel::new(Op::Sum, DType::F32).unwrap();
        let mut world = TransportWorld::new(helped_ranks(2));
        let bytes = 4 << 20;
        let terms = [pattern(bytes, 1), pattern(bytes, 2)];
        let sums = [Owned::zeroed(bytes), Owned::zeroed(bytes)];
        let mut postings = Vec::new();
        for (rank, sum) in sums.iter().enumerate() {
            let with = terms[rank].region();
            let sink = Sink::Reduce {
                with,
                into: sum.region(),
                kernel,
            };
            postings.push(world.recv(rank, (1 - rank, 1), 0, sink));
            postings.push(world.send(rank, (1 - rank, 1), 0, with));
        }
        world.run(&postings).unwrap();
        for rank in 0..2 {
            let whole = Owned::zeroed(bytes);
            let [own, other] = [&terms[rank], &terms[1 - rank]].map(Owned::region);
            kernel.fold(whole.region(), &[own, other]);
            assert!(bytes_of(sums[rank].region()) == bytes_of(whole.region()));
        }
        // The peer leaves before the next message.
        let target = Owned::zeroed(bytes);
        let recv = world.recv(0, (1, 1), 1, Sink::Store(target.region()));
        world.ranks.pop();
        let error = world.run(&[recv]).unwrap_err();
        assert!(
            matches!(error, Error::PeerFailed { rank: 1, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_crew_ends_with_its_transport() {
        let (mut world, peers) = bare_sockets_with::<3>(options());
        let payload = pattern(BYTES, 1);
        let send = world.send(0, (1, 0), 0, payload.region());
        world.run(&[send]).unwrap();
        // Other tests have threads of the same name: a process of its own has two.
        if std::env::var_os(ALONE).is_some() {
            await_crew(2);
            drop(world);
            await_crew(0);
            drop(peers);
            return;
        }
        let test = "transport::tcp::tests::striped::helped::a_crew_ends_with_its_transport";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }

    const ALONE: &str = "TEST_ALONE";
    const CREW_NAME: &str = "ringfold socket";
}
