//! Lanes over the software driver: every collective against the conformance suite's oracle.

mod cut;
mod faults;
mod job;

use super::LaneConfig;
use crate::random::SplitMix64;
use job::{Job, Plan};

/// Random calls of a job whose ranks are threads, with a device each or one for all.
fn conforms(seed: u64) {
    let mut random = SplitMix64::stream(seed, 0);
    let world_size = 1 + random.index(4);
    let config = LaneConfig {
        slot_bytes: [4096, 8192, 1 << 16][random.index(3)],
        depth: [1, 2, 4][random.index(3)],
    };
    let plans: Vec<Plan> = (0..8).map(|_| Plan::any(&mut random, world_size)).collect();
    Job::new(world_size, config).run(|rank| {
        for plan in &plans {
            rank.check(plan, seed);
        }
    });
}

#[test]
fn random_calls_are_exact() {
    for seed in 0..30 {
        println!("seed {seed}");
        conforms(seed);
    }
}
