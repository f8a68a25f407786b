//! Tests that blocks end when a peer acts, and when they are woken.

use std::time::Instant;

use super::{WATCHDOG, bytes_of, header, pattern};
use crate::memory::Owned;
use crate::transport::{Post, Posted, Sink, StreamId, Time, Transport};

pub fn a_waker_ends_a_block<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut ranks = make(2);
    let begin = Instant::now();
    // A wake before the block counts.
    ranks[0].waker()();
    ranks[0].block(WATCHDOG * 2).unwrap();
    // A wake during the block counts, too, wherever the other thread is by then.
    let waker = ranks[0].waker();
    let other = std::thread::spawn(move || waker());
    ranks[0].block(WATCHDOG * 2).unwrap();
    other.join().unwrap();
    assert!(begin.elapsed() < WATCHDOG, "slept through a wake");
}

/// Runs ranks on threads of their own, each asleep until its transport wakes it; for transports
/// that really block. A lost wake shows as a sleep that only the timeout ended.
pub fn sleepers_are_woken_by_their_peers<T: Transport + 'static>(make: impl Fn(usize) -> Vec<T>) {
    const LAPS: u32 = 100;
    let threads: Vec<_> = make(3)
        .into_iter()
        .enumerate()
        .map(|(rank, transport)| std::thread::spawn(move || run_laps(rank, transport, LAPS)))
        .collect();
    for thread in threads {
        thread.join().expect("a rank that saw all of its messages");
    }
}

/// Passes messages of changing length around a ring of three, one after the other.
fn run_laps<T: Transport>(rank: usize, mut transport: T, laps: u32) {
    let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
    let mut done = Vec::new();
    for lap in 0..laps {
        let bytes = [1, 5000, 0, 300_000][lap as usize % 4];
        let (source, target) = (pattern(bytes, lap.into()), Owned::zeroed(bytes));
        let header = header(lap, bytes);
        let to = StreamId {
            peer: next,
            channel: 1,
        };
        let from = StreamId {
            peer: previous,
            channel: 1,
        };
        let sink = Sink::Store(target.region());
        let recv = transport
            .post_recv(Post(from, 0, header), sink)
            .expect("a receive");
        let send = transport
            .post_send(Post(to, 1, header), source.region())
            .expect("a send");
        let mut due = [recv, send]
            .iter()
            .filter(|posted| **posted == Posted::Pending)
            .count();
        while due > 0 {
            done.clear();
            transport.poll(Time(0), &mut done).expect("living peers");
            due -= done.len();
            if done.is_empty() {
                let begin = Instant::now();
                transport.block(WATCHDOG).expect("a block");
                assert!(
                    begin.elapsed() < WATCHDOG,
                    "rank {rank} slept through lap {lap}"
                );
            }
        }
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "lap {lap}"
        );
    }
}
