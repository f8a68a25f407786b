//! Tests of calls that fail, differ between ranks, or cannot use registered memory.

use super::*;

/// With faults, every run ends with the right result or a clean error, never with a wrong result.
#[test]
fn faults_never_give_a_wrong_result() {
    let mut failed = 0;
    let mut random = SplitMix64(SEED);
    for run in 0..300u64 {
        let faults = Faults {
            seed: SEED + run * 100,
            delay: random.index(100) as u16,
            drop: random.index(3) as u16,
            duplicate: random.index(8) as u16,
            truncate: random.index(8) as u16,
            flip: random.index(8) as u16,
            half_close: random.index(2) as u16,
            delay_limit: std::time::Duration::from_micros(50),
            fault_limit: 3,
        };
        let world_size = 2 + random.index(3);
        let mut world = EngineWorld::new(faulty(world_size, faults), SEED + run);
        for collective in [
            Collective::AllReduce,
            Collective::AllGather,
            Collective::Broadcast,
        ] {
            let ways = ways(collective, world_size);
            let messages: Vec<_> = ways
                .into_iter()
                .filter(|(_, access)| *access == crate::types::Access::Messages)
                .collect();
            let (algorithm, medium) = messages[random.index(messages.len())];
            match world.run_and_compare(&Case::new(collective, algorithm, medium, 900)) {
                Ok(()) => {}
                // If a call's last message arrives twice, the copy is taken for a message of the
                // next call: a mismatch.
                Err(
                    Error::Corrupt { .. }
                    | Error::Timeout { .. }
                    | Error::PeerFailed { .. }
                    | Error::Mismatch { .. },
                ) => {
                    failed += 1;
                    break;
                }
                Err(other) => panic!("run {run} of seed {SEED}: {other}"),
            }
        }
    }
    println!("{failed} of 300 runs failed cleanly, seed {SEED}");
    assert!(failed > 20, "the faults were too rare to prove anything");
}

