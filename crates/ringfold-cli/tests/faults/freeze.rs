//! A rank is stopped, as a debugger, a full disk or a busy machine would stop it.

use std::time::Duration;

use rustix::process::Signal;

use crate::endings::{TRANSPORTS, assert_all_blame, assert_all_good, script};
use crate::job::{Ending, Plan, Rank};
use crate::random::Random;
use crate::script::Script;

/// Number of calls before the one in which a rank freezes: their deadline is far away, however
/// slowly the ranks start.
const CALLS_BEFORE: u64 = 5;

/// Maximum number of attempts: if a busy machine keeps a living rank from answering an inquiry in
/// time, that rank is named too, and the test repeats.
const ATTEMPTS_MAX: usize = 5;

#[test]
fn a_frozen_rank_is_named_when_the_deadline_passes() {
    let mut random = Random::new("freeze");
    // Software RDMA devices stop with their process; real ones do not.
    for transport in ["shm", "tcp"] {
        for victim in [0, 1] {
            for bytes in [8, 1 << 20] {
                for attempt in 1.. {
                    println!("rank {victim}, {transport}, {bytes} bytes, attempt {attempt}");
                    let endings = freeze_one(transport, victim, bytes, &mut random);
                    let is_named_alone =
                        |(_, ending): &(usize, Ending)| ending.ranks.as_slice() == [victim];
                    if attempt == ATTEMPTS_MAX || endings.iter().all(is_named_alone) {
                        assert_all_blame(&endings, "Timeout", victim);
                        break;
                    }
                }
            }
        }
    }
}

/// Freezes a rank at a random moment around a call whose deadline begins afterwards. Returns the
/// others' endings.
fn freeze_one(
    transport: &'static str,
    victim: usize,
    bytes: usize,
    random: &mut Random,
) -> Vec<(usize, Ending)> {
    let calls = Script {
        act: "stop".into(),
        at: CALLS_BEFORE,
        deadline_ms: 500,
        ..script("all_reduce", bytes)
    };
    let patient = Script {
        deadline_ms: 0,
        ..calls.clone()
    };
    let mut job = Plan::new(3, transport, calls).start_with(victim, &patient);
    for rank in &job.ranks {
        rank.await_stop();
    }
    let frozen = job.take(victim);
    frozen.signal(Signal::CONT);
    random.pause(Duration::from_millis(10));
    frozen.signal(Signal::STOP);
    frozen.await_stop();
    for rank in &job.ranks {
        rank.signal(Signal::CONT);
    }
    let endings = job.endings();
    frozen.signal(Signal::CONT);
    assert_ne!(frozen.finish().class, "", "the others are gone");
    job.finish();
    endings
}

/// Longer than any time limit of a handshake with a stranger.
const STOP: Duration = Duration::from_millis(4500);

#[test]
fn a_rank_that_thaws_after_seconds_has_lost_nothing() {
    let mut random = Random::new("thaw in alloc");
    let jobs = [
        ("alloc", "shm", 4096, 0),
        ("alloc", "shm", 4096, 2),
        ("split", "shm", 4096, 1),
        ("split", "tcp", 4096, 0),
        // More than the buffers of a connection hold.
        ("send_and_barrier", "tcp", 16 << 20, 1),
    ];
    let started = jobs.map(|(collective, transport, bytes, victim)| {
        let calls = Script {
            tells: true,
            ..script(collective, bytes)
        };
        let job = Plan::new(3, transport, calls).start();
        job.await_all("running");
        (job, victim)
    });
    for (job, victim) in &started {
        random.pause(Duration::from_millis(10));
        job.rank(*victim).signal(Signal::STOP);
    }
    // A fixed time, because the test checks that nothing happens.
    std::thread::sleep(STOP);
    for (mut job, victim) in started {
        job.ranks.iter().for_each(Rank::forget_events);
        job.rank(victim).signal(Signal::CONT);
        // A rank may already have finished the call in which the others were.
        job.await_all("call");
        job.await_all("call");
        job.kill(victim);
        assert_all_blame(&job.finish(), "PeerFailed", victim);
    }
}

#[test]
fn a_rank_that_thaws_in_time_has_lost_nothing() {
    let mut random = Random::new("thaw");
    for transport in TRANSPORTS {
        for victim in [0, 2] {
            let calls = Script {
                iterations: 300,
                pause_us: 500,
                ..script("all_reduce", 64 << 10)
            };
            let job = Plan::new(3, transport, calls).start();
            job.await_all("running");
            random.pause(Duration::from_millis(50));
            job.rank(victim).signal(Signal::STOP);
            random.pause(Duration::from_millis(200));
            job.rank(victim).signal(Signal::CONT);
            assert_all_good(&job.finish(), 300);
        }
    }
}
