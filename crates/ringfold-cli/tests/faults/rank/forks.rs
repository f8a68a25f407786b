//! Children that a rank forks, with copies of all its resources.

use ringfold::Communicator;

use super::say;
use crate::job::WATCHDOG;

/// Leaves a child like a data loader's worker: it has copies of all descriptors of this process,
/// and outlives the process until it is killed, at the latest after the watchdog's time.
pub fn fork_child() {
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: `alarm` takes a number only.
        unsafe { libc::alarm(WATCHDOG.as_secs() as u32) };
        loop {
            // SAFETY: `pause` has no arguments.
            unsafe { libc::pause() };
        }
    }
    assert!(pid > 0, "this process can be forked");
    say("forked", &format!("pid={pid}"), "");
}

/// Makes a child drop its copy of the communicator and exit as a program does, and waits for it.
pub fn fork_and_drop(communicator: &Communicator) {
    // SAFETY: the child uses nothing that another thread may have been changing: the communicator
    // is in no call, and memory may be freed after a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: `alarm` takes a number only.
        unsafe { libc::alarm(WATCHDOG.as_secs() as u32) };
        // SAFETY: the child's copy, of which nothing else is used from now on.
        drop(unsafe { std::ptr::read(communicator) });
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: a child of this process, which ends by its alarm at the latest.
    let ended = unsafe { libc::waitpid(pid, &mut status, 0) };
    if (ended, status) != (pid, 0) {
        say("wrong", "", &format!("the child ends with {status}"));
        std::process::exit(1);
    }
}
