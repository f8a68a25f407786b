//! Several sockets for each channel, over several networks at once; IPv6 and large packets.

use crate::command::run_each;
use crate::endings::{assert_all_blame, script};
use crate::lab::{self, Lab};
use crate::netlab::perf_and_logs;

const BOTH: [usize; 2] = [0, 1];
const RAILS: (&str, &str) = ("RINGFOLD_SOCKET_IFNAME", "eth0,eth1");

/// Creates two hosts with two cables each.
fn lab_with_rails() -> Option<Lab> {
    let lab = Lab::new(2)?;
    lab::is_made(lab.add_rails()).then_some(lab)
}

/// All-reduces of 4 MiB, at least five in all.
const CALLS: [&str; 9] = ["all_reduce", "-b", "4M", "-e", "4M", "-n", "4", "-w", "1"];
/// Minimum number of bytes that each rank sends in `CALLS`.
const CALLS_BYTES: u64 = 5 * (4 << 20);

/// Returns the bytes that the interfaces of host 0 have sent.
fn sent(lab: &Lab) -> [u64; 2] {
    ["eth0", "eth1"].map(|interface| lab.counter(0, interface, "tx_bytes"))
}

#[test]
fn two_rails_carry_half_each() {
    let Some(lab) = lab_with_rails() else { return };
    if !lab::is_made(lab.shape("200mbit")) {
        return;
    }
    let variables = [RAILS, ("RINGFOLD_DEBUG", "INFO")];
    let (_, logs) = perf_and_logs(&lab, &BOTH, &variables, &CALLS);
    let sent = sent(&lab);
    let all: u64 = sent.iter().sum();
    assert!(all > CALLS_BYTES, "{sent:?}");
    for bytes in sent {
        assert!(bytes * 20 > all * 9 && bytes * 20 < all * 11, "{sent:?}");
    }
    for (log, peer) in logs.iter().zip([1, 0]) {
        let due = format!(
            "2 sockets for each channel with ranks [{peer}] over 2 rails, such as {} to {} and {}",
            lab::address(1),
            lab::address(0),
            lab::second_address(1)
        );
        assert!(log.contains(&due), "{log}");
    }
    lab.assert_empty();
}

#[test]
fn the_variables_of_gloo_and_nccl_name_interfaces_if_the_own_one_is_not_set() {
    let Some(lab) = lab_with_rails() else { return };
    let [own, gloo, nccl] =
        ["RINGFOLD", "GLOO", "NCCL"].map(|name| format!("{name}_SOCKET_IFNAME"));
    let (own, gloo, nccl) = (own.as_str(), gloo.as_str(), nccl.as_str());
    let elsewhere = (nccl, "^eth");
    for (variables, used, why) in [
        (
            vec![(gloo, "eth1"), elsewhere],
            1,
            "GLOO_SOCKET_IFNAME=`eth1`",
        ),
        (
            vec![(nccl, "=eth1,ib0")],
            1,
            "NCCL_SOCKET_IFNAME=`=eth1,ib0`",
        ),
        (
            vec![(nccl, "^eth1,docker")],
            0,
            "NCCL_SOCKET_IFNAME=`^eth1,docker`",
        ),
        (
            vec![(own, "eth0"), (gloo, "eth1")],
            0,
            "RINGFOLD_SOCKET_IFNAME=`eth0`",
        ),
    ] {
        let before = sent(&lab);
        let debug = ("RINGFOLD_DEBUG", "INFO");
        let variables = [variables, vec![debug]].concat();
        let (_, logs) = perf_and_logs(&lab, &BOTH, &variables, &CALLS);
        let after = sent(&lab);
        assert!(after[used] - before[used] > CALLS_BYTES, "{variables:?}");
        assert!(
            after[1 - used] - before[1 - used] < CALLS_BYTES / 4,
            "{variables:?}"
        );
        for log in logs {
            assert!(log.contains(why), "{variables:?}: {log}");
        }
    }
    let wrong = |_| vec![elsewhere];
    for done in run_each(&lab, &BOTH, wrong, &[&["perf"], &CALLS[..]].concat()) {
        let said = String::from_utf8_lossy(&done.stderr);
        for due in ["NCCL_SOCKET_IFNAME=`^eth` selects no interface", own] {
            assert!(said.contains(due), "{said}");
        }
    }
    lab.assert_empty();
}

