//! Tests that idle ranks, and ranks that wait for a late rank, leave the processor to others.
//!
//! The tests assert processor time, which a busy machine does not lengthen, not elapsed time.

mod scenes;

use std::time::Duration;

use ringfold::{Communicator, Op};
use scenes::{Scene, play};

const SCENES: [(&str, Scene); 3] = [
    ("idle", idle),
    ("waiting", waiting),
    ("listening", listening),
];

/// Time in which nothing happens.
const PAUSE: Duration = Duration::from_millis(1500);

/// The share of a pause that a rank may spend on polling; a rank that spun or yielded would spend
/// most of the pause.
const SHARE_MAX: f64 = 0.2;

#[test]
#[ignore = "started as a rank by the other tests"]
fn a_rank() {
    scenes::act(&SCENES);
}

#[test]
fn idle_communicators_burn_no_processor_time() {
    for (ranks, transport) in [(2, "shm"), (4, "shm"), (2, "tcp")] {
        play("idle", ranks, transport);
    }
}

#[test]
fn who_waits_for_a_late_rank_burns_no_processor_time() {
    for (ranks, transport) in [(2, "shm"), (4, "shm"), (2, "tcp")] {
        play("waiting", ranks, transport);
    }
}

#[test]
fn who_waits_for_a_message_burns_no_processor_time() {
    for (ranks, transport) in [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")] {
        play("listening", ranks, transport);
    }
}

/// Makes a small and a large call, and then none during a pause.
fn idle(comm: Communicator) {
    call(&comm);
    let before = processor_time();
    std::thread::sleep(PAUSE);
    check(&comm, "idle", before);
    call(&comm);
}

/// Waits for the last rank, which is late.
fn waiting(comm: Communicator) {
    call(&comm);
    if comm.rank() + 1 == comm.world_size() {
        std::thread::sleep(PAUSE);
        return call(&comm);
    }
    let before = processor_time();
    comm.all_reduce(&mut [1f32], Op::Sum).expect("a small call");
    check(&comm, "waiting", before);
    comm.all_reduce(&mut vec![1f32; 1 << 18], Op::Sum)
        .expect("a large call");
}

/// Waits for late messages. The first message of each peer has no receive yet: a message that waits
/// in a stream must not wake a rank, either.
fn listening(comm: Communicator) {
    call(&comm);
    if comm.rank() > 0 {
        comm.send(&[1u8], 0, 1).expect("a send");
        std::thread::sleep(PAUSE);
        comm.send(&[2u8], 0, 2).expect("a late send");
        return call(&comm);
    }
    let before = processor_time();
    let mut data = [0u8];
    for _ in 1..comm.world_size() {
        comm.recv_any(&mut data, 2).expect("a late message");
    }
    check(&comm, "listening", before);
    for _ in 1..comm.world_size() {
        comm.recv_any(&mut data, 1).expect("an early message");
    }
    call(&comm);
}

fn call(comm: &Communicator) {
    comm.all_reduce(&mut [1f32], Op::Sum).expect("a small call");
    comm.all_reduce(&mut vec![1f32; 1 << 18], Op::Sum)
        .expect("a large call");
}

fn check(comm: &Communicator, what: &str, before: Duration) {
    let spent = processor_time() - before;
    assert!(
        spent < PAUSE.mul_f64(SHARE_MAX),
        "rank {} of {} spent {spent:?} of {PAUSE:?} {what}",
        comm.rank(),
        comm.world_size()
    );
}

/// Returns the processor time that all threads of this process have spent.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    // The process name, in parentheses, may contain anything.
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}
