//! One word of a lane: a number that one side raises and others read, in a circle of 32 bits.
//!
//! A side that sees a word raised sees everything that the word's writer did before. Five words a
//! rank pass slots from devices to ranks and back; loom checks that here, with devices that order
//! their stores as stream memory operations do.

use crate::sync::{AtomicU32, Ordering, fence};

/// Raises `word` to `value`.
pub fn raise(word: &AtomicU32, value: u32) {
    // Partners: `height`, and a device's wait for the word.
    word.store(value, Ordering::Release);
}

/// The value of `word`.
pub fn height(word: &AtomicU32) -> u32 {
    // Partner: `raise`; a device writes its own words behind a fence of the system.
    word.load(Ordering::Acquire)
}

/// The value of `word` after a read of slots that a rank with a fault may have spoiled. A rank
/// raises the word of all others before that.
pub fn height_after_slots(word: &AtomicU32) -> u32 {
    // Partner: `raise` of the fault, which comes before the word that lets a device spoil a slot.
    fence(Ordering::Acquire);
    height(word)
}

/// Whether a word that holds `current` has reached `value`, in a circle.
pub fn is_reached(current: u32, value: u32) -> bool {
    current.wrapping_sub(value).cast_signed() >= 0
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::{height, height_after_slots, is_reached, raise};

    const RANKS: usize = 2;

    /// A rank's words, and its one slot of a share for each rank.
    #[derive(Default)]
    struct RankWords {
        arrived: AtomicU32,
        combined: AtomicU32,
        taken: AtomicU32,
        free: AtomicU32,
        slot: [UnsafeCell<u32>; RANKS],
    }

    fn wait(word: &AtomicU32, value: u32) {
        while !is_reached(height(word), value) {
            thread::yield_now();
        }
    }

    /// What `rank` gives to slice `slice`.
    fn given(rank: usize, slice: u32) -> u32 {
        10 * slice + rank as u32 + 1
    }

    /// A rank and its device, one after the other: with a thread for each, the model has too many
    /// states.
    fn rank(ranks: &[RankWords; RANKS], own: usize, slices: u32) {
        let rank = &ranks[own];
        for slice in 0..slices {
            let all = |word: fn(&RankWords) -> &AtomicU32| {
                ranks.iter().for_each(|rank| wait(word(rank), slice + 1));
            };
            // The device: loom checks that no other thread uses the slot.
            wait(&rank.free, slice);
            for share in &rank.slot {
                // SAFETY: see above.
                share.with_mut(|share| unsafe { *share = given(own, slice) });
            }
            raise(&rank.arrived, slice + 1);
            // The rank.
            all(|rank| &rank.arrived);
            let share = |rank: &RankWords| {
                // SAFETY: loom checks that no other thread writes the share.
                rank.slot[own].with(|share| unsafe { *share })
            };
            let sum = ranks.iter().map(share).sum();
            let into = slice as usize % RANKS;
            // SAFETY: loom checks that no other thread uses the share.
            ranks[into].slot[own].with_mut(|into| unsafe { *into = sum });
            raise(&rank.combined, slice + 1);
            all(|rank| &rank.combined);
            // The device.
            for share in &ranks[into].slot {
                // SAFETY: loom checks that no other thread writes the share.
                let sum = share.with(|share| unsafe { *share });
                assert_eq!(sum, given(0, slice) + given(1, slice));
            }
            raise(&rank.taken, slice + 1);
            // The rank.
            all(|rank| &rank.taken);
            raise(&rank.free, slice + 1);
        }
    }

    /// Loom reports an access to a share that is not ordered with others.
    #[test]
    fn loom_shares_of_slots_are_combined_and_taken_without_a_race() {
        loom::model(|| {
            let ranks = Arc::new([RankWords::default(), RankWords::default()]);
            let peers = ranks.clone();
            let peer = thread::spawn(move || rank(&peers, 1, 3));
            rank(&ranks, 0, 3);
            peer.join().unwrap();
        });
    }

    /// A rank that combines alone takes no slot for right that another's fault has spoiled.
    #[test]
    fn loom_a_sum_of_a_spoiled_slot_is_seen_to_be_one() {
        const RIGHT: u32 = 7;
        loom::model(|| {
            // The other rank's slot and its word that the slot is free; this rank's fault.
            let all = Arc::new((AtomicU32::new(RIGHT), AtomicU32::new(0), AtomicU32::new(0)));
            let run = |work: fn(&(AtomicU32, AtomicU32, AtomicU32))| {
                let all = all.clone();
                thread::spawn(move || work(&all))
            };
            let fails = run(|(_, free, fault)| {
                raise(fault, 1);
                raise(free, 1);
            });
            // A copy of a device is seen behind all that let it begin.
            let device = run(|(slot, free, _)| {
                if is_reached(height(free), 1) {
                    slot.store(0, Ordering::Release);
                }
            });
            let (slot, _, fault) = &*all;
            let sum = slot.load(Ordering::Relaxed);
            if height_after_slots(fault) == 0 {
                assert_eq!(sum, RIGHT);
            }
            fails.join().unwrap();
            device.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round_in_a_circle() {
        assert!(is_reached(5, 5) && is_reached(6, 5) && !is_reached(4, 5));
        assert!(is_reached(2, u32::MAX) && !is_reached(u32::MAX, 2));
        // At the beginning, as many slots are free as there are.
        assert!(is_reached(0, 0u32.wrapping_sub(3)));
    }
}
