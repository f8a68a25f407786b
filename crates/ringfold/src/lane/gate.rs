//! The direct bank: slots that the devices of all ranks fill and read, and the calls that go by
//! them.
//!
//! The engine carries out such a call by a [`CallGate`], with the words of all ranks, which this
//! process has mapped. A slot belongs to its rank's device from the time its number is free until
//! it has arrived; then to all ranks, each for its share, until all have combined theirs; and then
//! to the devices of all ranks, until all have taken the slice.
//!
//! What each rank combines by itself goes to its device from a place of its own, and no kernel
//! looks for faults behind it. So the rank looks itself, after it has read the slots: a rank with a
//! fault says so before anything spoils its slots.

use std::sync::{Arc, Mutex};

use super::call::LaneCall;
use super::staging::{Bank, Staging};
use super::words::{Word, Words};
use crate::engine::SharedSlots;
use crate::error::Result;
use crate::reduce::Parallel;
use crate::sync::lock;

/// This rank's direct slots.
#[derive(Debug)]
pub struct DirectSlots {
    staging: Arc<Staging>,
    at: Mutex<Progress>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Slices below this number may be taken by all ranks' devices.
    released: u32,
    /// Slots of slices below this number may be filled again: all devices have taken them.
    free: u32,
}

impl DirectSlots {
    /// The slots of `staging`.
    pub fn new(staging: Arc<Staging>) -> DirectSlots {
        let at = Mutex::default();
        DirectSlots { staging, at }
    }

    /// Lets this rank's device take all slices below `number`.
    pub fn release(&self, number: u32) {
        self.words().store(Word::Released, number);
        lock(&self.at).released = number;
        self.reuse();
    }

    /// Lets slots be filled again that all ranks' devices have taken.
    pub fn reuse(&self) {
        let mut at = lock(&self.at);
        let before = at.free;
        while at.free != at.released {
            let due = at.free.wrapping_add(1);
            if self.staging.readers(due).next().is_some() {
                break;
            }
            at.free = due;
        }
        if at.free != before {
            self.words().store(Word::Free, at.free);
        }
    }

    /// Lets the device go on to slice `end`. After a fault: who has read a slot is no longer
    /// recorded, and all ranks know that what they read may be wrong.
    pub fn let_go(&self, end: u32) {
        let words = self.words();
        words.store(Word::Released, end);
        words.store(Word::Free, end);
        let (released, free) = (end, end);
        *lock(&self.at) = Progress { released, free };
    }

    fn words(&self) -> Words {
        self.staging.words(Bank::Direct)
    }
}

/// The slots and words of one direct call.
#[derive(Debug)]
pub struct CallGate {
    slots: Arc<DirectSlots>,
    call: Arc<LaneCall>,
}

impl CallGate {
    /// The gate of `call`, a direct one.
    pub fn new(slots: &Arc<DirectSlots>, call: &Arc<LaneCall>) -> CallGate {
        let (slots, call) = (slots.clone(), call.clone());
        CallGate { slots, call }
    }

    /// Whether `word` of `rank` has reached the end of `slice`.
    fn has_reached(&self, rank: usize, word: Word, slice: u32) -> bool {
        let due = self.call.number(slice).wrapping_add(1);
        let place = self.slots.staging.of_rank(rank);
        place.is_some_and(|place| place.words(Bank::Direct).has_reached(word, due))
    }
}

impl SharedSlots for CallGate {
    fn slices(&self) -> u32 {
        self.call.slices
    }

    fn bytes(&self) -> usize {
        self.call.bytes()
    }

    fn helpers_max(&self) -> usize {
        self.call.helpers_max
    }

    fn has_begun(&self) -> bool {
        match self.call.one_shot() {
            Some(kernel) => kernel.is_published(),
            None if self.call.slices == 0 => true,
            None => {
                let due = self.call.number(0).wrapping_add(1);
                self.slots.words().has_reached(Word::Arrived, due)
            }
        }
    }

    /// Kernels wait for each other themselves.
    fn is_published(&self, rank: usize, slice: u32) -> bool {
        self.call.one_shot().is_some() || self.has_reached(rank, Word::Arrived, slice)
    }

    fn reduce(&self, slice: u32, parallel: &mut Parallel) -> Result<bool> {
        let (call, staging) = (&self.call, &self.slots.staging);
        let number = call.number(slice);
        let slot = |rank| {
            let place = staging.of_rank(rank).expect("a rank that is reached");
            place.slot(Bank::Direct, number).region()
        };
        call.combine(slice, staging.sum(number).region(), slot, parallel)?;
        // Also without sums: a word must not fall half a circle behind.
        let due = number.wrapping_add(1);
        self.slots.words().store(Word::Combined, due);
        // What was read before is right if no fault is seen now.
        Ok(!call.sums_alone() || !staging.words(Bank::Host).has_fault())
    }

    fn is_reduced(&self, rank: usize, slice: u32) -> bool {
        !self.call.shares_sums() || self.has_reached(rank, Word::Combined, slice)
    }

    fn release(&self, slice: u32) {
        self.slots.release(self.call.number(slice).wrapping_add(1));
    }

    fn reuse(&self) {
        self.slots.reuse();
    }

    fn readers(&self, slice: u32) -> Vec<usize> {
        let staging = &self.slots.staging;
        let due = self.call.number(slice).wrapping_add(1);
        staging.readers(due.wrapping_sub(staging.depth())).collect()
    }
}
