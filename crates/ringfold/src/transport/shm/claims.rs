//! Claims of a generation's blocks by the ranks that reduce them: two counters that all ranks of a
//! host write.
//!
//! A block belongs to the rank that counts `claimed` up to it; the rank that has reduced a block
//! counts `complete` up. Both words contain their generation, so that a slot's next generation
//! begins at zero without a reset: all ranks have finished the generation before by then. Checked
//! by loom in this file.
//!
//! A peer's writes are claims: a block's number is compared with the number of blocks in this
//! rank's own call.

use crate::sync::{AtomicU64, Ordering};

/// Bits of a word that count; the other bits are the generation.
const COUNT_BITS: u32 = 16;

/// Maximum number of blocks of a generation.
pub const BLOCKS_MAX: u32 = (1 << COUNT_BITS) - 1;

/// Returns the generation's part of a word. A word that was never written is older than all
/// generations.
fn tag(generation: u64) -> u64 {
    (generation + 1) << COUNT_BITS
}

/// Returns how many blocks of `generation` a word counts; `None` for a word of a later generation.
fn count(word: u64, generation: u64) -> Option<u32> {
    let due = tag(generation);
    if word < due {
        return Some(0);
    }
    u32::try_from(word - due)
        .ok()
        .filter(|count| *count <= BLOCKS_MAX)
}

/// Claims a block that no other rank has; `None` when all of `blocks` are claimed.
pub fn claim(claimed: &AtomicU64, generation: u64, blocks: u32) -> Option<u32> {
    // Orders nothing: the block's operands were awaited before.
    let taken = claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
        let next = count(word, generation)?;
        (next < blocks).then(|| tag(generation) + u64::from(next) + 1)
    });
    taken.ok().and_then(|word| count(word, generation))
}

/// Counts a reduced block that this rank had claimed; returns whether the block was the last.
pub fn complete(complete: &AtomicU64, generation: u64, blocks: u32) -> bool {
    // Release pairs with the Acquire load in `is_complete`, through the others' updates in between.
    // A count that a peer has raised beyond `blocks` stays unchanged.
    let before = complete.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
        let done = count(word, generation)?;
        (done < blocks).then(|| tag(generation) + u64::from(done) + 1)
    });
    before.is_ok_and(|word| count(word, generation) == Some(blocks - 1))
}

/// Whether all blocks are reduced. If so, the results are visible.
pub fn is_complete(complete: &AtomicU64, generation: u64, blocks: u32) -> bool {
    // Pairs with the Release update in `complete`.
    blocks == 0 || count(complete.load(Ordering::Acquire), generation) == Some(blocks)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_taken_once_in_every_generation() {
        let claimed = AtomicU64::new(0);
        for generation in [0, 8, 16] {
            for block in 0..3 {
                assert_eq!(claim(&claimed, generation, 3), Some(block));
            }
            assert_eq!(claim(&claimed, generation, 3), None);
        }
    }

    #[test]
    fn a_generation_is_complete_with_its_last_block() {
        let done = AtomicU64::new(0);
        for generation in [0, 8] {
            assert!(!is_complete(&done, generation, 2));
            assert!(!complete(&done, generation, 2));
            assert!(complete(&done, generation, 2));
            assert!(is_complete(&done, generation, 2));
            assert!(!is_complete(&done, generation + 8, 2));
        }
        assert!(is_complete(&done, 16, 0));
    }

    #[test]
    fn what_a_peer_scribbled_never_becomes_a_block() {
        for word in [0, 1, u64::MAX, tag(7), tag(7) + 0xffff, tag(9)] {
            let scribbled = AtomicU64::new(word);
            let block = claim(&scribbled, 7, 4);
            assert!(block.is_none_or(|block| block < 4), "{word:#x}: {block:?}");
            complete(&AtomicU64::new(word), 7, 4);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::super::doorbell::{Bed, Doorbell};
    use super::super::flag::{height, raise};
    use super::*;

    const RANKS: usize = 2;
    const BLOCKS: u32 = 2;

    /// A slot of a host: the flag of each rank, and the result in place of rank 0's input.
    struct ClaimSlot {
        published: [AtomicU64; RANKS],
        input: UnsafeCell<u64>,
        result: [UnsafeCell<u64>; BLOCKS as usize],
        claimed: AtomicU64,
        complete: AtomicU64,
    }

    fn slot() -> ClaimSlot {
        ClaimSlot {
            published: [0; RANKS].map(AtomicU64::new),
            input: UnsafeCell::new(0),
            result: [0; BLOCKS as usize].map(UnsafeCell::new),
            claimed: AtomicU64::new(0),
            complete: AtomicU64::new(0),
        }
    }

    /// Publishes, reduces as many blocks as possible and collects. Loom reports unordered accesses.
    fn run(slot: &ClaimSlot, rank: usize, generation: u64) {
        if rank == 0 {
            for block in &slot.result {
                // SAFETY: loom checks that no other thread uses it.
                block.with_mut(|block| unsafe { *block = 1 });
            }
        } else {
            // SAFETY: as above.
            slot.input.with_mut(|input| unsafe { *input = 2 });
        }
        raise(&slot.published[rank], generation + 1);
        for peer in &slot.published {
            while height(peer) < generation + 1 {
                loom::thread::yield_now();
            }
        }
        while let Some(block) = claim(&slot.claimed, generation, BLOCKS) {
            // SAFETY: as above.
            let theirs = slot.input.with(|input| unsafe { *input });
            // SAFETY: as above.
            slot.result[block as usize].with_mut(|block| unsafe { *block += theirs });
            complete(&slot.complete, generation, BLOCKS);
        }
        while !is_complete(&slot.complete, generation, BLOCKS) {
            loom::thread::yield_now();
        }
        for block in &slot.result {
            // SAFETY: as above.
            let sum = block.with(|block| unsafe { *block });
            assert_eq!(sum, 3, "each block is reduced once");
        }
    }

    #[test]
    fn loom_every_block_is_combined_once_and_seen_by_all() {
        loom::model(|| {
            let shared = Arc::new(slot());
            let peer = shared.clone();
            let thread = loom::thread::spawn(move || run(&peer, 1, 0));
            run(&shared, 0, 0);
            thread.join().unwrap();
        });
    }

    /// Only a complete generation wakes ranks, publications do not: the last rank to go to sleep
    /// sees that all have published. A lost wake would be a deadlock, which loom reports.
    #[test]
    fn loom_the_last_to_sleep_combines_and_wakes_the_others() {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(3);
        bounded.check(|| {
            let shared = Arc::new((slot(), [0; RANKS].map(|_| Doorbell::new())));
            let rank = |shared: Arc<(ClaimSlot, [Doorbell; RANKS])>, own: usize| {
                let (slot, bells) = &*shared;
                raise(&slot.published[own], 1);
                let attempt = || {
                    if slot.published.iter().any(|flag| height(flag) == 0) {
                        return false;
                    }
                    while claim(&slot.claimed, 0, BLOCKS).is_some() {
                        if complete(&slot.complete, 0, BLOCKS) {
                            assert!(!bells[1 - own].ring());
                        }
                    }
                    is_complete(&slot.complete, 0, BLOCKS)
                };
                while !attempt() {
                    let armed = bells[own].arm(Bed::Futex);
                    if attempt() {
                        bells[own].disarm();
                        break;
                    }
                    bells[own].sleep(armed, std::time::Duration::MAX);
                }
            };
            let peer = shared.clone();
            let thread = loom::thread::spawn(move || rank(peer, 1));
            rank(shared, 0);
            thread.join().unwrap();
        });
    }
}
