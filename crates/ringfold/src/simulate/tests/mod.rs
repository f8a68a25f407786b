//! Checks times against closed forms and the slow-node paper's figures, and that results depend
//! only on the scenario.

mod costs;
mod device_forms;
mod devices;
mod late_merge;
mod late_merge_fuzz;
mod models;
mod processors;
mod rdma;

use super::*;
use crate::error::Error;
use crate::random::SplitMix64;
use crate::transport::Transport;
use crate::transport::suite::altered::Altered;
use crate::transport::suite::fault_injector::{FaultInjector, Faults};
use crate::types::{Collective, Method};

/// Returns the paper's reduce-scatter with the reductions in `slow`.
fn paper(ranks: usize, server: Server, slow: &[&str]) -> Scenario {
    let slow = slow
        .iter()
        .map(|words| Disturbance::Slow(words.parse().unwrap()));
    Scenario {
        disturbances: slow.collect(),
        ..Scenario::slow_node_paper(ranks, server)
    }
}

/// Runs a scenario in which every rank must succeed, and returns its time.
fn time_ps(scenario: &Scenario) -> u64 {
    let report = run(scenario).unwrap();
    assert!(
        report.is_clean(),
        "{:?} {:?}",
        report.promises,
        report.ranks
    );
    check_path(&report);
    report.finished_ps
}

/// Checks that the critical path leads from 0 to the end without gaps.
fn check_path(report: &Report) {
    let mut at_ps = 0;
    for part in &report.critical_path {
        assert_eq!(part.begin_ps, at_ps, "{part:?}");
        assert!(part.end_ps > part.begin_ps, "{part:?}");
        at_ps = part.end_ps;
    }
    assert_eq!(at_ps, report.finished_ps);
}

#[test]
fn a_ring_without_slow_ranks_takes_the_papers_time() {
    for server in [Server::Parallel, Server::Serial] {
        for sending in [Sending::Eager, Sending::Rendezvous] {
            let golden = [
                (4, 25_966_080),
                (8, 60_587_520),
                (16, 129_830_400),
                (128, 1_099_230_720),
            ];
            // One of the large ones shows as much as four.
            let sizes = match (server, sending) {
                (Server::Parallel, Sending::Eager) => 4,
                _ => 3,
            };
            for (ranks, due_ps) in golden.into_iter().take(sizes) {
                let mut scenario = paper(ranks, server, &[]);
                scenario.network.sending = sending;
                assert_eq!(
                    time_ps(&scenario),
                    due_ps,
                    "{ranks} ranks, {server:?}, {sending:?}"
                );
            }
        }
    }
}

#[test]
fn one_slow_reduction_delays_the_ring_by_as_much() {
    for server in [Server::Parallel, Server::Serial] {
        for delay_us in [2, 3, 5, 6, 7, 8, 9, 10, 15, 20, 30] {
            let slow = format!("rank=1,step=1,delay={delay_us}us");
            let due_ps = 25_966_080 + delay_us * 1_000_000;
            assert_eq!(
                time_ps(&paper(4, server, &[&slow])),
                due_ps,
                "{delay_us} µs, {server:?}"
            );
        }
        let due = [
            (8, 20, 80_587_520),
            (16, 60, 189_830_400),
            (8, 60, 120_587_520),
        ];
        for (ranks, delay_us, due_ps) in due {
            let slow = format!("rank=1,step=1,delay={delay_us}us");
            assert_eq!(time_ps(&paper(ranks, server, &[&slow])), due_ps);
        }
    }
}

/// Times of 4, 8 and 16 ranks in picoseconds, if one rank is slow by this many microseconds in
/// every step.
const ALWAYS_SLOW: [(Server, u64, [u64; 3]); 3] = [
    (Server::Parallel, 8, [33_966_080, 68_587_520, 137_830_400]),
    (Server::Serial, 8, [38_655_360, 82_655_360, 170_655_360]),
    (Server::Serial, 20, [74_655_360, 166_655_360, 350_655_360]),
];

#[test]
fn a_rank_that_is_always_slow_takes_the_papers_time() {
    for (server, delay_us, times) in ALWAYS_SLOW {
        for (ranks, due_ps) in [4, 8, 16].into_iter().zip(times) {
            let slow = format!("rank=1,step=*,delay={delay_us}us");
            let scenario = paper(ranks, server, &[&slow]);
            assert_eq!(
                time_ps(&scenario),
                due_ps,
                "{ranks} ranks, {delay_us} µs, {server:?}"
            );
        }
    }
}

