//! Lanes over the software driver: every collective against the conformance suite's oracle.

mod beside;
mod cut;
mod direct;
mod faults;
mod host_path;
pub mod job;

use std::process::Command;

use super::{LaneConfig, WaitPath};
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
    let waits_for_words =
        path == WaitPath::Stream && std::env::var_os(NO_MEMORY_OPERATIONS.0).is_none();
    let mut random = SplitMix64::stream(seed, 0);
    let world_size = 1 + random.index(4);
    let config = LaneConfig {
        slot_bytes: [4096, 8192, 1 << 16][random.index(3)],
        slice_bytes: [None, Some(1000)][random.index(2)],
        depth: [1, 2, 4][random.index(3)],
        direct: random.index(4) > 0,
        one_shot: [None, Some(false), Some(true)][random.index(3)],
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

/// With a device each, ranks meet in kernels; the test above runs again with as many devices.
#[test]
fn random_calls_are_exact_with_a_device_for_each_rank() {
    for driver in [DRIVERS[1], DRIVERS[3], DRIVERS[4]] {
        again(
            "lane::tests::random_calls_are_exact",
            driver,
            &[(SEEDS, "40")],
        );
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
        let settings = [(SEEDS, "1000"), ("SOFTCUDA_SEED", &seed)];
        again("lane::tests::random_calls_are_exact", driver, &settings);
    }
}

/// Runs a test of this program in a process of its own, whose driver has these settings.
fn again(test: &str, driver: &[(&str, &str)], settings: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env("SOFTCUDA_ABORT_MS", "60000")
        .envs(driver.iter().copied())
        .envs(settings.iter().copied())
        .output()
        .expect("the test program runs again");
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let is_run = said.contains("1 passed");
    assert!(
        output.status.success() && is_run,
        "{driver:?} {settings:?}: {said}{errors}"
    );
}

/// Set in a process that runs one test with its settings.
const ALONE: &str = "TEST_LANE_ALONE";

/// Runs `body` in a process of its own, whose driver has these settings: that runs the test that
/// calls this.
pub fn alone(driver: &[(&str, &str)], body: impl FnOnce()) {
    match std::env::var_os(ALONE) {
        Some(_) => body(),
        None => {
            let thread = std::thread::current();
            again(thread.name().expect("a test"), driver, &[(ALONE, "1")]);
        }
    }
}
