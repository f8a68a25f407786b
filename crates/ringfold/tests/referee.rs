//! Compares the simulator's times with those of a small reader of GOAL texts (`reader`), which has
//! no knowledge of ringfold's engine, and with those of SimGrid (Casanova et al., 2014), if
//! installed.

#[path = "referee/reader.rs"]
mod reader;
mod skipped;

use std::process::Command;

use ringfold::internals::simulate::{Compute, Disturbance, Scenario, Server, goal, run};
use ringfold::{Collective, Method};
use skipped::skipped;

/// The script that reads a GOAL text and prints its time by SimGrid.
const SIMGRID_SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/referee/simgrid_goal.py");

/// The variable that names the Python interpreter with SimGrid, if it is not the usual one.
const PYTHON_VARIABLE: &str = "SIMGRID_PYTHON";

/// Returns a scenario: a sum of 8 KiB chunks over the slow-node paper's network, reduced at 20 GB/s
/// plus 1 µs.
fn scenario(algorithm: Method, ranks: usize, server: Server) -> Scenario {
    Scenario {
        collective: Collective::AllReduce,
        algorithm: Some(algorithm),
        ranks,
        bytes: 8192 * ranks as u64,
        compute: Compute {
            reduce_ps: 1_000_000,
            server,
            ..Compute::default()
        },
        ..Scenario::default()
    }
}

fn microseconds(ps: u64) -> String {
    format!("{}.{:05}", ps / 1_000_000, (ps % 1_000_000 + 5) / 10)
}

/// Returns the simulator's time.
fn simulated_us(scenario: &Scenario) -> String {
    let report = run(scenario).unwrap();
    assert!(report.is_clean(), "{:?}", report.promises);
    microseconds(report.finished_ps)
}

#[test]
fn a_reader_of_goal_that_shares_no_code_agrees() {
    let algorithms = [
        Method::Ring,
        Method::RecursiveDoubling,
        Method::Rabenseifner,
        Method::Tree,
        Method::Direct,
        Method::OneShot,
        Method::Stragglar,
    ];
    for algorithm in algorithms {
        for ranks in [2, 3, 4, 5, 8, 13, 16] {
            for server in [Server::Serial, Server::Parallel] {
                let scenario = scenario(algorithm, ranks, server);
                let text = goal::export(&scenario).unwrap();
                let links = scenario.network.links;
                let read_ps = reader::time_ps(&text, links.alpha_ps, links.ps_per_byte);
                assert_eq!(
                    microseconds(read_ps),
                    simulated_us(&scenario),
                    "{algorithm}, {ranks} ranks, {server:?}"
                );
            }
        }
    }
}

#[test]
fn late_ranks_are_late_for_the_reader_too() {
    for (algorithm, delay_ps) in [(Method::Ring, 3_333_333), (Method::Stragglar, 99_000_000)] {
        let mut scenario = scenario(algorithm, 8, Server::Serial);
        scenario.root = 5;
        let late = Disturbance::Late { rank: 5, delay_ps };
        scenario.disturbances = vec![late];
        let text = goal::export(&scenario).unwrap();
        let read_ps = reader::time_ps(&text, 5_000_000, 80);
        assert_eq!(
            microseconds(read_ps),
            simulated_us(&scenario),
            "{algorithm}"
        );
    }
}

#[test]
#[ignore = "deep: needs SimGrid"]
fn simgrid_agrees() {
    let python = std::env::var(PYTHON_VARIABLE).unwrap_or("python3".into());
    let found = Command::new(&python)
        .args(["-c", "import simgrid"])
        .output();
    if !found.is_ok_and(|output| output.status.success()) {
        skipped(&format!(
            "{python} has no SimGrid; install python3-simgrid, or name another Python in \
             {PYTHON_VARIABLE}"
        ));
        return;
    }
    let directory = std::env::temp_dir().join(format!("ringfold-referee-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for algorithm in [
        Method::Ring,
        Method::RecursiveDoubling,
        Method::Rabenseifner,
    ] {
        for ranks in [2, 4, 8, 16] {
            let scenario = scenario(algorithm, ranks, Server::Serial);
            let path = directory.join(format!("{algorithm}-{ranks}.goal"));
            std::fs::write(&path, goal::export(&scenario).unwrap()).unwrap();
            let output = Command::new(&python)
                .args([SIMGRID_SCRIPT.as_ref(), path.as_os_str()])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            let ours = simulated_us(&scenario);
            println!(
                "{algorithm}, {ranks} ranks: SimGrid {} µs, ringfold {ours} µs",
                said.trim()
            );
            assert_eq!(said.trim(), ours, "{algorithm}, {ranks} ranks");
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
