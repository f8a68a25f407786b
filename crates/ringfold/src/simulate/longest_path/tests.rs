//! The longest path against the simulation, and closed forms for worlds that are too large for it.

use super::super::{Links, Network, Server, run};
use super::*;
use crate::engine::late_ring::{LateMergePolicy, MergeTarget};
use crate::error::Error;
use crate::schedule::{Access, Schedule};
use crate::types::{Collective, Method};

/// Returns every collective by every algorithm over messages.
fn scenarios(ranks: usize) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for &collective in Collective::ALL {
        if matches!(collective, Collective::Send | Collective::Recv) {
            continue;
        }
        for algorithm in Schedule::methods(collective, Access::Messages) {
            let paired = algorithm == Method::RecursiveDoubling
                && matches!(
                    collective,
                    Collective::AllGather | Collective::ReduceScatter
                );
            if paired && !ranks.is_power_of_two() {
                continue;
            }
            scenarios.push(Scenario {
                collective,
                algorithm: Some(algorithm),
                ranks,
                root: ranks / 2,
                bytes: 40_000,
                ..Scenario::default()
            });
        }
    }
    scenarios
}

/// Compares the longest path with the simulation; returns whether the scenario has a longest path.
fn is_same(scenario: &Scenario) -> bool {
    let swept = match longest_path(scenario) {
        Ok(swept) => swept,
        Err(Error::Unsupported(_)) => return false,
        Err(error) => panic!("{scenario:?}: {error}"),
    };
    let report = run(scenario).unwrap();
    assert!(report.is_clean(), "{scenario:?}: {:?}", report.promises);
    let what = (scenario.collective, scenario.algorithm, scenario.ranks);
    assert_eq!(
        swept.finished_ps, report.finished_ps,
        "{what:?} {scenario:?}"
    );
    assert_eq!(swept.results_ps, report.results_ps, "{what:?} {scenario:?}");
    for (rank, (swept, report)) in swept.ranks.iter().zip(&report.ranks).enumerate() {
        assert_eq!(
            swept.finished_ps, report.finished_ps,
            "{what:?} rank {rank}"
        );
        assert_eq!(swept.sent_bytes, report.sent_bytes, "{what:?} rank {rank}");
        assert_eq!(
            swept.sent_messages, report.sent_messages,
            "{what:?} rank {rank}"
        );
    }
    true
}

#[test]
fn every_schedule_takes_the_same_time_by_its_longest_path_as_by_its_engines() {
    let servers = [Server::Serial, Server::Parallel];
    for ranks in (1..=9).chain([16, 17]) {
        for (number, mut scenario) in scenarios(ranks).into_iter().enumerate() {
            scenario.compute.server = servers[number % 2];
            scenario.compute.copy_ps_per_byte = (number % 3) as u64 * 30;
            let in_pairs = matches!(
                scenario.algorithm,
                Some(Method::Tree | Method::RecursiveDoubling | Method::Rabenseifner)
            );
            let is_orderly =
                scenario.algorithm == Some(Method::Ring) || (in_pairs && ranks.is_power_of_two());
            // Messages of the other algorithms contend for a port now and then.
            assert!(is_same(&scenario) || !is_orderly, "{scenario:?}");
        }
    }
}

#[test]
fn slow_late_and_unequal_ranks_take_the_same_time_too() {
    let mut swept = 0;
    for (number, mut scenario) in (2..=8).flat_map(scenarios).enumerate() {
        let ranks = scenario.ranks;
        scenario.seed = number as u64;
        scenario.network = Network {
            ranks_per_host: 2,
            local: Some(Links {
                alpha_ps: 300_000,
                ps_per_byte: 20,
                overhead_ps: 0,
                crowded_ps: None,
                packets_ps: 0,
                work_ps_per_byte: 0,
                window_bytes: None,
                gap_ps: 0,
                grants: None,
            }),
            links: Links {
                gap_ps: 70_000,
                ..Links::default()
            },
            ..Network::default()
        };
        scenario.disturbances = vec![
            Disturbance::Slow("rank=*,step=*,delay=exp(3us),p=0.3".parse().unwrap()),
            Disturbance::Late {
                rank: number % ranks,
                delay_ps: 7_000_000,
            },
            Disturbance::SlowLink {
                ends: super::super::LinkEnds::Port((number + 1) % ranks),
                factor: 1.7,
            },
            Disturbance::SlowLink {
                ends: super::super::LinkEnds::Pair(0, 1),
                factor: 2.5,
            },
        ];
        let is_swept = is_same(&scenario);
        if scenario.algorithm == Some(Method::Ring) {
            assert!(is_swept, "{scenario:?}");
        }
        swept += u32::from(is_swept);
    }
    assert!(swept > 100, "only {swept} were swept");
}

#[test]
fn what_contends_is_refused() {
    let mut scenario = Scenario::default();
    assert!(fits_longest_path(&scenario));
    scenario.network.ports = Ports::Half;
    assert!(!fits_longest_path(&scenario));
    let error = longest_path(&scenario).unwrap_err();
    assert!(error.to_string().contains("half-duplex"), "{error}");
    let around = Scenario {
        straggler: Some(LateMergePolicy::new(MergeTarget::Tail, false)),
        ..Scenario::default()
    };
    assert!(!fits_longest_path(&around));
    let sliced = Scenario {
        slice_bytes: Some(1 << 20),
        ..Scenario::default()
    };
    let error = longest_path(&sliced).unwrap_err();
    assert!(error.to_string().contains("slices"), "{error}");
}

#[test]
fn a_long_ring_takes_the_papers_time() {
    let ranks = 700;
    let scenario = Scenario::slow_node_paper(ranks, Server::Serial);
    let due_ps = (ranks as u64 - 1) * (3_000_000 + 5_655_360);
    let swept = longest_path(&scenario).unwrap();
    assert_eq!((swept.finished_ps, swept.results_ps), (due_ps, due_ps));
}
