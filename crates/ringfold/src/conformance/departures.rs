//! Tests of ranks that leave early. If a rank leaves as soon as its call has ended, its messages
//! are still delivered, so every other rank ends the call with the correct result. If a rank leaves
//! during a call, peers no longer use its memory as data.

use super::late_merge::policy;
use super::tests::{shm, tcp};
use super::{Case, EngineWorld, oracle, ways};
use crate::engine::late_ring::MergeTarget;
use crate::memory::Owned;
use crate::transport::suite::local::local;
use crate::transport::{rdma, routes};
use crate::types::{Access, Collective, Method};

const SEED: u64 = 20_261_127;

/// Element counts: the first makes one message, the second many.
const COUNTS: [u64; 2] = [17, 2500];

#[test]
fn ranks_may_leave_after_any_call() {
    type Make = fn(usize) -> EngineWorld;
    let worlds: [(Make, &[usize]); 5] = [
        (|n| EngineWorld::new(local(n), SEED), &[2, 3, 4]),
        (|n| EngineWorld::new(shm(n), SEED), &[2, 3, 4]),
        (|n| EngineWorld::new(tcp(n), SEED), &[2, 3, 4]),
        (|n| EngineWorld::new(rdma::tests::ranks(n), SEED), &[2, 3]),
        (|n| EngineWorld::new(routes::tests::ranks(n), SEED), &[3, 4]),
    ];
    for (make, sizes) in worlds {
        for &ranks in sizes {
            for &collective in Collective::ALL {
                for (algorithm, access) in ways(collective, ranks) {
                    if collective == Collective::Recv || !make(ranks).serves((algorithm, access)) {
                        continue;
                    }
                    for count in COUNTS {
                        let case = Case::new(collective, algorithm, access, count);
                        make(ranks).leaving().check(&case);
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_may_leave_after_a_call_around_slow_ranks() {
    let at_once = policy(MergeTarget::Tail, 0);
    let patient = policy(MergeTarget::Next2, 1 << 60);
    for seed in SEED..SEED + 20 {
        for policy in [at_once, patient] {
            for world in [
                EngineWorld::new(shm(3), seed),
                EngineWorld::new(tcp(3), seed),
            ] {
                let case = Case::new(Collective::AllReduce, Method::Ring, Access::Messages, 900);
                world.going_around(policy).leaving().check(&case);
            }
        }
    }
}

/// A rank whose call has ended with an error may reuse its memory, so peers must not use that
/// memory as data.
#[test]
fn no_call_ends_with_memory_that_was_withdrawn() {
    use Method::{Push, Serve};
    for (collective, algorithm) in [
        (Collective::Scatter, Push),
        (Collective::AllReduce, Serve),
        (Collective::Broadcast, Serve),
    ] {
        let access = Access::Registered;
        let case = Case::new(collective, algorithm, access, 5000);
        EngineWorld::new(shm(2), SEED).leave_and_expect_no_result(&case);
    }
}

impl EngineWorld {
    /// Begins the call on two ranks, withdraws the first rank once its memory can be read, and
    /// checks that the second rank does not finish.
    fn leave_and_expect_no_result(&mut self, case: &Case) {
        let buffers = [0, 1].map(|rank| oracle::buffers(case, rank, 2));
        for (rank, buffers) in buffers.iter().enumerate() {
            for memory in buffers.memory.iter().map(Owned::region) {
                self.register(rank, memory);
            }
        }
        for (rank, buffers) in buffers.iter().enumerate() {
            let job = self.job(case, rank, buffers.regions()).expect("a job");
            self.engines[rank].submit(job).expect("room");
        }
        for _ in 0..10 {
            self.engines[0].progress(self.now).expect("no error");
        }
        self.engines[0].withdraw();
        for _ in 0..100 {
            self.engines[1].progress(self.now).expect("no error");
        }
        assert!(self.engines[1].take_finished().is_none(), "{case:?}");
    }
}
