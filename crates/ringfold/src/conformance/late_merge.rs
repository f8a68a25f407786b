//! Tests of the late-merge ring against the same oracle: other operations and calls, and real
//! transports. `simulate/tests/late_merge_fuzz.rs` draws policies, machines and faults at random.

use super::tests::{shm, sim, tcp};
use super::{Case, EngineWorld};
use crate::communicator::Counts;
use crate::engine::late_ring::{LateMergePolicy, MergeTarget, Signals, Timers};
use crate::error::Error;
use crate::schedule::Access;
use crate::simulate::Sending;
use crate::transport::local::local;
use crate::types::{Collective, DType, Method, Op};

/// Returns a policy of ranks that wait for so long before they split.
pub(super) fn policy(target: MergeTarget, patience_ps: u64) -> LateMergePolicy {
    let timers = Timers::Fixed {
        alpha: 1.0,
        reduce_ps: patience_ps,
        transfer_ps: 0,
    };
    LateMergePolicy {
        target,
        signals: Signals::BOTH,
        timers,
    }
}

fn ring(collective: Collective, count: u64) -> Case {
    Case::new(collective, Method::Ring, Access::Messages, count)
}

fn simulated(ranks: usize, seed: u64, policy: LateMergePolicy) -> EngineWorld {
    EngineWorld::new(sim(ranks, Sending::Eager), seed).going_around(policy)
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
fn every_operation_goes_around() {
    let policy = policy(MergeTarget::Tail, 6_000_000);
    let mut world = simulated(5, 3, policy);
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
    let policy = policy(MergeTarget::Next2, 4_000_000);
    let mut world = simulated(4, 11, policy);
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
    let at_once = policy(MergeTarget::Tail, 0);
    let patient = policy(MergeTarget::Next2, 1 << 60);
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
    let mut world = simulated(4, 1, policy(MergeTarget::Tail, 0));
    world.engines[2].set_late_merge(policy(MergeTarget::Next2, 0), 2);
    let error = world.run_and_compare(&ring(Collective::AllReduce, 100));
    assert!(matches!(error, Err(Error::Mismatch { .. })), "{error:?}");
    let mut world = simulated(4, 1, policy(MergeTarget::Tail, 0));
    let mut cases = vec![ring(Collective::AllReduce, 100); 4];
    cases[1].algorithm = Method::RecursiveDoubling;
    let error = world.run_each(&cases);
    assert!(matches!(error, Err(Error::Mismatch { .. })), "{error:?}");
}
