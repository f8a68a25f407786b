//! Ranks on several hosts: all collectives, and the effect of killing, stopping or disconnecting a
//! host's rank.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::command::{run, run_each};
use crate::endings::{assert_all_blame, assert_all_good, script};
use crate::job::{Plan, Rank};
use crate::lab::{self, Lab};
use crate::random::Random;
use crate::rank::MEETING;
use crate::script::Script;

const HOSTS: usize = 4;

/// Runs `ringfold perf` with a rank on each host. Returns rank 0's output, once all have succeeded.
fn perf(lab: &Lab, arguments: &[&str]) -> String {
    let hosts: Vec<usize> = (0..lab.hosts()).collect();
    perf_and_logs(lab, &hosts, &[], arguments).0
}

/// Runs `ringfold perf` with these variables, each rank on the host that is listed for it. Returns
/// rank 0's output, and each rank's standard error, once all have succeeded.
pub fn perf_and_logs(
    lab: &Lab,
    hosts: &[usize],
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> (String, Vec<String>) {
    run(lab, hosts, variables, &[&["perf"], arguments].concat())
}

#[test]
fn every_collective_is_right_between_four_hosts() {
    let Some(lab) = Lab::new(HOSTS) else { return };
    let collectives = [
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "reduce_scatter",
        "gather",
        "scatter",
        "all_to_all",
        "sendrecv",
        "barrier",
    ];
    for collective in collectives {
        let sizes: &[&str] = match collective {
            "barrier" => &[],
            _ => &["-b", "8", "-e", "512K", "-f", "256"],
        };
        let mut arguments = vec![collective, "-n", "2", "-w", "0"];
        arguments.extend(sizes);
        let table = perf(&lab, &arguments);
        assert!(table.contains("tcp"), "{collective}: {table}");
        println!("{table}");
    }
    lab.assert_empty();
}

#[test]
fn two_levels_are_right_on_hosts_of_unequal_sizes() {
    let Some(lab) = Lab::new(3) else { return };
    let by = [
        ("hierarchical", "all_reduce"),
        ("hierarchical", "broadcast"),
        ("hierarchical", "reduce"),
        ("hierarchical", "all_gather"),
        ("hierarchical", "reduce_scatter"),
        ("hierarchical", "all_to_all"),
        ("multi_leader", "all_reduce"),
        ("leader", "all_reduce"),
        ("leader", "broadcast"),
        ("leader", "reduce"),
        ("leader", "all_gather"),
        ("leader", "reduce_scatter"),
        ("leader", "gather"),
        ("leader", "scatter"),
        ("leader", "barrier"),
    ];
    for (number, (algorithm, collective)) in by.into_iter().enumerate() {
        let hosts: &[usize] = match number % 2 {
            0 => &[0, 0, 0, 1, 1, 2],
            _ => &[0, 2, 1, 0, 1],
        };
        let mut arguments = vec![collective, "-A", algorithm, "-n", "2", "-w", "0"];
        if collective != "barrier" {
            arguments.extend(["-b", "8", "-e", "512K", "-f", "256"]);
        }
        let table = perf_and_logs(&lab, hosts, &[], &arguments).0;
        println!("{table}");
        let is_named = table.contains("shm+tcp") && table.contains(algorithm);
        assert!(is_named, "{collective}: {table}");
    }
    lab.assert_empty();
}

#[test]
fn a_rank_killed_on_another_host_is_named_by_every_survivor() {
    let Some(lab) = Lab::new(HOSTS) else { return };
    let mut random = Random::new("kill between hosts");
    // With eight ranks, each host has two.
    for (ranks, victim, bytes) in [
        (HOSTS, 0, 64 << 10),
        (HOSTS, 2, 8),
        (HOSTS, 3, 4 << 20),
        (2 * HOSTS, 0, 64 << 10),
        (2 * HOSTS, 7, 64 << 10),
    ] {
        println!("rank {victim} of {ranks}, {bytes} bytes");
        let mut job = lab.start(&lab.plan(ranks, "auto", script("all_reduce", bytes)));
        job.await_all("running");
        random.pause(Duration::from_millis(20));
        job.kill(victim);
        assert_all_blame(&job.finish(), "PeerFailed", victim);
    }
    lab.assert_empty();
}

/// The child has all connections of its parent, and its host continues to acknowledge the data sent
/// over them.
#[test]
fn a_killed_rank_is_named_although_its_forked_child_lives_on() {
    let Some(lab) = Lab::new(2) else { return };
    for victim in [0, 1] {
        println!("rank {victim}");
        let calls = script("all_reduce", 64 << 10);
        let parent = Script {
            act: "fork".into(),
            at: 1,
            ..calls.clone()
        };
        let mut job = lab.plan(2, "auto", calls.clone()).empty();
        for rank in 0..2 {
            lab.add(
                &mut job,
                rank,
                if rank == victim { &parent } else { &calls },
            );
        }
        let forked = job.rank(victim).await_event("forked");
        let child = forked.word("pid").parse().ok().and_then(Pid::from_raw);
        job.kill(victim);
        assert_all_blame(&job.finish(), "PeerFailed", victim);
        let child = child.expect("a process' number");
        kill_process(child, Signal::KILL).expect("it has outlived its parent");
    }
}

#[test]
fn a_rank_frozen_on_another_host_is_named_when_the_deadline_passes() {
    let Some(lab) = Lab::new(3) else { return };
    for victim in [0, 2] {
        println!("rank {victim}");
        let timeout = Duration::from_millis(700);
        let plan = Plan {
            timeout,
            ..lab.plan(3, "auto", script("all_reduce", 64 << 10))
        };
        let mut job = lab.start(&plan);
        job.await_all("running");
        let frozen = job.take(victim);
        frozen.signal(Signal::STOP);
        assert_all_blame(&job.endings(), "Timeout", victim);
        frozen.signal(Signal::CONT);
        assert_ne!(frozen.finish().class, "", "the others are gone");
    }
    lab.assert_empty();
}

#[test]
fn a_host_that_is_cut_off_has_failed_for_the_others() {
    for victim in [0, 2] {
        let Some(lab) = Lab::new(3) else { return };
        println!("host {victim}");
        let mut job = lab.start(&lab.plan(3, "auto", script("all_reduce", 64 << 10)));
        job.await_all("running");
        lab.cut(victim);
        let lonely = job.take(victim);
        let endings = job.endings();
        let ending = lonely.finish();
        assert_all_blame(&endings, "PeerFailed", victim);
        assert_eq!(
            ending.class, "PeerFailed",
            "the one that is cut off: {ending:?}"
        );
        lab.assert_empty();
    }
}

/// The neighbour may have ended because it detected the failure sooner.
#[test]
fn a_neighbour_that_ends_on_a_host_that_is_cut_off_is_not_what_failed() {
    let Some(lab) = Lab::new(2) else { return };
    let mut job = lab.start(&lab.plan(4, "auto", script("all_reduce", 64 << 10)));
    job.await_all("running");
    lab.cut(1);
    job.kill(3);
    for (rank, ending) in job.finish() {
        let blames_other_host = ending.ranks.iter().all(|blamed| blamed % 2 != rank % 2);
        assert!(
            ending.class == "PeerFailed" && blames_other_host,
            "rank {rank}: {ending:?}"
        );
    }
    lab.assert_empty();
}

/// Longer than the default peer timeout, and less than half of the one set here, because Linux
/// before 6.15 retries at increasing intervals.
const OUTAGE: Duration = Duration::from_secs(3);
const PEER_TIMEOUT_MS: &str = "7500";

#[test]
fn an_outage_shorter_than_the_peer_timeout_of_rank_0_is_survived() {
    let Some(lab) = Lab::new(2) else { return };
    let calls = Script {
        tells: true,
        ..script("all_reduce", 64 << 10)
    };
    let mut job = lab.plan(2, "auto", calls.clone()).empty();
    job.plan.variables = vec![("RINGFOLD_PEER_TIMEOUT_MS", PEER_TIMEOUT_MS.into())];
    lab.add(&mut job, 0, &calls);
    job.plan.variables.clear();
    lab.add(&mut job, 1, &calls);
    job.await_all("running");
    lab.cut(1);
    // The length of the outage is under test.
    std::thread::sleep(OUTAGE);
    job.ranks.iter().for_each(Rank::forget_events);
    lab.mend(1);
    // A rank may already have finished the call in which the other was.
    job.await_all("call");
    job.await_all("call");
    job.kill(1);
    assert_all_blame(&job.finish(), "PeerFailed", 1);
    lab.assert_empty();
}

/// The goodbye of a rank overtakes its last data, which the kernel still sends.
#[test]
fn a_rank_may_leave_while_its_last_data_is_on_the_wire() {
    let Some(lab) = Lab::new(3) else { return };
    if !lab::is_made(lab.shape("20mbit")) {
        return;
    }
    // The second broadcast is rank 1's, which completes as soon as the kernel has taken the data.
    let last_is_from_rank_1 = Script {
        iterations: 2,
        ..script("broadcast", 1 << 20)
    };
    let job = lab.start(&lab.plan(3, "auto", last_is_from_rank_1));
    assert_all_good(&job.finish(), 2);
    lab.assert_empty();
}

#[test]
fn ranks_meet_where_rank_0_can_be_reached() {
    let Some(lab) = Lab::new(3) else { return };
    if !lab::is_made(lab.add_unreachable_address()) {
        return;
    }
    let calls = Script {
        iterations: 3,
        ..script("all_reduce", 64)
    };
    let file = std::env::temp_dir().join(format!("ringfold-meeting-{}", std::process::id()));
    let mut plan = lab.plan(4, "auto", calls);
    plan.variables = vec![
        (MEETING, file.display().to_string()),
        // On rank 0's host, the address that does not answer is the first.
        ("RINGFOLD_SOCKET_IFNAME", "side0,eth0".into()),
    ];
    let endings = lab.start(&plan).finish();
    let met_at = std::fs::read_to_string(&file).expect("rank 0 has passed it on");
    std::fs::remove_file(&file).expect("the test's own file");
    let candidates: Vec<&str> = met_at.split(',').collect();
    let [name, first, second] = candidates[..] else {
        panic!("met at {met_at}")
    };
    assert!(name.starts_with("unix:@ringfold-"), "{met_at}");
    assert!(first.starts_with("10.78.0.1:"), "{met_at}");
    assert!(second.starts_with(&lab::address(0)), "{met_at}");
    assert_all_good(&endings, 3);
    lab.assert_empty();
}

#[test]
fn an_interface_that_is_not_there_is_an_error_that_names_those_that_are() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plan = lab.plan(2, "auto", script("all_reduce", 64));
    plan.connect_timeout = Duration::from_secs(5);
    plan.variables = vec![("RINGFOLD_SOCKET_IFNAME", "ib7".into())];
    for (rank, ending) in lab.start(&plan).finish() {
        assert_eq!(ending.class, "InvalidArgument", "rank {rank}: {ending:?}");
        for word in ["ib7", "eth0", &lab::address(rank)] {
            assert!(
                ending.text.contains(word),
                "`{word}` is not in rank {rank}'s {ending:?}"
            );
        }
    }
}

