//! The only synchronisation of shared memory: a counter that one rank raises and others read.
//!
//! Stamps of slots and cells, and the counters of finished generations and consumed cells, are all
//! flags: single-writer, never lowered. A rank that sees a flag raised sees everything that the
//! flag's owner did before. Two flags, the writer's (published) and the reader's (finished), pass a
//! piece of memory back and forth; loom checks that here.

use crate::sync::{AtomicU64, Ordering, fence};

/// Raises `flag` to `value`.
pub fn raise(flag: &AtomicU64, value: u64) {
    // Pairs with the Acquire load in `height`.
    flag.store(value, Ordering::Release);
}

/// Returns the height of `flag`.
pub fn height(flag: &AtomicU64) -> u64 {
    // Pairs with the Release store in `raise`.
    flag.load(Ordering::Acquire)
}

/// Raises `flag` to `value` before the memory that it guards is rewritten, for ranks that may still
/// read the old content.
pub fn begin(flag: &AtomicU64, value: u64) {
    flag.store(value, Ordering::Relaxed);
    // Pairs with the fence in `recheck`: a rank that saw any new content sees the raised flag.
    fence(Ordering::Release);
}

/// Returns the height of `flag` after a read of memory that the flag's owner may have begun to
/// rewrite. If the height has changed, the read is invalid.
pub fn recheck(flag: &AtomicU64) -> u64 {
    // Pairs with the fence in `begin`.
    fence(Ordering::Acquire);
    flag.load(Ordering::Relaxed)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    use super::{begin, height, raise, recheck};

    /// A slot with one writer and one reader, of which windows and rings consist.
    struct FlagSlot {
        payload: UnsafeCell<u64>,
        published: AtomicU64,
        finished: AtomicU64,
    }

    /// Loom reports an access to the payload that is not ordered with the other side's.
    #[test]
    fn loom_a_slot_is_handed_to_and_fro_without_a_race() {
        const GENERATIONS: u64 = 2;
        loom::model(|| {
            let slot = Arc::new(FlagSlot {
                payload: UnsafeCell::new(0),
                published: AtomicU64::new(0),
                finished: AtomicU64::new(0),
            });
            let writer = slot.clone();
            let thread = loom::thread::spawn(move || {
                for generation in 0..GENERATIONS {
                    while height(&writer.finished) < generation {
                        loom::thread::yield_now();
                    }
                    // SAFETY: loom checks that the reader does not use it.
                    writer
                        .payload
                        .with_mut(|payload| unsafe { *payload = generation + 10 });
                    raise(&writer.published, generation + 1);
                }
            });
            for generation in 0..GENERATIONS {
                while height(&slot.published) < generation + 1 {
                    loom::thread::yield_now();
                }
                // SAFETY: loom checks that the writer does not use it.
                let payload = slot.payload.with(|payload| unsafe { *payload });
                assert_eq!(payload, generation + 10);
                raise(&slot.finished, generation + 1);
            }
            thread.join().unwrap();
        });
    }

    /// A late reader accepts only old content as old.
    #[test]
    fn loom_a_late_look_never_takes_the_new_for_the_old() {
        const OLD: u64 = 1;
        loom::model(|| {
            let slot = Arc::new((AtomicU64::new(OLD), AtomicU64::new(10)));
            let writer = slot.clone();
            let thread = loom::thread::spawn(move || {
                begin(&writer.0, OLD + 1);
                writer.1.store(20, Ordering::Relaxed);
                raise(&writer.0, OLD + 2);
            });
            if height(&slot.0) == OLD {
                let seen = slot.1.load(Ordering::Relaxed);
                if recheck(&slot.0) == OLD {
                    assert_eq!(seen, 10);
                }
            }
            thread.join().unwrap();
        });
    }

    /// Both ranks publish and wait for each other, twice over one slot: an all-reduce as the
    /// windows run it.
    #[test]
    fn loom_two_ranks_exchange_through_their_slots() {
        loom::model(|| {
            let ranks = Arc::new([0, 1].map(|_| FlagSlot {
                payload: UnsafeCell::new(0),
                published: AtomicU64::new(0),
                finished: AtomicU64::new(0),
            }));
            let run = |ranks: Arc<[FlagSlot; 2]>, own: usize| {
                let (mine, theirs) = (&ranks[own], &ranks[1 - own]);
                for generation in 0..2 {
                    while height(&theirs.finished) < generation {
                        loom::thread::yield_now();
                    }
                    // SAFETY: loom checks that the peer does not use it.
                    mine.payload
                        .with_mut(|payload| unsafe { *payload = own as u64 + generation });
                    raise(&mine.published, generation + 1);
                    while height(&theirs.published) < generation + 1 {
                        loom::thread::yield_now();
                    }
                    // SAFETY: loom checks that the peer does not use it.
                    let seen = theirs.payload.with(|payload| unsafe { *payload });
                    assert_eq!(seen, 1 - own as u64 + generation);
                    raise(&mine.finished, generation + 1);
                }
            };
            let peer = ranks.clone();
            let thread = loom::thread::spawn(move || run(peer, 1));
            run(ranks, 0);
            thread.join().unwrap();
        });
    }
}