#[test]
fn one_rail_is_used_unless_interfaces_are_named() {
    let Some(lab) = lab_with_rails() else { return };
    for variables in [vec![], vec![RAILS, ("RINGFOLD_SOCKETS", "1")]] {
        let before = sent(&lab);
        perf_and_logs(&lab, &BOTH, &variables, &CALLS);
        let after = sent(&lab);
        let [first, second] = [after[0] - before[0], after[1] - before[1]];
        assert!(
            first > CALLS_BYTES && second < CALLS_BYTES / 100,
            "{variables:?}: {first} {second}"
        );
    }
    lab.assert_empty();
}

#[test]
fn a_rail_that_cannot_be_connected_is_left_out() {
    let Some(lab) = lab_with_rails() else { return };
    // On one host, the kernel rejects this destination.
    let to = lab::second_address(0);
    if !lab::is_made(lab.on(1, &["rule", "add", "to", &to, "pref", "0", "unreachable"])) {
        return;
    }
    // Ranks wait for the rail during half of this time.
    let variables = [RAILS, ("RINGFOLD_CONNECT_TIMEOUT_MS", "4000")];
    let (_, logs) = perf_and_logs(&lab, &BOTH, &variables, &CALLS);
    let due = format!(
        "data with rank 0 does not use the rail from {}",
        lab::second_address(1)
    );
    assert!(logs[1].contains(&due), "{}", logs[1]);
    let [first, second] = sent(&lab);
    assert!(
        first > CALLS_BYTES && second < CALLS_BYTES / 100,
        "{first} {second}"
    );
    lab.assert_empty();
}

#[test]
fn a_rail_that_is_pulled_ends_the_job() {
    let Some(lab) = lab_with_rails() else { return };
    let mut plan = lab.plan(2, "auto", script("all_reduce", 1 << 20));
    plan.variables = vec![(RAILS.0, RAILS.1.into())];
    let job = lab.start(&plan);
    job.await_all("running");
    lab.cut_rail(1);
    let endings = job.finish();
    for (rank, ending) in &endings {
        assert_eq!(ending.class, "PeerFailed", "rank {rank}: {ending:?}");
    }
    // Both ranks have the same verdict.
    assert_eq!(endings[0].1.ranks, endings[1].1.ranks);
    lab.assert_empty();
}

#[test]
fn several_sockets_do_not_hide_a_death() {
    let Some(lab) = Lab::new(3) else { return };
    let mut plan = lab.plan(3, "auto", script("all_reduce", 4 << 20));
    plan.variables = vec![("RINGFOLD_SOCKETS", "3".into())];
    let mut job = lab.start(&plan);
    job.await_all("running");
    job.kill(1);
    assert_all_blame(&job.finish(), "PeerFailed", 1);
    lab.assert_empty();
}

#[test]
fn ipv6_and_large_packets_are_used_where_they_are() {
    let Some(lab) = Lab::new(2) else { return };
    let prepare = || -> Result<(), String> {
        lab.set_mtu("9000")?;
        for host in BOTH {
            let address = format!("fd77::{}/64", host + 1);
            lab.on(host, &["address", "add", &address, "dev", "eth0", "nodad"])?;
            lab.on(host, &["-4", "address", "flush", "dev", "eth0"])?;
        }
        Ok(())
    };
    if !lab::is_made(prepare()) {
        return;
    }
    let variables = [
        ("RINGFOLD_ADDR", "[fd77::1]:29400"),
        ("RINGFOLD_SOCKETS", "2"),
        ("RINGFOLD_DEBUG", "INFO"),
    ];
    let (_, logs) = perf_and_logs(&lab, &BOTH, &variables, &CALLS);
    assert!(
        logs[0].contains("listening for data on [[fd77::1]:"),
        "{}",
        logs[0]
    );
    let [bytes, packets] = ["tx_bytes", "tx_packets"].map(|name| lab.counter(0, "eth0", name));
    assert!(bytes > CALLS_BYTES, "{bytes}");
    // Acknowledgements are packets, too.
    assert!(bytes / packets > 3000, "{bytes} bytes in {packets} packets");
    lab.assert_empty();
}
