//! The late-merge ring among random slow, late and frozen ranks, over random machines, with and
//! without lost messages.
//!
//! Each run checks that its result is right or that the call failed, with nothing in between, and
//! that no rank waits forever. The regular test makes `SLICE` runs; all `RUNS` are made by `cargo
//! test --release -p ringfold --lib late_merge_fuzz -- --ignored --nocapture`.

use super::*;
use crate::random::SplitMix64;
use crate::simulate::network::Sim;
use crate::simulate::run::run_over;
use crate::transport::Transport;
use crate::transport::suite::fault_injector::{FaultInjector, Faults};
use crate::types::{Collective, DType, Method};

/// Number of runs of the long test.
const RUNS: u64 = 120_000;

/// Number of runs of the short test.
const SLICE: u64 = 100;

const MICROSECOND_PS: u64 = 1_000_000;

/// Outcomes of a number of runs.
#[derive(Debug, Default)]
struct RunTally {
    runs: u64,
    exact: u64,
    failed: u64,
    /// Number of runs with a transport that loses, doubles or damages messages.
    spoiled: u64,
    messages: u64,
}

fn pick<T: Copy>(random: &mut SplitMix64, from: &[T]) -> T {
    from[random.index(from.len())]
}

fn random_policy(random: &mut SplitMix64) -> LateMergePolicy {
    let both = Signals::BOTH;
    let signals = [
        both,
        both,
        Signals {
            skip: false,
            ..both
        },
        Signals {
            late: false,
            ..both
        },
        Signals {
            late: false,
            skip: false,
            silent: true,
        },
    ];
    let alpha = 0.5 + random.below(251) as f64 / 100.0;
    let timers = Timers::Fixed {
        alpha,
        reduce_ps: 3 * MICROSECOND_PS,
        transfer_ps: 5_655_360,
    };
    LateMergePolicy {
        target: pick(random, &MergeTarget::ALL),
        signals: pick(random, &signals),
        timers,
    }
}

fn random_disturbances(random: &mut SplitMix64, ranks: usize) -> Vec<Disturbance> {
    let rank = |random: &mut SplitMix64| random.index(ranks);
    let slow = |rank: Option<usize>, random: &mut SplitMix64| {
        let delays = [
            Delay::Fixed(random.below(80 * MICROSECOND_PS)),
            Delay::Exponential {
                mean_ps: 20 * MICROSECOND_PS,
            },
        ];
        Disturbance::Slow(Slow {
            rank,
            step: (random.below(3) == 0).then(|| 1 + random.below(ranks as u64) as u32),
            delay: pick(random, &delays),
            probability: pick(random, &[0.1, 0.5, 1.0]),
        })
    };
    let mut disturbances = Vec::new();
    for _ in 0..random.below(4) {
        let first = rank(random);
        match random.below(5) {
            0 => disturbances.push(slow(None, random)),
            1 => disturbances.push(slow(Some(first), random)),
            // Neighbours.
            2 => {
                for distance in 0..1 + random.index(3) {
                    disturbances.push(slow(Some((first + distance) % ranks), random));
                }
            }
            3 => disturbances.push(Disturbance::Late {
                rank: first,
                delay_ps: random.below(300 * MICROSECOND_PS),
            }),
            _ => {
                let from_ps = random.below(100 * MICROSECOND_PS);
                disturbances.push(Disturbance::Stall {
                    rank: first,
                    from_ps,
                    until_ps: from_ps + random.below(100 * MICROSECOND_PS),
                });
            }
        }
    }
    disturbances
}

fn random_scenario(random: &mut SplitMix64) -> Scenario {
    let ranks = match random.below(4) {
        0 => 2 + random.index(31),
        _ => 2 + random.index(11),
    };
    let elements = random.below(40) * ranks as u64 + random.below(3);
    let dtype = pick(random, &[DType::I32, DType::F32]);
    let bytes = elements * dtype.size_bytes() as u64;
    Scenario {
        collective: pick(random, &[Collective::AllReduce, Collective::ReduceScatter]),
        algorithm: Some(Method::Ring),
        dtype,
        ranks,
        bytes,
        slice_bytes: Some(pick(random, &[u64::MAX, u64::MAX, 64, 640])),
        network: Network {
            links: Links {
                ps_per_byte: pick(random, &[80, 8000]),
                ..Links::default()
            },
            ports: pick(
                random,
                &[Ports::Full, Ports::Full, Ports::Half, Ports::Unlimited],
            ),
            sending: pick(random, &[Sending::Eager, Sending::Rendezvous]),
            ..Network::default()
        },
        compute: Compute {
            reduce_ps: 3 * MICROSECOND_PS,
            reduce_ps_per_byte: 0,
            server: pick(random, &[Server::Parallel, Server::Serial]),
            ..Compute::default()
        },
        disturbances: random_disturbances(random, ranks),
        straggler: Some(random_policy(random)),
        seed: random.below(u64::MAX),
        timeout_ps: 10_000_000 * MICROSECOND_PS,
        ..Scenario::default()
    }
}

fn random_faults(random: &mut SplitMix64) -> Faults {
    let mut faults = Faults {
        fault_limit: 2,
        ..Faults::default()
    };
    let per_mille = 1 + random.below(10) as u16;
    match random.below(4) {
        0 => faults.drop = per_mille,
        1 => faults.duplicate = per_mille,
        2 => faults.flip = per_mille,
        _ => faults.truncate = per_mille,
    }
    faults
}

/// Makes and checks the run of one seed.
fn run_one(seed: u64, tally: &mut RunTally) {
    let mut random = SplitMix64::stream(seed, 0x6c61_7465);
    let scenario = random_scenario(&mut random);
    let faults = (random.below(4) == 0).then(|| random_faults(&mut random));
    let wrap = |rank: usize, sim: Sim| -> Box<dyn Transport> {
        match faults {
            None => Box::new(sim),
            Some(faults) => {
                let seed = seed.wrapping_mul(64).wrapping_add(rank as u64);
                Box::new(FaultInjector::new(sim, rank, Faults { seed, ..faults }))
            }
        }
    };
    let report = run_over(&scenario, wrap).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let broken = report
        .promises
        .iter()
        .filter(|broken| faults.is_none() || broken.promise == Promise::Exact);
    let broken: Vec<_> = broken.collect();
    assert!(broken.is_empty(), "seed {seed}: {broken:?}\n{scenario:?}");
    let is_well = report.ranks.iter().all(|rank| rank.outcome.is_ok());
    if faults.is_none() {
        let outcomes: Vec<_> = report.ranks.iter().map(|rank| &rank.outcome).collect();
        assert!(is_well, "seed {seed}: {outcomes:?}\n{scenario:?}");
    }
    tally.runs += 1;
    tally.exact += u64::from(is_well);
    tally.failed += u64::from(!is_well);
    tally.spoiled += u64::from(faults.is_some());
    tally.messages += report
        .ranks
        .iter()
        .map(|rank| rank.sent_messages)
        .sum::<u64>();
}

fn run_all(seeds: std::ops::Range<u64>) -> RunTally {
    let mut tally = RunTally::default();
    for seed in seeds {
        run_one(seed, &mut tally);
    }
    println!("{tally:?}");
    tally
}

#[test]
fn a_slice_of_random_runs_is_exact() {
    let tally = run_all(0..SLICE);
    assert!(tally.exact > tally.failed && tally.failed > 0, "{tally:?}");
}

#[test]
#[ignore = "deep: takes minutes"]
fn all_random_runs_are_exact() {
    let tally = run_all(0..RUNS);
    assert_eq!(tally.runs, RUNS);
}
