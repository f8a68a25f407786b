//! A forked child's copy of the transport.

use std::time::Instant;

use super::*;

/// Waits until the child has ended; returns its status.
fn wait(child: libc::pid_t) -> i32 {
    let begin = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: room for a status.
        let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        if ended == child {
            return status;
        }
        if begin.elapsed() > WATCHDOG {
            // SAFETY: a child of this test.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_childs_copy_is_dropped_without_a_word_to_the_device() {
    const BYTES: usize = 300_000;
    let mut world = TransportWorld::new(ranks(2));
    let target = Owned::zeroed(BYTES);
    let hold = world.ranks[1].hold(target.region(), Term::Long);
    let recv = world.recv(1, (0, 1), 0, Sink::Store(target.region()));
    world.round().unwrap();
    // SAFETY: the child drops what this thread alone uses, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(hold);
        drop(world);
        // SAFETY: ends the child without the harness' handlers.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0, "a child");
    assert_eq!(wait(child), 0);
    let source = pattern(BYTES, 1);
    let send = world.send(0, (1, 1), 0, source.region());
    world.run(&[send, recv]).unwrap();
    assert!(suite::bytes_of(source.region()) == suite::bytes_of(target.region()));
}
