//! A rank ends in the middle of the work: killed, exited silently, closed, aborted.

use std::time::Duration;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use rustix::process::Signal;

use crate::job::{Ending, Job, Plan};
use crate::random::Random;
use crate::script::Script;

/// The transports that join the ranks of one host.
pub const TRANSPORTS: [&str; 3] = ["shm", "tcp", "rdma"];

/// One size for each form of a message: inline, whole, in slices.
pub const SIZES: [usize; 3] = [8, 64 << 10, 4 << 20];

/// Maximum time until a rank is killed; short against the time that the sizes above take.
const MOMENT: Duration = Duration::from_millis(20);

pub fn script(collective: &str, bytes: usize) -> Script {
    Script {
        collective: collective.into(),
        bytes,
        ..Script::default()
    }
}

/// Checks that every ending is of `class` and names exactly `culprit`.
pub fn assert_all_blame(endings: &[(usize, Ending)], class: &str, culprit: usize) {
    for (rank, ending) in endings {
        assert_eq!(
            (ending.class.as_str(), ending.ranks.as_slice()),
            (class, [culprit].as_slice()),
            "rank {rank} after rank {culprit}'s deed: {ending:?}"
        );
    }
}

/// Checks that every rank made `count` calls with the right result, and no error.
pub fn assert_all_good(endings: &[(usize, Ending)], count: u64) {
    for (rank, ending) in endings {
        let outcome = (ending.class.as_str(), ending.good);
        assert_eq!(outcome, ("", count), "rank {rank}: {ending:?}");
    }
}

/// Kills a rank of a running job at a random moment. Returns the time of the kill, and the endings.
pub fn kill_one(plan: &Plan, victim: usize, random: &mut Random) -> (u64, Vec<(usize, Ending)>) {
    let mut job = plan.start();
    job.await_all("running");
    random.pause(MOMENT);
    let at_ns = job.kill(victim);
    let endings = job.finish();
    assert_eq!(endings.len(), plan.world_size - 1);
    assert_all_blame(&endings, "PeerFailed", victim);
    (at_ns, endings)
}

/// Kills a random rank of a job that repeats a collective.
fn kill_any(
    (collective, bytes): (&str, usize),
    transport: &'static str,
    world_size: usize,
    random: &mut Random,
) {
    let victim = random.below(world_size);
    println!("rank {victim} of {world_size}, {transport}, {collective} of {bytes} bytes");
    let plan = Plan::new(world_size, transport, script(collective, bytes));
    kill_one(&plan, victim, random);
}

#[test]
fn a_killed_rank_is_named_by_every_survivor() {
    let mut random = Random::new("kill");
    for transport in TRANSPORTS {
        for bytes in SIZES {
            for world_size in [2, 4] {
                kill_any(("all_reduce", bytes), transport, world_size, &mut random);
            }
        }
        // The others meet at rank 0.
        let plan = Plan::new(3, transport, script("all_reduce", 64 << 10));
        kill_one(&plan, 0, &mut random);
    }
}

#[test]
fn a_killed_rank_is_named_where_all_work_in_its_memory() {
    let mut random = Random::new("kill in registered memory");
    for bytes in [64 << 10, 4 << 20] {
        for world_size in [2, 4] {
            let call = ("all_reduce_registered", bytes);
            kill_any(call, "shm", world_size, &mut random);
        }
    }
}

/// Maximum number of kills until one hits the survivor within its share.
const KILLS_MAX: usize = 40;

#[test]
fn a_verdict_ends_a_push_though_much_of_it_is_left() {
    let mut random = Random::new("kill within a push");
    // Large enough for a share to take longer than a verdict.
    let plan = Plan::new(2, "shm", script("all_reduce_registered", 64 << 20));
    for kill in 1..=KILLS_MAX {
        let mut job = plan.start();
        job.await_all("calling");
        random.pause(MOMENT);
        // Rank 0 is stopped while rank 1 dies: the kernel takes longer to free rank 1's memory than
        // a push takes.
        job.rank(0).signal(Signal::STOP);
        job.rank(0).await_stop();
        job.kill(1);
        job.rank(0).signal(Signal::CONT);
        let share = job.rank(0).await_event("share");
        let number = |name| share.word(name).parse::<usize>().expect("a number");
        let (elements, done) = (number("elements"), number("done"));
        println!("kill {kill}: {done} of {elements} elements done");
        assert_all_blame(&job.finish(), "PeerFailed", 1);
        if 0 < done && done < elements {
            return;
        }
    }
    panic!("a push under way was never ended");
}

