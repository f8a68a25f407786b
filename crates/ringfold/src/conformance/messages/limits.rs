//! Tests of messages under faults, and of the bounds on kept messages.

use super::*;

/// Despite faults, a receive gets the right data or the run ends in a clean error.
#[test]
fn faults_give_no_receive_a_wrong_message() {
    let mut failed = 0;
    for run in 0..200 {
        let mut random = SplitMix64(SEED + run);
        let faults = Faults {
            seed: SEED + run * 100,
            drop: random.index(8) as u16,
            duplicate: random.index(60) as u16,
            truncate: random.index(60) as u16,
            flip: random.index(60) as u16,
            fault_limit: 2,
            ..Faults::default()
        };
        let mut world = MessageWorld::new(faulty(2, faults), SEED + run);
        for index in 0..10 {
            world.send(0, 1, index % 3, &[index as u8; 64]);
        }
        let places: Vec<_> = [2, 0, 1]
            .iter()
            .map(|tag| world.recv(1, 0, *tag, 64))
            .collect();
        let mut outcome = Ok(());
        for _ in 0..200 {
            let rank = world.random.index(2);
            outcome = world.attempt(rank).map(|_| ());
            if outcome.is_err() {
                break;
            }
        }
        failed += u32::from(outcome.is_err());
        if let Err(error) = outcome {
            assert!(matches!(error, Error::Corrupt { .. }), "run {run}: {error}");
        }
        for (place, due) in places.into_iter().zip([2, 0, 1]) {
            assert!(
                !world.is_done(1, place) || world.bytes(1, place) == [due; 64],
                "run {run}"
            );
        }
    }
    println!("{failed} of 200 runs failed cleanly, seed {SEED}");
    assert!(failed > 20, "the faults were too rare to prove anything");
}

/// A message without a receive stays in its stream, and no memory is allocated for the message.
#[test]
fn a_message_without_a_receive_is_left_in_its_stream() {
    let mut world = MessageWorld::new(rendezvous(3), SEED);
    let sends = [4, 5].map(|tag| world.send(0, 1, tag, &[1; 32]));
    let place = world.recv(1, 2, 4, 32);
    world.send(2, 1, 4, &[2; 32]);
    world.run_until(|world| world.is_done(1, place)).unwrap();
    for _ in 0..100 {
        let rank = world.random.index(3);
        world.attempt(rank).unwrap();
    }
    assert!(!sends.iter().any(|send| world.is_done(0, *send)));
}

/// A message for which there is no room stays in its stream until its receive is posted. Until then
/// a receive of a later message waits, and its timeout names the reason.
#[test]
fn what_finds_no_room_waits_for_its_receive() {
    const BYTES: usize = KEPT_BYTES_MAX / 2 + 1;
    let mut world = MessageWorld::new(shm(2), SEED);
    for tag in [1, 2] {
        world.send(0, 1, tag, &vec![tag as u8; BYTES]);
    }
    world.send(0, 1, 3, &[3; 16]);
    let small = world.recv(1, 0, 3, 16);
    for _ in 0..100_000 {
        let rank = world.random.index(2);
        world.attempt(rank).unwrap();
    }
    assert!(!world.is_done(1, small));
    let engine = &mut world.engines[1];
    engine.check_deadlines(Time(0)).unwrap();
    let error = engine.check_deadlines(Time(0).after(TIMEOUT)).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for == &[0]),
        "{text}"
    );
    assert!(
        text.contains("post the receive with tag 2 before"),
        "{text}"
    );
    let large = [2, 1].map(|tag| world.recv(1, 0, tag, BYTES));
    world.run().unwrap();
    for (place, tag) in large.into_iter().zip([2, 1]) {
        assert!(world.bytes(1, place).iter().all(|byte| *byte == tag));
    }
    assert_eq!(world.bytes(1, small), [3; 16]);
}

/// A peer's header is checked before memory is allocated for the message: a length that contradicts
/// the count is corrupt.
#[test]
fn a_header_that_contradicts_itself_is_corrupt() {
    use crate::transport::{Header, P2P_CHANNEL, Post, StreamId};
    let mut ranks = local(2);
    let call = crate::call::Call {
        collective: Collective::Send,
        op: 0,
        algorithm: Algorithm::Direct,
        qualifier: crate::call::Qualifier::Tag(1),
        sequence: 1,
        ..suite::call(1 << 62)
    };
    let good = Header {
        call: crate::call::Call { count: 4, ..call },
        slice: 0,
        index: 0,
        bytes: 16,
    };
    let bad = [
        Header { call, ..good },
        Header {
            call: crate::call::Call {
                sequence: 2,
                ..good.call
            },
            ..good
        },
        Header {
            call: crate::call::Call {
                collective: Collective::AllReduce,
                ..good.call
            },
            ..good
        },
        Header { slice: 1, ..good },
        Header { index: 1, ..good },
    ];
    let payload = Owned::zeroed(16);
    for header in bad {
        let stream = StreamId {
            peer: 1,
            channel: P2P_CHANNEL,
        };
        ranks[0]
            .post_send(Post(stream, 0, header), payload.region())
            .unwrap();
        let mut world = MessageWorld::new(std::mem::replace(&mut ranks, local(2)), SEED);
        world.recv(1, 0, 1, 16);
        let error = world.attempt(1).unwrap_err();
        assert!(
            matches!(error, Error::Corrupt { peer: 0, .. }),
            "{header:?}: {error}"
        );
    }
}
