//! A rank is stopped, as a debugger, a full disk or a busy machine would stop it.

use std::time::Duration;

use rustix::process::Signal;

use crate::endings::{TRANSPORTS, assert_all_blame, script};
use crate::job::Plan;
use crate::random::Random;
use crate::rank::Script;

#[test]
fn a_frozen_rank_is_named_when_the_deadline_passes() {
    let mut random = Random::new("freeze");
    for transport in TRANSPORTS {
        for victim in [0, 1] {
            for bytes in [8, 1 << 20] {
                println!("rank {victim}, {transport}, {bytes} bytes");
                let timeout = Duration::from_millis(500);
                let plan = Plan {
                    timeout,
                    ..Plan::new(3, transport, script("all_reduce", bytes))
                };
                let mut job = plan.start();
                job.await_all("running");
                random.pause(Duration::from_millis(10));
                let frozen = job.ranks.remove(victim);
                frozen.signal(Signal::STOP);
                let endings = job.endings();
                assert_all_blame(&endings, "Timeout", victim);
                frozen.signal(Signal::CONT);
                assert_ne!(frozen.finish().class, "", "the others are gone");
                job.finish();
            }
        }
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
            for (rank, ending) in job.finish() {
                assert_eq!(
                    (ending.class.as_str(), ending.good),
                    ("", 300),
                    "rank {rank}: {ending:?}"
                );
            }
        }
    }
}
