//! Ranks whose calls differ: every rank gets an error, and nothing is summed.

use crate::endings::{TRANSPORTS, script};
use crate::job::Plan;
use crate::lab::Lab;
use crate::script::Script;

/// Makes rank `odd` do `act` while the others call `collective`.
fn mismatch(transport: &'static str, collective: &str, act: &str, bytes: usize, odd: usize) {
    println!("rank {odd}, {transport}, {act} instead of {collective}, {bytes} bytes");
    let plan = Plan::new(3, transport, script(collective, bytes));
    let other = Script {
        act: act.into(),
        at: 3,
        ..plan.script.clone()
    };
    for (rank, ending) in plan.start_with(odd, &other).finish() {
        assert_eq!(ending.class, "Mismatch", "rank {rank}: {ending:?}");
        // The root of a broadcast may finish before any rank objects.
        let is_good = ending.good <= 3 + (rank == odd) as u64;
        assert!(
            is_good,
            "rank {rank} took the odd call for good: {ending:?}"
        );
    }
}

#[test]
fn a_different_count_is_a_mismatch_on_all_ranks() {
    for transport in TRANSPORTS {
        mismatch(transport, "all_reduce", "count", 64, 1);
        mismatch(transport, "all_reduce", "count", 1 << 20, 0);
    }
}

#[test]
fn a_different_operation_is_a_mismatch_on_all_ranks() {
    for transport in TRANSPORTS {
        mismatch(transport, "all_reduce", "op", 64, 0);
        mismatch(transport, "all_reduce", "op", 1 << 20, 2);
    }
}

#[test]
fn a_different_type_of_the_same_size_is_a_mismatch_on_all_ranks() {
    for transport in TRANSPORTS {
        mismatch(transport, "all_reduce", "dtype", 64, 2);
        mismatch(transport, "all_reduce", "dtype", 1 << 20, 1);
    }
}

#[test]
fn a_different_collective_is_a_mismatch_on_all_ranks() {
    for transport in TRANSPORTS {
        mismatch(transport, "all_reduce", "collective", 64, 1);
        mismatch(transport, "all_gather", "collective", 64 << 10, 0);
    }
}

/// Neither rank hears from the other, and their deadline is beyond the watchdog's.
#[test]
fn two_ranks_that_wait_for_each_other_in_different_calls_are_told() {
    for transport in TRANSPORTS {
        let plan = Plan::new(2, transport, script("broadcast", 4096));
        let other = Script {
            act: "root".into(),
            at: 0,
            ..plan.script.clone()
        };
        for (rank, ending) in plan.start_with(0, &other).finish() {
            assert_eq!(ending.class, "Mismatch", "rank {rank}: {ending:?}");
            for root in ["root 0", "root 1"] {
                assert!(ending.text.contains(root), "rank {rank}: {ending:?}");
            }
        }
    }
}

#[test]
fn a_different_root_is_a_mismatch_on_all_ranks_when_they_meet_next() {
    for transport in TRANSPORTS {
        for (bytes, odd) in [(64, 1), (1 << 20, 2)] {
            mismatch(transport, "broadcast_and_barrier", "root", bytes, odd);
        }
        mismatch(transport, "broadcasts_and_reduce", "root", 64, 2);
    }
}

/// Ranks 0 and 2 are on one host, and rank 1 is on another. A rank that takes itself for the root
/// hears from no other; ranks that have finished wait in the barrier, or in later broadcasts, of
/// which there may be many.
#[test]
fn a_different_root_is_a_mismatch_between_hosts() {
    let Some(lab) = Lab::new(2) else { return };
    for collective in [
        "broadcast_and_barrier",
        "broadcasts_and_reduce",
        "broadcast",
    ] {
        for (bytes, odd) in [(64, 1), (64, 2), (1 << 20, 0), (1 << 20, 2)] {
            println!("rank {odd}, {collective}, {bytes} bytes");
            let plan = lab.plan(3, "auto", script(collective, bytes));
            let other = Script {
                act: "root".into(),
                at: 3,
                ..plan.script.clone()
            };
            for (rank, ending) in lab.start_with(&plan, odd, &other).finish() {
                assert_eq!(ending.class, "Mismatch", "rank {rank}: {ending:?}");
            }
        }
    }
    lab.assert_empty();
}
