//! Placement of ranks in containers that share a machine's cores.

use std::collections::BTreeSet;
use std::thread::available_parallelism;

use crate::lab::Lab;
use crate::netlab::perf_and_logs;
use crate::skipped::skipped;

/// The log's text once a rank is bound.
const BOUND: &str = "bound to cores ";

/// Returns the cores to which the ranks of each of two hosts are bound, given each rank's host.
fn cores_by_host(lab: &Lab, hosts: &[usize]) -> [BTreeSet<String>; 2] {
    let variables = [("RINGFOLD_DEBUG", "INFO"), ("RINGFOLD_BIND", "auto")];
    let (_, logs) = perf_and_logs(lab, hosts, &variables, &["barrier", "-n", "1", "-w", "0"]);
    let mut by_host = [BTreeSet::new(), BTreeSet::new()];
    for (log, host) in logs.iter().zip(hosts) {
        let line = log.lines().find_map(|line| line.split_once(BOUND));
        let (_, cores) = line.unwrap_or_else(|| panic!("not bound: {log}"));
        by_host[*host].insert(cores.trim().to_string());
    }
    by_host
}

#[test]
fn hosts_that_share_cores_are_bound_apart() {
    let Some(lab) = Lab::new(2) else { return };
    let cores = available_parallelism().map_or(1, |cores| cores.get());
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    if online.trim() != format!("0-{}", cores - 1) {
        skipped(&format!(
            "a quota or an affinity leaves {cores} of the cores {}",
            online.trim()
        ));
        return;
    }
    if cores != 2 && cores < 4 {
        skipped(&format!("two hosts cannot share {cores} cores evenly"));
        return;
    }
    // One rank each, two each, and two each dealt out in turn.
    for hosts in [&[0, 1][..], &[0, 0, 1, 1], &[0, 1, 0, 1]] {
        let [first, second] = cores_by_host(&lab, hosts);
        assert!(
            first.is_disjoint(&second),
            "{hosts:?}: {first:?} and {second:?}"
        );
    }
    lab.assert_empty();
}
