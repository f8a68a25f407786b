//! The control plane between real processes that are killed, are stopped, or leave in order.
//!
//! Ranks 0 and 1 run in the test; rank 2 is this test program again, which runs `as_rank_2`.

mod skipped;

use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfold::Error;
use ringfold::internals::control::{Health, Launch, Session};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, WaitOptions, kill_process, pidfd_getfd, pidfd_open,
    waitpid,
};
use skipped::skipped;

const MEMBERS: [usize; 3] = [0, 1, 2];
const ADDRESS: &str = "RINGFOLD_TEST_RANK_2_ADDRESS";
const ORDER: &str = "RINGFOLD_TEST_RANK_2_ORDER";

fn ample() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn join(rank: usize, address: &str) -> Session {
    let launch = Launch {
        rank,
        world_size: 3,
        local_rank: None,
        local_world_size: None,
        addresses: vec![address.parse().unwrap()],
        public_name: None,
        socket_ifname: None,
        silence: Default::default(),
        origin: "test",
        remark: None,
    };
    Session::join(&launch, None, ample()).unwrap()
}

fn open(session: &Session) -> Arc<Health> {
    let health = session.open(7, &MEMBERS, Arc::new(|| {})).unwrap();
    session.exchange("opened", &MEMBERS, b"", ample()).unwrap();
    health
}

#[test]
#[ignore = "started as rank 2 by the other tests"]
fn as_rank_2() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let session = join(2, &address);
    let _health = open(&session);
    if std::env::var(ORDER).is_ok_and(|order| order == "leave") {
        return;
    }
    // Waits until this process is killed or its parent has ended.
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The process of rank 2, which is killed when dropped.
struct Rank2(Child);

impl Rank2 {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Returns duplicates of rank 2's sockets, such as a child that rank 2 forked would have.
    fn sockets(&self) -> Vec<OwnedFd> {
        let process = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).unwrap();
        (3..64)
            .filter_map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).ok())
            .collect()
    }
}

impl Drop for Rank2 {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ranks 0 and 1 with their view of a communicator whose rank 2 follows `order`. The fields are
/// dropped in the reverse of the order in which they were opened.
struct Job {
    health: [Arc<Health>; 2],
    one: Session,
    zero: Session,
    rank_2: Rank2,
}

fn job(order: &str) -> Job {
    let name = u128::from_le_bytes(ringfold::internals::control::random().unwrap());
    let address = format!("unix:@ringfold-test-{name:x}");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_rank_2", "--ignored", "--quiet"])
        .env(ADDRESS, &address)
        .env(ORDER, order)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let rank_2 = Rank2(child);
    let (zero, one) = std::thread::scope(|scope| {
        let start = |rank| {
            let address = &address;
            scope.spawn(move || {
                let session = join(rank, address);
                let health = open(&session);
                (session, health)
            })
        };
        let (zero, one) = (start(0), start(1));
        (zero.join().unwrap(), one.join().unwrap())
    });
    Job {
        health: [zero.1, one.1],
        one: one.0,
        zero: zero.0,
        rank_2,
    }
}

/// Waits for the verdict of both ranks, and returns it.
fn verdict(job: &Job) -> Error {
    let [zero, one] = &job.health;
    let end = ample();
    while !(zero.is_faulty() && one.is_faulty()) {
        assert!(Instant::now() < end, "no verdict");
        std::thread::yield_now();
    }
    let (zero, one) = (zero.fault().unwrap(), one.fault().unwrap());
    assert_eq!(zero.class(), one.class());
    zero
}

#[test]
fn a_killed_process_is_a_failed_peer() {
    let job = job("stay");
    job.rank_2.signal(Signal::KILL);
    let error = verdict(&job);
    assert!(
        matches!(error, Error::PeerFailed { rank: 2, .. }),
        "{error}"
    );
}

#[test]
fn a_death_is_seen_even_if_somebody_holds_the_sockets() {
    let job = job("stay");
    let held = job.rank_2.sockets();
    if held.is_empty() {
        skipped("this system does not let a process duplicate its child's descriptors");
        return;
    }
    job.rank_2.signal(Signal::KILL);
    let error = verdict(&job);
    assert!(
        matches!(error, Error::PeerFailed { rank: 2, .. }),
        "{error}"
    );
}

#[test]
fn a_process_that_leaves_in_good_order_is_no_fault() {
    let mut job = job("leave");
    assert!(job.rank_2.0.wait().unwrap().success());
    let end = ample();
    while !job.health.iter().all(|health| health.has_left(2)) {
        assert!(Instant::now() < end, "the goodbye did not arrive");
        std::thread::yield_now();
    }
    // When the monitors answer this exchange, they have seen the end of the process.
    std::thread::scope(|scope| {
        for session in [&job.zero, &job.one] {
            scope.spawn(|| session.exchange("after", &[0, 1], b"", ample()).unwrap());
        }
    });
    assert!(job.health.iter().all(|health| !health.is_faulty()));
}

#[test]
fn a_stopped_process_is_to_blame_for_a_timeout() {
    let job = job("stay");
    job.rank_2.signal(Signal::STOP);
    // Rank 2 may answer until all of its threads have stopped.
    let stopped = waitpid(Some(Pid::from_child(&job.rank_2.0)), WaitOptions::UNTRACED);
    assert!(stopped.unwrap().is_some_and(|(_, status)| status.stopped()));
    let suspicion = Error::Timeout {
        waiting_for: vec![0],
        after_ms: 10,
        site: None,
    };
    let reported = job.health[1].report_fault(suspicion, Duration::from_secs(20));
    let named =
        |error: &Error| matches!(error, Error::Timeout { waiting_for, .. } if *waiting_for == [2]);
    assert!(named(&reported), "{reported}");
    assert!(named(&verdict(&job)));
}
