//! Doorbells: a rank sleeps on its doorbell until a peer rings it. If no rank sleeps, a ring costs
//! next to nothing.
//!
//! # Protocol
//!
//! The *sleeper*, which owns the doorbell, *arms* it: reads `sequence`, sets `sleeping`, and
//! executes a full fence. Then the sleeper looks for work once more, and sleeps on `sequence`. A
//! *ringer*, one of its peers, stores its change (a flag or a counter), executes a full fence and
//! reads `sleeping`. If `sleeping` is set, the ringer clears `sleeping`, increments `sequence` and
//! wakes the sleeper. One of the two fences comes first. So either the sleeper's second look sees
//! the change, or the ringer sees `sleeping`. Loom checks the protocol in this file.
//!
//! A full fence costs the ringer as much as the transfer of a cache line, on every ring, although
//! sleepers are rare. The kernel may be able to make all running threads of other processes execute
//! a fence (membarrier). If it is, the sleeper requests such a fence, and the ringer needs only a
//! compiler fence. A doorbell records whether its sleeper does so. A ringer whose process is not
//! registered for membarrier executes its own fence regardless.
//!
//! The futex is not private, because a private futex would never wake another process. An owner
//! that also waits for descriptors cannot sleep on the futex. Such an owner announces a sleep on
//! descriptors, and the ringer rings the owner's bell instead (see `transport::bell`).

use super::barrier;
use crate::sync::{AtomicU32, Ordering, fence};

/// A rank's doorbell, in shared memory.
#[repr(C)]
#[derive(Debug)]
pub struct Doorbell {
    /// Number of wakes: the futex word.
    sequence: AtomicU32,
    /// The object on which the owner sleeps or is about to sleep: a [`Bed`], or [`AWAKE`].
    sleeping: AtomicU32,
    /// 1 if the owner makes all threads execute a fence before it sleeps.
    fences_ringers: AtomicU32,
}

/// Length of a doorbell in shared memory.
pub const DOORBELL_BYTES: usize = 12;

#[cfg(not(loom))]
const _: () = assert!(size_of::<Doorbell>() == DOORBELL_BYTES);

/// Value of `sleeping` while the owner does not sleep.
const AWAKE: u32 = 0;

/// The object on which an owner sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bed {
    /// This doorbell's futex.
    Futex = 1,
    /// Descriptors, including the owner's bell.
    Descriptors = 2,
}

/// Value of `sequence` when the owner armed its doorbell.
#[derive(Clone, Copy, Debug)]
pub struct Armed(u32);

impl Doorbell {
    /// Creates a doorbell outside of shared memory.
    #[cfg(all(test, loom))]
    pub fn new() -> Doorbell {
        Doorbell {
            sequence: AtomicU32::new(0),
            sleeping: AtomicU32::new(0),
            fences_ringers: AtomicU32::new(0),
        }
    }

    /// Makes the owner request the ringers' fences when it arms, so that a ring needs none. For an
    /// owner that seldom sleeps; called before the first ring.
    pub fn fence_ringers(&self) {
        if barrier::is_registered() {
            // A ringer that does not see the store yet executes its own fence.
            self.fences_ringers.store(1, Ordering::Relaxed);
        }
    }

    /// Announces that the owner is about to sleep. The owner looks for work once more before it
    /// sleeps.
    pub fn arm(&self, bed: Bed) -> Armed {
        // Pairs with the increment in `wake`: a wake after this load ends the sleep.
        let sequence = self.sequence.load(Ordering::Acquire);
        self.sleeping.store(bed as u32, Ordering::Relaxed);
        // Pairs with the fence in `ring`; SeqCst because each side stores one word and loads the
        // word that the other side stores.
        fence(Ordering::SeqCst);
        if self.spares_fence() {
            barrier::fence_all_threads();
        }
        Armed(sequence)
    }

    /// Withdraws the announcement of a sleep.
    pub fn disarm(&self) {
        // Nothing depends on this store: a late ring costs one needless wake.
        self.sleeping.store(AWAKE, Ordering::Relaxed);
    }

    /// Wakes the owner if the owner sleeps on the futex. Returns whether the owner sleeps on
    /// descriptors instead, so that the caller must ring the owner's bell. The caller must have
    /// stored the change that the owner is to see, with any ordering.
    #[must_use]
    pub fn ring(&self) -> bool {
        if self.spares_fence() && barrier::is_registered() {
            // Pairs with the kernel's fence in `arm`, which covers the processor's part.
            barrier::fence_compiler();
        } else {
            // Pairs with the fence in `arm`; SeqCst as there.
            fence(Ordering::SeqCst);
        }
        self.sleeping.load(Ordering::Relaxed) != AWAKE && self.ring_sleeper()
    }