/// Two ranks that both act as root wait for no other, so they detect the mismatch in the next call.
#[test]
fn two_roots_of_a_broadcast_are_a_mismatch_at_the_next_call() {
    let shared = (crate::Method::Direct, crate::types::Access::Staged);
    let case = |collective| Case::new(collective, shared.0, shared.1, 100);
    for next in [crate::Method::Direct, crate::Method::OneShot] {
        let mut world = EngineWorld::new(shm(3), SEED);
        let roots = [0, 1, 0];
        let broadcasts: Vec<_> = roots
            .iter()
            .map(|root| Case {
                root: *root,
                ..case(Collective::Broadcast)
            })
            .collect();
        let broadcast = world.run_each(&broadcasts);
        let error = match broadcast {
            Err(error) => error,
            Ok(()) => {
                let meeting = Case {
                    algorithm: next,
                    ..case(Collective::AllReduce)
                };
                world.run_and_compare(&meeting).unwrap_err()
            }
        };
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
}

/// If each rank of a gather names another rank as root, all send and none receives. The next
/// collective detects the mismatch, even one that never reads the data sent.
#[test]
fn a_root_that_no_rank_takes_for_itself_is_a_mismatch_at_the_next_call() {
    let roots = [1, 0, 0];
    for collective in [Collective::Gather, Collective::Reduce] {
        for (algorithm, access) in ways(collective, 3) {
            for (next, medium) in [
                (Method::OneShot, Access::Staged),
                (Method::Ring, Access::Messages),
            ] {
                let mut world = EngineWorld::new(shm(3), SEED);
                if !world.serves((algorithm, access)) {
                    continue;
                }
                let cases = roots.map(|root| Case {
                    root,
                    ..Case::new(collective, algorithm, access, 300)
                });
                let error = world.run_each(&cases).err().unwrap_or_else(|| {
                    let meeting = Case::new(Collective::AllReduce, next, medium, 8);
                    world.run_and_compare(&meeting).unwrap_err()
                });
                let is_found = matches!(error, Error::Mismatch { .. });
                assert!(
                    is_found,
                    "{collective} by {algorithm:?}, {access:?}: {error}"
                );
            }
        }
    }
}

/// Ranks with different protocols would store and look for data in different places.
#[test]
fn two_protocols_of_a_call_are_a_mismatch() {
    let ways = [(Method::OneShot, Access::Staged)];
    let worlds: [fn(u64) -> EngineWorld; 2] = [
        |seed| EngineWorld::new(shm(2), seed),
        |seed| EngineWorld::new(tcp(2), seed),
    ];
    for make in worlds {
        for (algorithm, access) in ways {
            // In a call of one slice each rank uses the tiny executor or the schedule, at random.
            for turn in 0..8 {
                let mut world = make(SEED + turn);
                if !world.serves((algorithm, access)) {
                    continue;
                }
                let protocols = [Protocol::Ll, Protocol::Simple];
                let cases = protocols.map(|protocol| Case {
                    protocol: Some(protocol),
                    ..Case::new(Collective::AllReduce, algorithm, access, 2)
                });
                let error = world.run_each(&cases).unwrap_err();
                assert!(matches!(error, Error::Mismatch { .. }), "{error}");
                assert!(error.to_string().contains("ll"), "{error}");
            }
        }
    }
}

/// A payload larger than a slot's head is refused before anything is published.
#[test]
fn what_ll_cannot_carry_is_refused() {
    for (algorithm, count) in [(Method::OneShot, 9), (Method::Direct, 2)] {
        let mut world = EngineWorld::new(shm(2), SEED);
        let case = Case {
            protocol: Some(Protocol::Ll),
            ..Case::new(Collective::AllReduce, algorithm, Access::Staged, count)
        };
        let refused = world.run_and_compare(&case).unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        assert!(refused.to_string().contains("simple"), "{refused}");
    }
}

/// Two ranks that wait for each other detect that they are in different calls.
#[test]
fn two_roots_of_a_gather_are_a_mismatch() {
    let shared = (crate::Method::Direct, crate::types::Access::Staged);
    let case = Case::new(Collective::Gather, shared.0, shared.1, 100);
    let mut world = EngineWorld::new(shm(2), SEED);
    let cases = [0, 1].map(|root| Case {
        root,
        ..case.clone()
    });
    let error = world.run_each(&cases).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
}

/// Ranks that disagree on who is late are in different calls: lateness determines each rank's work.
#[test]
fn two_opinions_of_who_is_late_are_a_mismatch() {
    let way = (crate::Method::Stragglar, crate::types::Access::Messages);
    let case = Case::new(Collective::AllReduce, way.0, way.1, 100);
    let mut world = EngineWorld::new(shm(2), SEED);
    let cases = [1, 0].map(|root| Case {
        root,
        ..case.clone()
    });
    let error = world.run_each(&cases).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    assert!(error.to_string().contains("late"), "{error}");
}

/// Returns a `push` all-reduce of `count` elements of two bytes, in registered memory.
fn pushed(count: u64) -> Case {
    Case {
        dtype: DType::BF16,
        ..Case::new(
            Collective::AllReduce,
            crate::Method::Push,
            crate::types::Access::Registered,
            count,
        )
    }
}

/// If one rank's buffer is not registered, no rank uses registered memory. Nor do the calls before
/// and after, in which no buffer is registered.
#[test]
fn calls_with_an_unregistered_buffer_are_exact() {
    for world_size in [2, 3, 5] {
        let mut world = EngineWorld::new(shm(world_size), SEED);
        // A registration of unrelated memory makes the ranks exchange their handles.
        let elsewhere = crate::memory::Owned::zeroed(64);
        world.register(0, elsewhere.region());
        let (owner, dynamic) = (Assignment::Owner, Assignment::Dynamic);
        for registered in [None, Some(owner), Some(dynamic), Some(owner), None] {
            let case = Case {
                registered,
                access: Access::Staged,
                algorithm: crate::Method::Direct,
                op: Op::PremulSum(2.0),
                ..pushed(5001)
            };
            world.check(&case);
            world.check(&Case {
                in_place: true,
                ..case.clone()
            });
            world.check_with_one_unregistered(&case);
        }
    }
}

/// Checks vectors of many blocks. The ranks, on one thread in a random order, claim blocks from
/// each other, a few per attempt.
#[test]
fn dynamic_blocks_are_exact() {
    for world_size in [3, 5] {
        let mut world = EngineWorld::new(shm(world_size), SEED).registered();
        for in_place in [false, true] {
            world.check(&Case {
                algorithm: crate::Method::Serve,
                in_place,
                ..pushed(600_001)
            });
        }
    }
}

/// A handle that names memory outside the registration is an error, and no memory is accessed.
#[test]
fn a_claim_of_memory_that_is_not_mapped_is_an_error() {
    let mut world = EngineWorld::new(shm(2), SEED);
    let error = world.run_with_a_false_claim(&pushed(5000)).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}
