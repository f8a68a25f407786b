//! Networks for data that carry nothing yet when ranks join.

use std::time::{Duration, Instant};

use crate::endings::{assert_all_good, script};
use crate::job::{Job, Plan, WATCHDOG};
use crate::lab::{self, Lab};

/// Obstacles between host 1 and host 0's second network: the error, and how to add and remove it.
const OBSTACLES: [(&str, &[&str], &[&str]); 2] = [
    (
        "No route to host",
        &["route", "add", "unreachable"],
        &["route", "delete", "unreachable"],
    ),
    (
        "Network is unreachable",
        &["rule", "add", "pref", "0", "unreachable", "to"],
        &["rule", "delete", "pref", "0", "unreachable", "to"],
    ),
];

/// Bytes to reduce over two rails: enough to be spread over both.
const RAIL_BYTES: usize = 1 << 20;

/// Creates two hosts that meet in one network, and have another, obstructed one for data.
fn lab_with_obstacle(obstacle: &[&str]) -> Option<Lab> {
    let lab = Lab::new(2)?;
    let made = lab.add_rails().and_then(|()| change(&lab, obstacle));
    lab::is_made(made).then_some(lab)
}

/// Adds an obstacle, or removes it.
fn change(lab: &Lab, words: &[&str]) -> Result<(), String> {
    lab.on(1, &[words, &[&lab::second_address(0)]].concat())
}

fn plan(lab: &Lab) -> Plan {
    let calls = crate::script::Script {
        iterations: 3,
        ..script("all_reduce", 64 << 10)
    };
    Plan {
        variables: vec![("RINGFOLD_SOCKET_IFNAME", "eth1".into())],
        ..lab.plan(2, "auto", calls)
    }
}

/// Waits until rank 1 has written `due` to standard error.
fn await_complaint(job: &Job, due: &str) {
    let deadline = Instant::now() + WATCHDOG;
    while !job.rank(1).complaints().contains(due) {
        let complaints = job.rank(1).complaints();
        assert!(Instant::now() < deadline, "no `{due}` in {complaints}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn ranks_join_once_there_is_a_way_for_their_data() {
    for (why, obstacle, cure) in OBSTACLES {
        let Some(lab) = lab_with_obstacle(obstacle) else {
            return;
        };
        let job = lab.start(&plan(&lab));
        await_complaint(&job, why);
        change(&lab, cure).expect("the obstacle is there");
        assert_all_good(&job.finish(), 3);
        lab.assert_empty();
    }
}

#[test]
fn data_without_a_way_ends_joining_at_its_deadline_and_the_address_is_named() {
    let (why, obstacle, _) = OBSTACLES[0];
    let Some(lab) = lab_with_obstacle(obstacle) else {
        return;
    };
    let job = lab.start(&Plan {
        connect_timeout: Duration::from_secs(8),
        ..plan(&lab)
    });
    await_complaint(&job, why);
    for (rank, ending) in job.finish() {
        // The first deadline to pass, on either rank, ends the attempt of both.
        let is_due = ["Bootstrap", "Aborted"].contains(&ending.class.as_str());
        assert!(is_due, "rank {rank}: {ending:?}");
        for due in [&lab::second_address(0), "RINGFOLD_SOCKET_IFNAME"] {
            assert!(ending.text.contains(due), "rank {rank}: {ending:?}");
        }
    }
    lab.assert_empty();
}

#[test]
fn a_rail_that_comes_up_late_is_waited_for_and_used() {
    let (why, obstacle, cure) = OBSTACLES[0];
    let Some(lab) = lab_with_obstacle(obstacle) else {
        return;
    };
    let mut due = plan(&lab);
    due.variables = vec![("RINGFOLD_SOCKET_IFNAME", "eth0,eth1".into())];
    due.script.bytes = RAIL_BYTES;
    let job = lab.start(&due);
    await_complaint(&job, "waits for the rail");
    assert!(job.rank(1).complaints().contains(why));
    change(&lab, cure).expect("the obstacle is there");
    assert_all_good(&job.finish(), 3);
    // More than half of the data of three all-reduces has used the rail.
    let bytes = lab.counter(0, "eth1", "tx_bytes");
    assert!(bytes > 3 * RAIL_BYTES as u64 / 2, "{bytes}");
    lab.assert_empty();
}
