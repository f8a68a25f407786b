//! Tests of the late-merge ring against the same oracle, with ranks that never wait for others,
//! wait for a while, or wait forever.
//!
//! Timers are so short that ranks split in most calls and in every order, the cases in which errors
//! can occur.

use super::tests::{shm, sim, tcp};
use super::{Case, EngineWorld};
use crate::communicator::Counts;
use crate::engine::late_ring::{LateMergePolicy, Signals, Target, Timers};
use crate::error::Error;
use crate::random::SplitMix64;
use crate::schedule::Access;
use crate::simulate::network::model::Sending;
use crate::transport::local::local;
use crate::transport::suite::fault_injector::{FaultInjector, Faults};
use crate::types::{Collective, DType, Method, Op};

/// All useful combinations of `late`, `skip` and `silent`; the last is the paper's.
pub(super) const SIGNALS: [(bool, bool, bool); 4] = [
    (true, true, false),
    (false, true, false),
    (true, false, false),
    (false, false, true),
];

pub(super) fn policy(
    target: Target,
    signals: (bool, bool, bool),
    patience_ps: u64,
) -> LateMergePolicy {
    let (late, skip, silent) = signals;
    let timers = Timers::Fixed {
        alpha: 1.0,
        reduce_ps: patience_ps,
        transfer_ps: 0,
    };
    LateMergePolicy {
        target,
        signals: Signals { late, skip, silent },
        timers,
    }
}

fn ring(collective: Collective, count: u64) -> Case {
    Case::new(collective, Method::Ring, Access::Messages, count)
}

fn simulated(ranks: usize, seed: u64, policy: LateMergePolicy, sending: Sending) -> EngineWorld {
    EngineWorld::new(sim(ranks, sending), seed).going_around(policy)
}

/// Checks both collectives, in and out of place, with even and uneven counts, in one slice and
/// many.
fn check_all(world: &mut EngineWorld, counts: &[u64]) {
    let world_size = world.world_size();
    for &count in counts {
        for collective in [Collective::AllReduce, Collective::ReduceScatter] {
            for in_place in [false, true] {
                let case = ring(collective, count);
                world.check(&Case { in_place, ..case });
            }
        }
        let uneven = (0..world_size as u64).map(|rank| count * rank % 97);
        let counts = Counts::PerRank(uneven.collect());
        let case = ring(Collective::ReduceScatter, count);
        world.check(&Case { counts, ..case });
    }
}

#[test]
fn whoever_splits_when_the_results_are_exact() {
    for target in Target::ALL {
        for signals in SIGNALS {
            for patience_ps in [0, 5_100_000, 12_000_000] {
                for (ranks, sending) in [(3, Sending::Eager), (6, Sending::Rendezvous)] {
                    let seed = patience_ps + ranks as u64;
                    let policy = policy(target, signals, patience_ps);
                    println!("{policy:?}");
                    let mut world = simulated(ranks, seed, policy, sending);
                    check_all(&mut world, &[0, 17, 900]);
                }
            }
        }
    }
}

#[test]
fn every_operation_goes_around() {
    let policy = policy(Target::Tail, SIGNALS[0], 6_000_000);
    let mut world = simulated(5, 3, policy, Sending::Eager);
    for collective in [Collective::AllReduce, Collective::ReduceScatter] {
        for (dtype, op) in [
            (DType::I8, Op::Sum),
            (DType::F16, Op::PremulSum(2.0)),
            (DType::F64, Op::Avg),
            (DType::U32, Op::Max),
            (DType::Bool, Op::Band),
            (DType::I64, Op::Prod),
        ] {
            let case = ring(collective, 500);
            world.check(&Case { dtype, op, ..case });
        }
    }
}

#[test]
fn calls_of_other_kinds_go_between() {
    let policy = policy(Target::Next2, SIGNALS[0], 4_000_000);
    let mut world = simulated(4, 11, policy, Sending::Eager);
    for count in [3, 700, 2000] {
        world.check(&ring(Collective::AllReduce, count));
        world.check(&ring(Collective::AllGather, count));
        world.check(&ring(Collective::ReduceScatter, count));
        let other = Method::RecursiveDoubling;
        world.check(&Case::new(
            Collective::AllReduce,
            other,
            Access::Messages,
            count,
        ));
    }
}

#[test]
fn real_transports_carry_it() {
    let at_once = policy(Target::Tail, SIGNALS[0], 0);
    let patient = policy(Target::Next2, SIGNALS[0], 1 << 60);
    for policy in [at_once, patient] {
        let worlds = [
            EngineWorld::new(local(4), 5),
            EngineWorld::new(shm(4), 6),
            EngineWorld::new(tcp(4), 7),
        ];
        for world in worlds {
            let mut world = world.going_around(policy);
            check_all(&mut world, &[1, 300, 2500]);
            // Covers messages in several parts, which arrive while others are already complete.
            let slice_bytes = 1 << 20;
            for collective in [Collective::AllReduce, Collective::ReduceScatter] {
                let case = ring(collective, 80_000);
                world.check(&Case {
                    slice_bytes,
                    ..case
                });
            }
        }
    }
}

#[test]
fn ranks_with_different_policies_never_combine() {
    let mut world = simulated(4, 1, policy(Target::Tail, SIGNALS[0], 0), Sending::Eager);
    world.engines[2].set_late_merge(policy(Target::Next2, SIGNALS[0], 0), 2);
    let error = world.run_and_compare(&ring(Collective::AllReduce, 100));
    assert!(matches!(error, Err(Error::Mismatch { .. })), "{error:?}");
    let mut world = simulated(4, 1, policy(Target::Tail, SIGNALS[0], 0), Sending::Eager);
    let mut cases = vec![ring(Collective::AllReduce, 100); 4];
    cases[1].algorithm = Method::RecursiveDoubling;
    let error = world.run_each(&cases);
    assert!(matches!(error, Err(Error::Mismatch { .. })), "{error:?}");
}

/// Whatever faults the network injects, a call succeeds with the right result or fails with an
/// error.
#[test]
fn a_spoiled_message_never_spoils_a_result() {
    let kinds = [
        Faults {
            drop: 8,
            ..Faults::default()
        },
        Faults {
            duplicate: 30,
            ..Faults::default()
        },
        Faults {
            flip: 30,
            ..Faults::default()
        },
        Faults {
            truncate: 30,
            ..Faults::default()
        },
    ];
    let (mut good, mut bad) = (0, 0);
    for seed in 0..16u64 {
        let mut random = SplitMix64(seed);
        let target = Target::ALL[random.index(2)];
        let policy = policy(
            target,
            SIGNALS[random.index(4)],
            random.index(12_000_000) as u64,
        );
        let faults = Faults {
            fault_limit: 1,
            ..kinds[seed as usize % kinds.len()]
        };
        let wrap = |(rank, sim)| {
            let seed = seed * 100 + rank as u64;
            FaultInjector::new(sim, rank, Faults { seed, ..faults })
        };
        let ranks = sim(3 + random.index(5), Sending::Eager);
        let ranks = ranks.into_iter().enumerate().map(wrap).collect();
        let mut world = EngineWorld::new(ranks, seed).going_around(policy);
        println!("seed {seed}: {policy:?}, {faults:?}");
        // The comparison panics at a wrong result.
        match world.run_and_compare(&ring(Collective::AllReduce, 600)) {
            Ok(()) => good += 1,
            Err(Error::Corrupt { .. } | Error::Timeout { .. } | Error::Mismatch { .. }) => bad += 1,
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(good > 0 && bad > 0, "{good} good, {bad} bad");
}
