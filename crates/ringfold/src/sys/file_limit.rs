//! Turns the limit of a process' file sizes (`RLIMIT_FSIZE`, `ulimit -f`) into an error, without a
//! signal.
//!
//! A write beyond the limit fails with `EFBIG`, and the kernel also sends `SIGXFSZ`, which ends a
//! program silently unless it ignores the signal, as Python does. Memory that processes share is a
//! file, too. A library must not change its program's signal handling, and cannot check the limit
//! beforehand if a file's length is not known. So the signal is blocked during the write, and then
//! discarded.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use libc::{SIG_BLOCK, SIG_SETMASK, SIGXFSZ, pthread_sigmask, sigset_t};

/// Calls `write`, and turns exceeding the limit into an error of `write`, without a signal.
pub fn without_signal<T>(write: impl FnOnce() -> T) -> T {
    let limit = only_signal();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both are sets, one to be read and one to be written.
    let failed = unsafe { pthread_sigmask(SIG_BLOCK, &limit, before.as_mut_ptr()) };
    if failed != 0 {
        return write();
    }
    // A signal that was already blocked and pending is not ours.
    let is_waiting = is_pending();
    let written = write();
    if !is_waiting {
        let at_once = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: a set and a time to be read; no information on the signal is requested. The
        // kernel sends it to this thread, so no other takes it.
        unsafe { libc::sigtimedwait(&limit, null_mut(), &at_once) };
    }
    // SAFETY: a set that the call above has written.
    unsafe { pthread_sigmask(SIG_SETMASK, before.as_ptr(), null_mut()) };
    written
}

/// Returns the set of this one signal.
fn only_signal() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: makes any memory of this size an empty set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: a set, made above, and a signal's number.
    unsafe { libc::sigaddset(set.as_mut_ptr(), SIGXFSZ) };
    // SAFETY: made above.
    unsafe { set.assume_init() }
}

fn is_pending() -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: a set to be written.
    if unsafe { libc::sigpending(set.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: written by the call above.
    unsafe { libc::sigismember(set.as_ptr(), SIGXFSZ) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_raised_meanwhile_is_taken_back() {
        // Its default action would end this process.
        // SAFETY: raises a signal in this thread.
        let raised = without_signal(|| unsafe { libc::raise(SIGXFSZ) });
        assert_eq!(raised, 0);
        assert!(!is_pending());
    }
}
