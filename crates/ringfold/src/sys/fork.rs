//! Holding off forks while something is made that a forked child must not have, or must not find
//! half made.
//!
//! A descriptor is first made and then [listed](super::unshared), memory is first mapped and then
//! kept from children: the kernel offers no single step. A fork in another thread must not come in
//! between. So these steps are made while a [`NoFork`] exists: the C library's `fork` waits for it
//! (`pthread_atfork`), and a `NoFork` waits for a fork under way.
//!
//! # Invariants
//!
//! * A thread that has a `NoFork` does not block: it makes short system calls, and the longest step
//!   is a copy of `memory::remapped`, of 32 MiB at most (30 ms). It takes no lock that another
//!   thread could hold in `fork`, does not log, and calls no code of a user.
//! * Both sides wait for a limited time. Another library's handlers run within a fork, too; one
//!   that waits for a lock of the thread that wants the `NoFork` would otherwise stop both.
//! * The handlers make system calls only that are safe after a fork, and allocate nothing. A fork
//!   in a signal handler that has interrupted a thread with a `NoFork` does not wait for it.
//!
//! # What it does not do
//!
//! A process that is made by the bare system call `clone` runs no handlers and waits for nothing.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::thread::{NanosleepRelativeResult, Timespec, gettid, nanosleep};

use crate::sync::lock;

const FREE: i32 = 0;

/// The thread that has a `NoFork`; negative, the thread that forks.
static HOLDER: AtomicI32 = AtomicI32::new(FREE);

/// Threads that wait for a `NoFork`.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Forks of this process and its ancestors, counted before each.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// What a child does at once, one function for each [`Duty`].
static DUTIES: [OnceLock<fn()>; 2] = [const { OnceLock::new() }; 2];

/// The pause between two attempts: short compared with a fork, long compared with a system call.
const NAP: Duration = Duration::from_micros(50);

/// After this many naps, about 30 s, a wait ends: no fork takes as long, not even of terabytes.
const NAPS_MAX: u32 = 300_000;

/// For this many naps, about 100 ms, a fork lets threads go first that wait for a `NoFork`: one
/// fork after another would leave them no gap.
const POLITE_NAPS: u32 = 1000;

/// What a child replaces at once.
#[derive(Clone, Copy, Debug)]
pub enum Duty {
    /// Descriptors that it does not share.
    Descriptors,
    /// Memory that it does not share.
    Memory,
}

/// As long as it exists, no other thread forks.
#[derive(Debug)]
pub struct NoFork {
    /// What the end of it takes back: nothing if an outer one of the same thread goes on.
    holder: i32,
}

/// Waits until no fork is under way, and holds off all others.
pub fn hold_off() -> io::Result<NoFork> {
    install();
    let me = thread();
    // Only this thread stores its own number.
    if HOLDER.load(Ordering::Relaxed).abs() == me {
        return Ok(NoFork { holder: FREE });
    }
    WAITING.fetch_add(1, Ordering::Relaxed);
    let is_taken = take(me, false);
    // Not below 0: a child begins with none, also if a signal handler has forked it above.
    let less = |waiting: u32| waiting.checked_sub(1);
    let _ = WAITING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    match is_taken {
        true => Ok(NoFork { holder: me }),
        false => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "another thread's fork does not end, or a step that no fork may meet; does a handler \
             of forks (pthread_atfork) wait for this thread?",
        )),
    }
}

impl NoFork {
    /// Forks so far.
    pub fn forks(&self) -> u64 {
        FORKS.load(Ordering::Relaxed)
    }

    /// Has children do `duty` before all else by `what`, which is the same function at each call
    /// and is safe after a fork.
    pub fn in_child(&self, duty: Duty, what: fn()) {
        // Never found half done in a child, because forks are held off.
        let _ = DUTIES[duty as usize].set(what);
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        release(self.holder);
    }
}

/// Does `step`, which does not block, with `state`, which no child finds locked.
pub fn with_locked<T, R>(state: &Mutex<T>, step: impl FnOnce(&mut T) -> R) -> R {
    // If another thread's fork does not end, its child was lost before; so below.
    let _held_off = hold_off();
    step(&mut lock(state))
}

/// The value of `cell`, which `make` gives if there is none. `make` does not block, and no child
/// finds it half done.
pub fn made_once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> T) -> &T {
    cell.get().unwrap_or_else(|| {
        let _held_off = hold_off();
        cell.get_or_init(make)
    })
}

fn thread() -> i32 {
    gettid().as_raw_nonzero().get()
}

/// Makes `holder` the holder; whether that was possible in time.
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
        // Release pairs with the acquire in `take`. Not this thread's in a child of its own.
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

/// Installs the handlers. Not by `Once`, which a fork in another thread would leave half done in
/// the child for ever: a second set of handlers does nothing.
fn install() {
    static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
    // Nothing is published with it.
    if IS_INSTALLED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the handlers live as long as this library, which is never unloaded, and do only what
    // may be done around a fork.
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

/// In the child, whose only thread this is.
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
