//! Jobs of one host detect each other, and no job that has ended.

use std::path::Path;
use std::time::Instant;

use ringfold::internals::topology::neighbours::{Neighbour, neighbours};

use crate::endings::script;
use crate::job::{Job, Plan, WATCHDOG};

fn pids(job: &Job) -> Vec<u32> {
    let pid = |rank: &crate::job::Rank| rank.pid().as_raw_nonzero().get() as u32;
    job.ranks.iter().map(pid).collect()
}

fn find(pid: u32) -> Option<Neighbour> {
    let all = neighbours(Path::new("/"));
    all.into_iter().find(|neighbour| neighbour.pid == pid)
}

/// Waits until `is_so` holds for a process' entry among the neighbours.
fn await_that(pid: u32, is_so: impl Fn(Option<Neighbour>) -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !is_so(find(pid)) {
        assert!(Instant::now() < deadline, "process {pid}: {:?}", find(pid));
        std::thread::yield_now();
    }
}

#[test]
fn two_jobs_see_each_other_and_neither_sees_the_dead() {
    let plan = Plan::new(2, "shm", script("all_reduce", 64 << 10));
    let mut first = plan.start();
    first.await_all("running");
    for pid in pids(&first) {
        await_that(pid, |found| found.is_some_and(|found| found.is_running));
    }
    let talkative = Plan {
        variables: vec![("RINGFOLD_DEBUG", "TRACE".into())],
        ..plan.clone()
    };
    let mut second = talkative.start();
    second.await_all("running");
    for rank in &second.ranks {
        let said = rank.complaints();
        let line = said
            .lines()
            .find(|line| line.contains("processes of other communicators: ["));
        let line = line.unwrap_or_else(|| panic!("no neighbours in {said}"));
        let list = line.rsplit(['[', ']']).nth(1).expect("a list in brackets");
        let seen: Vec<u32> = list.split(", ").flat_map(str::parse).collect();
        // Other tests of this program may have jobs, too.
        assert!(pids(&first).iter().all(|pid| seen.contains(pid)), "{line}");
        assert!(
            !pids(&second).iter().any(|pid| seen.contains(pid)),
            "{line}"
        );
    }
    let [_, dead] = pids(&first)[..] else {
        panic!("two ranks");
    };
    first.kill(1);
    assert_eq!(find(dead), None);
    // The survivor leaves its communicator with the error, which removes its mark.
    let [left] = pids(&first)[..] else {
        panic!("one rank");
    };
    first.finish();
    await_that(left, |found| found.is_none());
    second.kill(0);
    second.finish();
}
