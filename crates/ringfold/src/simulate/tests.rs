//! Times against closed forms and the slow-node paper's figures, and that nothing depends on anything but the scenario.

use super::*;
use crate::types::{Algorithm, Collective};

/// The reduction of the slow-node paper: 3 µs.
const REDUCE_PS: u64 = 3_000_000;

/// The paper's reduce-scatter: chunks of 8 KiB in one slice over 5 µs and 100 Gbit/s.
fn paper(ranks: usize, server: Server, slow: &[&str]) -> Scenario {
    Scenario {
        collective: Collective::ReduceScatter,
        algorithm: Some(Algorithm::Ring),
        ranks,
        bytes: 8192 * ranks as u64,
        compute: Compute {
            reduce_ps: REDUCE_PS,
            reduce_ps_per_byte: 0,
            server,
            ..Compute::default()
        },
        disturbances: slow
            .iter()
            .map(|slow| Disturbance::Slow(slow.parse().unwrap()))
            .collect(),
        ..Scenario::default()
    }
}

/// The time of a run in which all goes well.
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

/// The critical path leads from 0 to the end without gaps.
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
            for (ranks, due_ps) in golden {
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

#[test]
fn a_rank_that_is_always_slow_takes_the_papers_time() {
    let golden = [
        (Server::Parallel, 8, [33_966_080, 68_587_520, 137_830_400]),
        (Server::Serial, 8, [38_655_360, 82_655_360, 170_655_360]),
        (Server::Serial, 20, [74_655_360, 166_655_360, 350_655_360]),
    ];
    for (server, delay_us, times) in golden {
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

#[test]
fn in_a_rendezvous_a_slow_rank_asks_for_the_next_message_when_it_has_reduced_the_last() {
    let mut scenario = paper(8, Server::Serial, &["rank=1,step=*,delay=8us"]);
    scenario.network.sending = Sending::Rendezvous;
    assert_eq!(time_ps(&scenario), 116_587_520);
}

/// The scale figure; `cargo test --release -p ringfold --lib -- --ignored a_thousand --nocapture` shows it.
#[test]
#[ignore = "measures"]
fn a_thousand_ranks_fit_into_seconds_and_a_gibibyte() {
    let scenario = Scenario {
        ranks: 1000,
        bytes: 1000 * 8192,
        payload: Payload::Hollow,
        ..Scenario::default()
    };
    let begin = std::time::Instant::now();
    let report = run(&scenario).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    println!(
        "{} events, {} ps, {:?}, {peak}",
        report.events,
        report.finished_ps,
        begin.elapsed()
    );
    assert!(report.is_clean());
}
