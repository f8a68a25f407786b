//! `ringfold run --hosts`: two launchers, as on two hosts, that meet at a loopback address.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::Signal;

use crate::process::{Finished, Running, finish, ringfold};

/// A port that the system assigns to no other process, and at which rank 0 may listen.
struct Port {
    number: u16,
    _holder: OwnedFd,
}

impl Port {
    fn free() -> Port {
        let flags = SocketFlags::CLOEXEC;
        let holder =
            net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        sockopt::set_socket_reuseaddr(&holder, true).unwrap();
        net::bind(&holder, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let bound = SocketAddr::try_from(net::getsockname(&holder).unwrap()).unwrap();
        Port {
            number: bound.port(),
            _holder: holder,
        }
    }

    /// Returns the launcher of host `host_rank` of two, with two ranks.
    fn launcher(&self, host_rank: usize, program: &[&str]) -> Command {
        let (host_rank, address) = (host_rank.to_string(), format!("127.0.0.1:{}", self.number));
        let mut arguments = vec!["run", "--hosts", "2", "--host-rank", &host_rank];
        arguments.extend(["--addr", &address, "--ranks", "2", "--"]);
        arguments.extend(program);
        let mut command = ringfold(&arguments);
        command.env("RINGFOLD_SECRET", "a secret of both hosts");
        // Beyond the watchdog: a test that waits for the deadline of joining fails.
        command.env("RINGFOLD_CONNECT_TIMEOUT_MS", "600000");
        command
    }
}

/// Runs one program on host 0 and another one on host 1.
fn both(programs: [&[&str]; 2]) -> [Finished; 2] {
    let port = Port::free();
    let running = [0, 1].map(|host| Running::start(port.launcher(host, programs[host])));
    running.map(Running::finish)
}

#[test]
fn ranks_of_all_hosts_are_one_job() {
    let perf = [
        env!("CARGO_BIN_EXE_ringfold"),
        "perf",
        "-b",
        "8",
        "-e",
        "64K",
        "-f",
        "8",
    ];
    let [first, second] = both([&perf, &perf]);
    assert!(first.status.success(), "{}", first.stderr);
    assert!(second.status.success(), "{}", second.stderr);
    let said = &first.stdout;
    assert!(said.contains("[0] "), "{said}");
    for rank in 0..4 {
        let line = format!("[0] #  Rank {rank:2} ");
        assert!(said.contains(&line), "no `{line}` in {said}");
    }
}

#[test]
fn variables_count_on_over_hosts() {
    let script = "echo $RINGFOLD_RANK $RANK $LOCAL_RANK of $WORLD_SIZE, $LOCAL_WORLD_SIZE; \
                  echo $((MASTER_PORT - ${RINGFOLD_ADDR##*:})) $MASTER_ADDR";
    let port = Port::free();
    let done = Running::start(port.launcher(1, &["sh", "-c", script])).finish();
    let mut lines: Vec<_> = done.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "[2] 1 127.0.0.1",
            "[2] 2 2 0 of 4, 2",
            "[3] 1 127.0.0.1",
            "[3] 3 3 1 of 4, 2"
        ]
    );
}

/// The ranks of the failed rank's host end at once; the other host's ranks learn of it while they
/// wait.
#[test]
fn a_rank_that_cannot_start_ends_the_job_on_all_hosts() {
    let perf = [env!("CARGO_BIN_EXE_ringfold"), "perf", "-b", "8", "-e", "8"];
    let fails = ["sh", "-c", "exit 7"];
    for failing in 0..2 {
        let mut programs: [&[&str]; 2] = [&perf, &perf];
        programs[failing] = &fails;
        let done = both(programs);
        assert_eq!(done[failing].status.code(), Some(7));
        let other = &done[1 - failing];
        assert_eq!(other.status.code(), Some(1), "{}", other.stderr);
        // The first rank that ends is printed, and rank 1 may learn of rank 0's end before rank 0
        // has printed its error.
        let reasons: &[&str] = match failing {
            0 => &["rank 0's process has ended before it joined"],
            _ => &[
                "the process of rank 2 ended",
                "the process of rank 3 ended",
                "rank 0 stopped waiting for ranks to join",
            ],
        };
        let is_named = reasons.iter().any(|reason| other.stderr.contains(reason));
        assert!(is_named, "no {reasons:?}: {}", other.stderr);
    }
}

/// A user who interrupts the command on one host ends the job on all.
#[test]
fn an_interrupted_host_ends_the_job_on_all_hosts() {
    let perf = [
        env!("CARGO_BIN_EXE_ringfold"),
        "perf",
        "-b",
        "8",
        "-e",
        "8",
        "-n",
        "1000000",
    ];
    let port = Port::free();
    let first = Running::start(port.launcher(0, &perf));
    let second = Running::start(port.launcher(1, &perf));
    // Once the head of the table is printed, the ranks are connected.
    while !first.line().contains("Rank  3") {}
    second.signal(Signal::INT);
    assert!(!second.finish().status.success());
    assert!(!first.finish().status.success());
}

#[test]
fn arguments_that_do_not_fit_together_are_refused() {
    let refused = |arguments: &[&str], secret: Option<&str>| {
        // All are errors of the command line, except a missing variable.
        let status = if secret.is_some() { 2 } else { 1 };
        let mut command = ringfold(&["run"]);
        command.args(arguments).args(["--", "true"]);
        if let Some(secret) = secret {
            command.env("RINGFOLD_SECRET", secret);
        }
        let done = Running::start(command).finish();
        assert_eq!(
            done.status.code(),
            Some(status),
            "{arguments:?}: {}",
            done.stderr
        );
        done.stderr
    };
    let whole = ["--hosts=2", "--host-rank=1", "--addr=127.0.0.1:9", "-n2"];
    let without = |name: &str| -> Vec<&str> {
        let kept = whole.iter().filter(|argument| !argument.starts_with(name));
        kept.copied().collect()
    };
    let secret = Some("a secret of both hosts");
    for (name, word) in [
        ("--hosts", "add --hosts N"),
        (
            "--host-rank",
            "needs --host-rank I on each host, from 0 to 1",
        ),
        ("--addr", "needs --addr HOST:PORT"),
        ("-n", "needs --ranks N, the same number on each host"),
    ] {
        let said = refused(&without(name), secret);
        assert!(said.contains(word), "without {name}: {said}");
    }
    assert!(refused(&whole, None).contains("needs a secret: set RINGFOLD_SECRET_FILE"));
    for (argument, word) in [
        ("--host-rank=2", "no --host-rank 2 among 2 hosts"),
        ("--addr=unix:@x", "other hosts cannot reach `unix:@x`"),
        ("--addr=127.0.0.1:65535", "no port after 65535"),
        ("--trace=x.json", "set RINGFOLD_TRACE"),
    ] {
        let name = argument.split('=').next().unwrap();
        let mut arguments = without(name);
        arguments.push(argument);
        let said = refused(&arguments, secret);
        assert!(said.contains(word), "{argument}: {said}");
    }
}

/// Scripts may always pass the number of hosts.
#[test]
fn one_host_needs_nothing_else() {
    let done = finish(&[
        "run",
        "--nnodes",
        "1",
        "--node-rank",
        "0",
        "-n2",
        "--",
        "true",
    ]);
    assert!(done.status.success(), "{}", done.stderr);
}
