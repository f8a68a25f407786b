//! Tests that calls end in the order of their submission, even if they end in one attempt:
//! callbacks run and records are written in this order.

use super::tests::shm;
use super::{Case, EngineWorld, oracle};
use crate::types::{Access, Collective, Method};

const SEED: u64 = 20_261_124;

const CALLS: usize = 5;

/// Number of attempts, more than enough for all calls.
const ATTEMPTS: usize = 200;

/// The number of the first call is free again only once its end has been taken.
#[test]
fn no_tiny_call_begins_before_the_end_of_another_is_taken() {
    let case = Case::new(Collective::AllReduce, Method::Direct, Access::Staged, 2);
    let mut world = EngineWorld::new(shm(2), SEED);
    let buffers = [0, 1].map(|rank| oracle::buffers(&case, rank, 2));
    let jobs = [0, 1].map(|rank| {
        let job = world.job(&case, rank, buffers[rank].regions());
        job.expect("a job")
    });
    for (engine, job) in world.engines.iter_mut().zip(&jobs) {
        let begun = engine.begin_tiny(job).expect("no error");
        assert!(begun.is_some(), "a tiny call");
    }
    for attempt in 0..ATTEMPTS {
        let engine = &mut world.engines[attempt % 2];
        engine.progress(world.now).expect("no error");
    }
    for (engine, job) in world.engines.iter_mut().zip(&jobs) {
        assert!(!engine.is_idle());
        assert_eq!(engine.begin_tiny(job).expect("no error"), None);
        assert!(engine.take_finished().is_some());
        assert!(engine.is_idle());
    }
}

#[test]
fn calls_that_end_in_one_attempt_end_in_order() {
    let case = Case::new(
        Collective::AllReduce,
        Method::Direct,
        Access::Messages,
        1000,
    );
    let mut world = EngineWorld::new(shm(2), SEED);
    let buffers: Vec<_> = (0..CALLS)
        .map(|_| [0, 1].map(|rank| oracle::buffers(&case, rank, 2)))
        .collect();
    let mut ids = [Vec::new(), Vec::new()];
    for buffers in &buffers {
        for (rank, ids) in ids.iter_mut().enumerate() {
            let job = world
                .job(&case, rank, buffers[rank].regions())
                .expect("a job");
            ids.push(world.engines[rank].submit(job).expect("room"));
        }
    }
    for attempt in 0..ATTEMPTS {
        let engine = &mut world.engines[attempt % 2];
        engine.progress(world.now).expect("no error");
    }
    for (engine, ids) in world.engines.iter_mut().zip(ids) {
        let ended = std::iter::from_fn(|| engine.take_finished().map(|finished| finished.id));
        assert!(ended.eq(ids), "each call ends after those before it");
    }
}
