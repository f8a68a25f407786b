//! Lanes over the software driver: every collective against the conformance suite's oracle.

mod beside;
mod cut;
mod direct;
mod faults;
mod host_path;
mod job;

use std::process::{Command, Stdio};

use super::{LaneConfig, Reducer, WaitPath};
use crate::random::SplitMix64;
use job::{Job, Plan, WATCHDOG};

pub use job::driver;

/// Which seeds a run has, in a process that `all_random_lanes_are_exact` starts.
const SEEDS: &str = "TEST_LANE_SEEDS";

/// Has streams of the driver have no memory operations.
const NO_MEMORY_OPERATIONS: (&str, &str) = ("SOFTCUDA_MEMOPS", "0");

/// What the driver does, in these processes: devices and queues by their real speed or in a random
/// order, one device for all ranks or one for each, all streams in one queue, no stream memory
/// operations.
const DRIVERS: [&[(&str, &str)]; 6] = [
    &[],
    &[("SOFTCUDA_DEVICES", "4")],
    &[("SOFTCUDA_MODE", "seeded")],
    &[("SOFTCUDA_MODE", "seeded"), ("SOFTCUDA_DEVICES", "4")],
    &[("SOFTCUDA_DEVICES", "4"), ("SOFTCUDA_QUEUES", "1")],
    &[("SOFTCUDA_DEVICES", "4"), NO_MEMORY_OPERATIONS],
];

/// Random calls of a job whose ranks are threads, with a device each or one for all.
fn conforms(seed: u64, path: WaitPath) {
    // Devices combine only where streams wait for words.
    let waits_for_words =
        path == WaitPath::Stream && std::env::var_os(NO_MEMORY_OPERATIONS.0).is_none();
    let mut random = SplitMix64::stream(seed, 0);
    let world_size = 1 + random.index(4);
    let config = LaneConfig {
        slot_bytes: [4096, 8192, 1 << 16][random.index(3)],
        depth: [1, 2, 4][random.index(3)],
        reducer: match waits_for_words {
            true => [Reducer::Host, Reducer::Device][random.index(2)],
            false => Reducer::Host,
        },
        direct: random.index(4) > 0,
    };
    let plans: Vec<Plan> = (0..8).map(|_| Plan::any(&mut random, world_size)).collect();
    let job = Job::new(world_size, config);
    let shares_memory = random.index(2) == 0;
    let job = match shares_memory {
        true => job.sharing(WATCHDOG),
        false => job,
    };
    let job = match path {
        WaitPath::Stream => job,
        WaitPath::Host => job.by_host(),
    };
    let is_direct = config.direct && shares_memory && world_size > 1 && waits_for_words;
    job.run(|rank| {
        assert_eq!(rank.lane.is_direct(), is_direct, "seed {seed}");
        rank.check(&plans, seed);
    });
}

#[test]
fn random_calls_are_exact() {
    let seeds = std::env::var(SEEDS).map_or(50, |seeds| seeds.parse().expect("a number"));
    for seed in 0..seeds {
        println!("seed {seed}");
        conforms(seed, WaitPath::Stream);
    }
}

#[test]
fn random_calls_are_exact_without_stream_memory_operations() {
    for seed in 100..120 {
        println!("seed {seed}");
        conforms(seed, WaitPath::Host);
    }
}

#[test]
#[ignore = "takes minutes"]
fn all_random_lanes_are_exact() {
    for (number, driver) in DRIVERS.into_iter().enumerate() {
        let seed = (number + 1).to_string();
        println!("{driver:?}, SOFTCUDA_SEED {seed}");
        let status = Command::new(std::env::current_exe().expect("a program"))
            .args([
                "--exact",
                "lane::tests::random_calls_are_exact",
                "--nocapture",
            ])
            .env(SEEDS, "1000")
            .env("SOFTCUDA_SEED", seed)
            .env("SOFTCUDA_ABORT_MS", "60000")
            .envs(driver.iter().copied())
            .stdout(Stdio::null())
            .status()
            .expect("the test program runs again");
        assert!(status.success(), "{status} with {driver:?}");
    }
}
