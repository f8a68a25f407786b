//! Holds off forks while something is made that a forked child must not have, or must not find half
//! made.
//!
//! A descriptor is first made and then [listed](super::unshared), and memory is first mapped and
//! then excluded from children: the kernel offers no single step. Another thread must not fork in
//! between. So these steps run while a [`NoFork`] exists: the C library's `fork` waits for the end
//! of the `NoFork` (`pthread_atfork`), and a `NoFork` waits for a fork in progress.
//!
//! # Invariants
//!
//! * A thread that has a `NoFork` does not block: it makes short system calls, and the longest step
//!   is a copy of `memory::remapped`, of 32 MiB at most (30 ms). The thread takes no lock that
//!   another thread could hold in `fork`, does not log, and calls no user code.
//! * Both sides wait for a limited time. Another library's handlers run within a fork, too: a
//!   handler that waits for a lock of the thread that wants the `NoFork` would otherwise stop both.
//! * The handlers make only system calls that are safe after a fork, and allocate nothing. A fork
//!   in a signal handler that has interrupted a thread with a `NoFork` does not wait for it.
//!
//! # What it does not do
//!
//! A process made by the bare system call `clone` runs no handlers and waits for nothing.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::thread::{NanosleepRelativeResult, Timespec, gettid, nanosleep};

use crate::sync::lock;

const FREE: i32 = 0;

/// The id of the thread that has a `NoFork`; negative, the id of the thread that forks.
static HOLDER: AtomicI32 = AtomicI32::new(FREE);

/// Number of threads that wait for a `NoFork`.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Number of forks of this process and its ancestors, counted before each fork.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The functions that a child calls first, one for each [`Duty`].
static DUTIES: [OnceLock<fn()>; 2] = [const { OnceLock::new() }; 2];

/// The pause between two attempts: short compared with a fork, long compared with a system call.
const NAP: Duration = Duration::from_micros(50);

/// Number of naps after which a wait fails, about 30 s: no fork takes as long, even of terabytes.
const NAPS_MAX: u32 = 300_000;

/// Number of naps, about 100 ms, for which a fork waits for threads that want a `NoFork`: one fork
/// after another would leave them no gap.
const POLITE_NAPS: u32 = 1000;

/// A kind of resource that a child replaces first.
#[derive(Clone, Copy, Debug)]
pub enum Duty {
    /// Descriptors that the child does not share.
    Descriptors,
    /// Memory that the child does not share.
    Memory,
}

/// A guard: as long as it exists, no other thread forks.
#[derive(Debug)]
pub struct NoFork {
    /// The holder to release on drop: none if an outer guard of the same thread continues.
    holder: i32,
}

/// Waits until no fork is in progress, and holds off further forks.
pub fn hold_off() -> io::Result<NoFork> {
    install();
    let me = thread();
    // Only this thread stores its own number.
    if HOLDER.load(Ordering::Relaxed).abs() == me {
        return Ok(NoFork { holder: FREE });
    }
    WAITING.fetch_add(1, Ordering::Relaxed);
    let is_taken = take(me, false);
    // Not below 0: a child begins with 0, also if a signal handler forked it above.
    let less = |waiting: u32| waiting.checked_sub(1);
    let _ = WAITING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    match is_taken {
        true => Ok(NoFork { holder: me }),
        false => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "timed out waiting for another thread's fork, or for a step that holds off forks; does \
             a fork handler (pthread_atfork) wait for this thread?",
        )),
    }
}

impl NoFork {
    /// Returns the number of forks so far.
    pub fn forks(&self) -> u64 {
        FORKS.load(Ordering::Relaxed)
    }

    /// Makes children call `what` for `duty` before anything else. `what` is the same function at
    /// each call, and is safe after a fork.
    pub fn in_child(&self, duty: Duty, what: fn()) {
        // No child finds the cell half set, because forks are held off.
        let _ = DUTIES[duty as usize].set(what);
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        release(self.holder);
    }
}

/// Runs `step`, which does not block, with `state` locked. No child finds `state` locked.
pub fn with_locked<T, R>(state: &Mutex<T>, step: impl FnOnce(&mut T) -> R) -> R {
    // If this fails, another thread's fork hangs, and its child is lost anyway; the same below.
    let _held_off = hold_off();
    step(&mut lock(state))
}

/// Returns the value of `cell`, which `make` makes if there is none. `make` does not block, and no
/// child finds the cell half set.
pub fn made_once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> T) -> &T {
    cell.get().unwrap_or_else(|| {
        let _held_off = hold_off();
        cell.get_or_init(make)
    })
}

fn thread() -> i32 {
    gettid().as_raw_nonzero().get()
}

/// Makes `holder` the holder. Returns whether that was possible in time.
fn take(holder: i32, is_polite: bool) -> bool {
    (0..NAPS_MAX).any(|nap| {
        let may = !is_polite || nap >= POLITE_NAPS || WAITING.load(Ordering::Relaxed) == 0;
        // Acquire pairs with the release in `release`.
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        let is_taken = may && HOLDER.compare_exchange(FREE, holder, done, failed).is_ok();
        if !is_taken {
            pause();
        }
        is_taken
    })
}

fn release(holder: i32) {
    if holder != FREE {
        // Release pairs with the acquire in `take`. Fails in a child, which has reset `HOLDER`.
        let (done, failed) = (Ordering::Release, Ordering::Relaxed);
        let _ = HOLDER.compare_exchange(holder, FREE, done, failed);
    }
}

fn pause() {
    let nap = Timespec {
        tv_sec: 0,
        tv_nsec: NAP.as_nanos() as _,
    };
    // An interrupted nap is a shorter one.
    let _: NanosleepRelativeResult = nanosleep(&nap);
}

/// Installs the handlers, without a `Once`, which a fork in another thread would leave half done in
/// the child forever. A second set of handlers does no harm.
fn install() {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag publishes no other data.
    if IS_INSTALLED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the handlers live as long as this library, which is never unloaded, and do only what
    // is permitted around a fork.
    let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    if refused != 0 {
        log::warn!(
            target: "ringfold::init",
            "forked children will share this process' connections"
        );
    }
    IS_INSTALLED.store(true, Ordering::Relaxed);
}

extern "C" fn prepare() {
    let me = thread();
    if HOLDER.load(Ordering::Relaxed).abs() != me {
        take(-me, true);
    }
    FORKS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn parent() {
    release(-thread());
}

/// Resets the state, and runs the duties, in the child, whose only thread this is.
extern "C" fn child() {
    HOLDER.store(FREE, Ordering::Relaxed);
    WAITING.store(0, Ordering::Relaxed);
    DUTIES
        .iter()
        .filter_map(OnceLock::get)
        .for_each(|what| what());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_waits_for_the_end_of_a_step_and_a_step_for_the_end_of_a_fork() {
        static IS_FORKED: AtomicBool = AtomicBool::new(false);
        let before = hold_off().expect("no fork hangs");
        let forks = before.forks();
        let forker = std::thread::spawn(|| {
            // SAFETY: the child ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) }
            }
            IS_FORKED.store(true, Ordering::Relaxed);
            // SAFETY: our own child.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        });
        for _ in 0..100 {
            // A step within a step waits for nothing.
            drop(hold_off().expect("this thread's own"));
            pause();
            assert!(!IS_FORKED.load(Ordering::Relaxed));
        }
        drop(before);
        forker.join().expect("a thread");
        assert!(hold_off().expect("no fork hangs").forks() > forks);
    }
}