/// Each rank may have a terminal of its own.
#[test]
fn ranks_that_were_started_apart_all_say_why_the_job_has_ended() {
    let Some(lab) = Lab::new(2) else { return };
    let arguments = ["perf", "-b", "8", "-e", "8", "-n", "1"];
    for culprit in [0, 1, 2] {
        let wrong = |rank| match rank == culprit {
            true => vec![("RINGFOLD_SOCKET_IFNAME", "ib7")],
            false => vec![],
        };
        for (rank, done) in run_each(&lab, &[0, 1, 1], wrong, &arguments)
            .iter()
            .enumerate()
        {
            let said = String::from_utf8_lossy(&done.stderr);
            let due = ["ib7".to_string(), format!("rank {culprit}")];
            let says = due.iter().all(|due| said.contains(due));
            assert!(says, "rank {rank} of which {culprit} is wrong: {said}");
        }
    }
    lab.assert_empty();
}

/// Measures the share of the link that an all-reduce of 16 MiB uses.
///
/// ```text
/// cargo test --release -p ringfold-cli --test faults -- --ignored --nocapture share_of_the_link
/// ```
///
/// `CAMPAIGN_RATES` and `CAMPAIGN_ALGORITHMS` are lists; the rate `unshaped` is the machine's own.
#[test]
#[ignore = "measures for minutes, on a machine that does nothing else"]
fn share_of_the_link_is_measured() {
    let setting =
        |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.into());
    let rates = setting("CAMPAIGN_RATES", "unshaped,1gbit");
    let algorithms = setting("CAMPAIGN_ALGORITHMS", "auto,ring,direct,rabenseifner");
    let Some(lab) = Lab::new(HOSTS) else { return };
    println!(
        "{:>9} {:>13} {:>5} {:>10} {:>10} {:>10} {:>7}",
        "rate", "algorithm", "hosts", "median_ms", "p99_ms", "limit_ms", "share"
    );
    for rate in rates.split(',') {
        if rate != "unshaped" {
            lab.shape(rate).expect("a rate that tc knows");
        }
        for algorithm in algorithms.split(',') {
            let mut arguments = vec![
                "all_reduce",
                "-b",
                "16M",
                "-e",
                "16M",
                "-n",
                "20",
                "--csv",
                "-",
            ];
            if algorithm != "auto" {
                arguments.extend(["--algorithm", algorithm]);
            }
            let table = perf(&lab, &arguments);
            let (used, median_us, p99_us) = median_of(&table);
            let bits = 2.0 * (HOSTS - 1) as f64 / HOSTS as f64 * f64::from(16 << 20) * 8.0;
            let gbit: Option<f64> = rate
                .strip_suffix("gbit")
                .and_then(|number| number.parse().ok());
            let limit_ms = gbit.map(|gbit| bits / gbit / 1e6);
            let shown =
                |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
            let share = limit_ms.map(|limit| limit / (median_us / 1e3));
            println!(
                "{rate:>9} {used:>13} {HOSTS:>5} {:>10.2} {:>10.2} {:>10} {:>7}",
                median_us / 1e3,
                p99_us / 1e3,
                shown(limit_ms),
                shown(share)
            );
        }
    }
}

/// Returns method, median and 99th percentile of the first line of perf's CSV.
fn median_of(csv: &str) -> (String, f64, f64) {
    let mut lines = csv
        .lines()
        .skip_while(|line| !line.starts_with("collective,"));
    let (head, line) = (lines.next(), lines.next());
    let (head, line) = head.zip(line).unwrap_or_else(|| panic!("no CSV in {csv}"));
    let cell = |name: &str| {
        let column = head.split(',').position(|title| title == name);
        line.split(',')
            .nth(column.expect("a column"))
            .expect("a cell")
    };
    let number = |name: &str| cell(name).parse().expect("a number");
    (
        cell("algorithm").into(),
        number("median_us"),
        number("p99_us"),
    )
}