    fn spares_fence(&self) -> bool {
        self.fences_ringers.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn ring_sleeper(&self) -> bool {
        // One ringer wakes the owner; the others need not.
        let bed = self.sleeping.swap(AWAKE, Ordering::Relaxed);
        if bed == Bed::Futex as u32 {
            self.wake();
        }
        bed == Bed::Descriptors as u32
    }

    /// Wakes the owner whether it announced a sleep or not.
    pub fn wake(&self) {
        // Pairs with the load in `arm`.
        self.sequence.fetch_add(1, Ordering::Release);
        futex::wake(&self.sequence);
    }

    /// Blocks the owner in two calls: the first announces a sleep and returns, so that the caller
    /// looks for work once more; the second sleeps.
    pub fn block(&self, armed: &mut Option<Armed>, timeout: std::time::Duration) {
        match armed.take() {
            None => *armed = Some(self.arm(Bed::Futex)),
            Some(armed) => self.sleep(armed, timeout),
        }
    }

    /// Sleeps until the doorbell is rung after `armed`, or `timeout` has passed.
    pub fn sleep(&self, armed: Armed, timeout: std::time::Duration) {
        futex::wait(&self.sequence, armed.0, timeout);
        self.disarm();
    }
}

#[cfg(not(loom))]
mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex::{Flags, Timespec, wait as futex_wait, wake as futex_wake};

    pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos() as _,
        };
        // The caller looks again after any early return (changed word, signal, timeout).
        let _ = futex_wait(word, Flags::empty(), expected, Some(&timeout));
    }

    pub fn wake(word: &AtomicU32) {
        // The word is mapped here, so the call cannot fail; at most one thread sleeps on the word.
        let _ = futex_wake(word, Flags::empty(), 1);
    }
}

/// A futex that loom can follow: the kernel compares and queues under one lock.
#[cfg(loom)]
mod futex {
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    loom::lazy_static! {
        static ref KERNEL: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub fn wait(word: &AtomicU32, expected: u32, _timeout: Duration) {
        let mut guard = KERNEL.0.lock().unwrap();
        while word.load(Ordering::SeqCst) == expected {
            guard = KERNEL.1.wait(guard).unwrap();
        }
    }

    pub fn wake(_word: &AtomicU32) {
        let _guard = KERNEL.0.lock().unwrap();
        KERNEL.1.notify_all();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};

    use super::{Bed, Doorbell};

    /// Bound on preemptions: three threads have too many interleavings to try all. No known kind of
    /// lost wake needs more preemptions.
    const PREEMPTIONS: usize = 3;

    fn doorbell() -> Doorbell {
        Doorbell::new()
    }

    /// A lost wake would be a deadlock, which loom reports.
    #[test]
    fn loom_a_sleeper_sees_every_change() {
        loom::model(|| {
            let shared = Arc::new((doorbell(), AtomicU32::new(0)));
            let ringer = shared.clone();
            let thread = loom::thread::spawn(move || {
                ringer.1.store(1, Ordering::Release);
                assert!(!ringer.0.ring());
            });
            while shared.1.load(Ordering::Acquire) == 0 {
                let armed = shared.0.arm(Bed::Futex);
                if shared.1.load(Ordering::Acquire) != 0 {
                    shared.0.disarm();
                    break;
                }
                shared.0.sleep(armed, std::time::Duration::MAX);
            }
            thread.join().unwrap();
        });
    }

    /// The bell is a counter that the sleeper waits for and empties, as epoll does.
    #[test]
    fn loom_a_sleeper_on_descriptors_sees_every_change() {
        loom::model(|| {
            let shared = Arc::new((doorbell(), AtomicU32::new(0), Mutex::new(0), Condvar::new()));
            let ringer = shared.clone();
            let thread = loom::thread::spawn(move || {
                ringer.1.store(1, Ordering::Release);
                if ringer.0.ring() {
                    *ringer.2.lock().unwrap() += 1;
                    ringer.3.notify_all();
                }
            });
            while shared.1.load(Ordering::Acquire) == 0 {
                shared.0.arm(Bed::Descriptors);
                if shared.1.load(Ordering::Acquire) != 0 {
                    break;
                }
                let mut rings = shared.2.lock().unwrap();
                while *rings == 0 {
                    rings = shared.3.wait(rings).unwrap();
                }
                *rings = 0;
                drop(rings);
                shared.0.disarm();
            }
            thread.join().unwrap();
        });
    }

    #[test]
    fn loom_two_ringers_wake_one_sleeper_for_both_changes() {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(PREEMPTIONS);
        bounded.check(|| {
            let shared = Arc::new((doorbell(), [AtomicU32::new(0), AtomicU32::new(0)]));
            let threads: Vec<_> = (0..2)
                .map(|index: usize| {
                    let ringer = shared.clone();
                    loom::thread::spawn(move || {
                        ringer.1[index].store(1, Ordering::Release);
                        assert!(!ringer.0.ring());
                    })
                })
                .collect();
            let arrived = || {
                shared
                    .1
                    .iter()
                    .all(|flag| flag.load(Ordering::Acquire) == 1)
            };
            while !arrived() {
                let armed = shared.0.arm(Bed::Futex);
                if arrived() {
                    break;
                }
                shared.0.sleep(armed, std::time::Duration::MAX);
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}