/// Returns the class of each rank's outcome.
fn classes(report: &Report) -> Vec<&'static str> {
    let class = |rank: &RankReport| {
        rank.outcome
            .as_ref()
            .map_or_else(|error| error.class(), |()| "Ok")
    };
    report.ranks.iter().map(class).collect()
}

/// Returns a ring in which a rank dies midway.
fn with_a_death(rank: usize, at_us: u64) -> Scenario {
    let mut scenario = paper(6, Server::Serial, &[]);
    scenario.collective = Collective::AllReduce;
    scenario.disturbances.push(Disturbance::Dead {
        rank,
        at_ps: at_us * 1_000_000,
    });
    scenario
}

#[test]
fn all_survivors_of_a_death_are_told_who_died_in_time() {
    for rank in 0..6 {
        let report = run(&with_a_death(rank, 20)).unwrap();
        assert_eq!(report.promises, [], "rank {rank}");
        assert_eq!(classes(&report), ["PeerFailed"; 6]);
        let told_ps = 20_000_000 + report.scenario.detect_ps + 5_000_000;
        for (survivor, told) in report
            .ranks
            .iter()
            .enumerate()
            .filter(|(survivor, _)| *survivor != rank)
        {
            let text = told.outcome.as_ref().unwrap_err().to_string();
            assert!(text.starts_with(&format!("rank {rank} failed")), "{text}");
            assert!(told.finished_ps <= told_ps, "rank {survivor}");
        }
    }
}

#[test]
fn a_death_after_the_call_concerns_no_rank() {
    let scenario = with_a_death(2, 10_000);
    let report = run(&scenario).unwrap();
    assert!(report.is_clean(), "{:?}", report.promises);
}

#[test]
fn a_call_without_a_frozen_rank_ends_by_its_deadline_and_names_it() {
    let mut scenario = paper(4, Server::Serial, &[]);
    scenario.collective = Collective::AllReduce;
    scenario.timeout_ps = 1_000_000_000;
    scenario.disturbances.push(Disturbance::Stall {
        rank: 2,
        from_ps: 6_000_000,
        until_ps: 3_000_000_000_000,
    });
    let report = run(&scenario).unwrap();
    assert_eq!(report.promises, []);
    assert_eq!(classes(&report), ["Timeout"; 4]);
    for rank in [0, 1, 3] {
        let text = report.ranks[rank].outcome.as_ref().unwrap_err().to_string();
        assert!(text.contains("waiting for rank 2"), "{text}");
        assert!(report.ranks[rank].finished_ps < 300_000_000_000);
    }
}

#[test]
fn a_rank_that_never_comes_is_blamed_by_who_came() {
    let mut scenario = paper(4, Server::Serial, &[]);
    scenario.timeout_ps = 1_000_000_000;
    scenario.disturbances.push(Disturbance::Late {
        rank: 1,
        delay_ps: 5_000_000_000,
    });
    let report = run(&scenario).unwrap();
    assert_eq!(report.promises, []);
    assert_eq!(classes(&report), ["Timeout"; 4]);
    let text = report.ranks[3].outcome.as_ref().unwrap_err().to_string();
    assert!(text.contains("waiting for rank 1"), "{text}");
}

#[test]
fn a_short_stall_delays_the_call_and_a_late_rank_does() {
    let plain_ps = time_ps(&paper(4, Server::Serial, &[]));
    let mut stalled = paper(4, Server::Serial, &[]);
    // From before the arrival of the first message until after.
    stalled.disturbances.push(Disturbance::Stall {
        rank: 1,
        from_ps: 5_000_000,
        until_ps: 12_000_000,
    });
    assert_eq!(time_ps(&stalled), plain_ps + 12_000_000 - 5_655_360);
    let mut late = paper(4, Server::Serial, &[]);
    late.disturbances.push(Disturbance::Late {
        rank: 1,
        delay_ps: 9_000_000,
    });
    assert_eq!(time_ps(&late), plain_ps + 9_000_000);
}

#[test]
fn lost_messages_end_in_the_same_error_everywhere() {
    for seed in 0..20 {
        let mut scenario = paper(5, Server::Parallel, &[]);
        scenario.timeout_ps = 1_000_000_000;
        scenario.seed = seed;
        let lossy = |rank, transport| -> Box<dyn Transport> {
            let faults = Faults {
                seed: SplitMix64::stream(seed, rank as u64).next_u64(),
                drop: 50,
                flip: 20,
                truncate: 20,
                duplicate: 20,
                fault_limit: 1,
                ..Faults::default()
            };
            Box::new(FaultInjector::new(transport, rank, faults))
        };
        let mut report = super::run::run_over(&scenario, lossy).unwrap();
        // Lost and doubled messages may break these two promises only.
        let is_excused = |promise| matches!(promise, Promise::NoDeadlock | Promise::ExactlyOnce);
        report.promises.retain(|broken| !is_excused(broken.promise));
        assert_eq!(report.promises, [], "seed {seed}");
    }
}

