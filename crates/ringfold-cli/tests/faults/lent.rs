//! Registered memory in jobs of several hosts: the ranks of a host read large messages from each
//! other's memory.

use std::time::Duration;

use crate::endings::{assert_all_blame, assert_all_good, script};
use crate::lab::Lab;
use crate::netlab::perf_and_logs;
use crate::random::Random;
use crate::script::Script;

/// Host of each rank: the hosts are unequal, one has one rank, and ranks are dealt out.
const SEATS: [usize; 6] = [0, 1, 0, 2, 1, 0];

#[test]
fn every_collective_is_right_in_registered_memory_of_several_hosts() {
    let Some(lab) = Lab::new(3) else { return };
    let by = [
        ("all_reduce", "hierarchical"),
        ("all_reduce", "multi_leader"),
        ("all_reduce", "leader"),
        ("all_reduce", "ring"),
        ("reduce_scatter", "hierarchical"),
        ("all_gather", "hierarchical"),
        ("broadcast", "hierarchical"),
        ("reduce", "leader"),
        ("all_to_all", "direct"),
    ];
    let logs = [
        ("RINGFOLD_DEBUG", "INFO"),
        ("RINGFOLD_DEBUG_SUBSYS", "TUNING,TRANSPORT"),
    ];
    for (collective, algorithm) in by {
        let mut arguments = vec![collective, "-A", algorithm, "-R", "1", "-n", "2", "-w", "0"];
        arguments.extend(["-b", "8", "-e", "2M", "-f", "512"]);
        let (table, complaints) = perf_and_logs(&lab, &SEATS, &logs, &arguments);
        assert!(table.contains("shm+tcp"), "{collective}: {table}");
        for due in ["are lent", " messages from registered memory"] {
            let says = complaints.iter().any(|log| log.contains(due));
            assert!(says, "{collective} by {algorithm}, `{due}`: {complaints:?}");
        }
    }
    let arguments = ["all_reduce", "-A", "hierarchical", "-b", "2M", "-n", "2"];
    let (_, complaints) = perf_and_logs(&lab, &SEATS, &logs, &arguments);
    let lends = complaints.iter().any(|log| log.contains("lent"));
    assert!(!lends, "ordinary memory: {complaints:?}");
    lab.assert_empty();
}

#[test]
fn memory_is_registered_and_given_back_between_hosts() {
    let Some(lab) = Lab::new(3) else { return };
    for collective in ["alloc", "register"] {
        let script = Script {
            iterations: 8,
            ..script(collective, 1 << 20)
        };
        assert_all_good(&lab.start(&lab.plan(5, "auto", script)).finish(), 8);
    }
    lab.assert_empty();
}

/// Kills a rank at a random moment of a call in which memory is lent; the dead rank's lent memory
/// stays.
#[test]
fn a_rank_killed_while_memory_is_lent_is_named_by_every_survivor() {
    let Some(lab) = Lab::new(2) else { return };
    let mut random = Random::new("kill while memory is lent");
    for victim in 0..4 {
        println!("rank {victim}");
        let script = script("all_reduce_registered", 4 << 20);
        let mut job = lab.start(&lab.plan(4, "auto", script));
        job.await_all("running");
        job.rank(victim).await_event("calling");
        random.pause(Duration::from_millis(20));
        job.kill(victim);
        assert_all_blame(&job.finish(), "PeerFailed", victim);
    }
    lab.assert_empty();
}