#[test]
fn a_killed_rank_is_named_in_every_collective() {
    let mut random = Random::new("kill in collectives");
    for transport in TRANSPORTS {
        for collective in [
            "broadcast",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "barrier",
        ] {
            kill_any((collective, 64 << 10), transport, 3, &mut random);
        }
    }
}

/// Number of kills of each kind: most occur while the ranks meet.
const KILLS_IN_MAKING: usize = 6;

#[test]
fn a_killed_rank_is_named_while_memory_or_communicators_are_made() {
    let mut random = Random::new("kill in alloc, register and split");
    for (transport, collective) in [
        ("shm", "alloc"),
        ("shm", "register"),
        ("shm", "split"),
        ("tcp", "split"),
    ] {
        for _ in 0..KILLS_IN_MAKING {
            let world_size = 2 + random.below(3);
            kill_any((collective, 64 << 10), transport, world_size, &mut random);
        }
    }
}

#[test]
fn a_killed_rank_is_named_while_its_descriptors_live_on() {
    let mut random = Random::new("kill with descriptors");
    for transport in TRANSPORTS {
        for victim in [0, 1] {
            let mut job = Plan::new(3, transport, script("all_reduce", 64 << 10)).start();
            job.await_all("running");
            let kept = descriptors_of(&job, victim);
            assert!(!kept.is_empty());
            random.pause(MOMENT);
            job.kill(victim);
            assert_all_blame(&job.endings(), "PeerFailed", victim);
            drop(kept);
            job.finish();
        }
    }
}

/// Duplicates all descriptors of a rank, as if it had a child that outlives it.
fn descriptors_of(job: &Job, rank: usize) -> Vec<rustix::fd::OwnedFd> {
    let pid = job.rank(rank).pid();
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("the rank is running");
    let entries = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
    let numbers = entries.expect("the rank is running").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // Except its standard output, whose end shows that the rank has printed its last event.
    let numbers = numbers.filter(|number: &i32| *number > 2);
    let duplicate = |number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok();
    numbers.filter_map(duplicate).collect()
}

#[test]
fn a_communicator_without_the_killed_rank_goes_on() {
    for transport in TRANSPORTS {
        // Without rank 0, no rank knows all ranks.
        for victim in [0, 3] {
            println!("rank {victim}, {transport}");
            let calls = Script {
                in_halves: true,
                iterations: 400,
                pause_us: 5000,
                ..script("all_reduce", 4096)
            };
            let mut job = Plan::new(4, transport, calls).start();
            job.await_all("running");
            job.kill(victim);
            let endings = job.finish().into_iter();
            let (blaming, good): (Vec<_>, Vec<_>) =
                endings.partition(|(rank, _)| rank % 2 == victim % 2);
            // The victim's number in its half.
            assert_all_blame(&blaming, "PeerFailed", victim / 2);
            assert_all_good(&good, 400);
        }
    }
}

#[test]
fn a_rank_that_leaves_while_it_is_needed_is_named() {
    for transport in TRANSPORTS {
        for act in ["close", "exit"] {
            for leaver in [0, 2] {
                println!("rank {leaver}, {transport}, {act}");
                let plan = Plan::new(3, transport, script("all_reduce", 4096));
                let odd = Script {
                    act: act.into(),
                    at: 5,
                    ..plan.script.clone()
                };
                let mut job = plan.start_with(leaver, &odd);
                let own = job.take(leaver);
                assert_all_blame(&job.finish(), "PeerFailed", leaver);
                if act == "close" {
                    assert_eq!(own.finish().class, "Closed");
                }
            }
        }
    }
}

#[test]
fn an_abort_reaches_all_ranks_with_its_reason() {
    for transport in TRANSPORTS {
        for author in [0, 1] {
            let plan = Plan::new(3, transport, script("all_reduce", 4096));
            let odd = Script {
                act: "abort".into(),
                at: 5,
                ..plan.script.clone()
            };
            let endings = plan.start_with(author, &odd).finish();
            assert_all_blame(&endings, "Aborted", author);
            for (_, ending) in endings {
                assert!(
                    ending.text.contains("the loss is not a number"),
                    "{ending:?}"
                );
            }
        }
    }
}