#[test]
fn a_deadlock_is_a_broken_promise_that_says_who_waits_for_whom() {
    let mut scenario = paper(4, Server::Serial, &[]);
    scenario.timeout_ps = 1_000_000_000;
    let forget = |rank, transport| -> Box<dyn Transport> {
        // Rank 1 loses its third message.
        let mut sends = 0;
        let altered = Altered::new(transport).with_sends(move || {
            sends += 1;
            rank != 1 || sends != 3
        });
        Box::new(altered)
    };
    let report = super::run::run_over(&scenario, forget).unwrap();
    let broken = &report.promises[0];
    assert_eq!(broken.promise, Promise::NoDeadlock);
    assert!(
        broken.what.contains("rank 2 waits for rank 1"),
        "{}",
        broken.what
    );
    assert_eq!(classes(&report)[2], "Timeout");
}

#[test]
fn the_same_scenario_has_the_same_report() {
    let mut scenario = paper(8, Server::Serial, &["rank=*,step=*,delay=exp(20us),p=0.2"]);
    scenario.traces = true;
    let of = |seed| {
        let report = run(&Scenario {
            seed,
            ..scenario.clone()
        })
        .unwrap();
        (
            report.finished_ps,
            report.events,
            report.critical_path,
            report.trace,
        )
    };
    assert_eq!(of(7), of(7));
    assert_ne!(of(7).0, of(8).0);
}

/// One of four links has a quarter of the bandwidth. The ring takes six units; if the slow rank
/// owns nothing, the call takes four, plus a little for the first slice and the last.
#[test]
fn weights_relieve_a_slow_link() {
    let slow = Scenario {
        bytes: 32 << 20,
        payload: Payload::Hollow,
        slice_bytes: None,
        disturbances: vec![Disturbance::SlowLink {
            ends: LinkEnds::Port(2),
            factor: 4.0,
        }],
        compute: Compute {
            reduce_ps_per_byte: 0,
            ..Compute::default()
        },
        ..Scenario::default()
    };
    let unit_ps = (slow.bytes * slow.network.links.ps_per_byte) as f64;
    let units = |algorithm, weights: Option<&[u32]>| {
        let scenario = Scenario {
            algorithm,
            weights: weights.map(<[u32]>::to_vec),
            ..slow.clone()
        };
        time_ps(&scenario) as f64 / unit_ps
    };
    let ring = units(Some(Method::Ring), None);
    assert!((6.0..6.2).contains(&ring), "{ring}");
    let weights = crate::tune::weights::balance(&slow.paces()).expect("weights");
    assert_eq!(weights, [133, 133, 0, 133]);
    for algorithm in [None, Some(Method::Direct)] {
        let weighted = units(algorithm, Some(&weights));
        assert!((4.0..4.1).contains(&weighted), "{weighted}");
    }
}

/// Calls with the weights of `tune::weights` are never faster than predicted, and always faster
/// than the ring, however slow one link is.
#[test]
fn measured_weights_beat_the_ring_at_any_slowness() {
    for (ranks, factor) in [(3, 2.0), (4, 1.25), (4, 2.0), (8, 1.5), (8, 4.0)] {
        let mut scenario = Scenario {
            ranks,
            bytes: 64 << 20,
            slice_bytes: None,
            payload: Payload::Hollow,
            disturbances: vec![Disturbance::SlowLink {
                ends: LinkEnds::Port(ranks - 1),
                factor,
            }],
            ..Scenario::default()
        };
        scenario.compute.reduce_ps_per_byte = 0;
        let ring_ps = time_ps(&scenario);
        let paces = scenario.paces();
        let weights = crate::tune::weights::balance(&paces).expect("weights");
        let due_ps = crate::tune::cost::weighted::time_ps(&paces, &weights, scenario.bytes);
        (scenario.algorithm, scenario.weights) = (None, Some(weights));
        assert!(
            !fits_longest_path(&scenario),
            "the longest path knows no weights"
        );
        let weighted_ps = time_ps(&scenario);
        let text = format!("{ranks} ranks, {factor}: {ring_ps} {weighted_ps} {due_ps}");
        println!("{text}");
        assert!(weighted_ps < ring_ps, "{text}");
        assert!(
            (1.0..1.25).contains(&(weighted_ps as f64 / due_ps)),
            "{text}"
        );
    }
}
