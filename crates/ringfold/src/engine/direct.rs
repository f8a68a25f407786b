//! The straight way through the `direct` all-reduce over published memory: three counters instead of steps.
//!
//! Slices are a few microseconds of work, so what the steps of a schedule cost besides it shows. Here the same slices are
//! published, reduced and taken back in a plain loop, with the same generations, phases and places: a rank that takes this
//! way and one that runs the schedule understand each other, and a test holds the two together. It never waits. Where a
//! peer is not there yet it goes on with another slice, and with none it returns to whoever drives.
//!
//! A block of a sum is stored to its places while it is in the first-level cache. Nothing is stored past the caches: two
//! cores that share one lose by that what fits it.

use super::steps::{Context, Operation, windows};
use crate::error::Result;
use crate::schedule::{Buffer, Span};
use crate::transport::Wake;

/// The phases in which inputs and sums are there; `schedule::direct` has the same.
const INPUTS: u8 = 1;
const REDUCED: u8 = 2;

/// Slices that are published before the first of them is taken back: more of them only leave the cache.
const SLICES_AHEAD_MAX: u32 = 3;

/// What is reduced and stored at once: small enough to stay in the first-level cache, with what it comes from.
const BLOCK_BYTES: usize = 8 << 10;

/// How many slices have been published, reduced and taken back, and how far the next ones are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Straight {
    published: u32,
    reduced: u32,
    taken: u32,
    /// Ranks that were seen to have published the slice that is reduced next.
    heard: usize,
    /// Ranks whose sums of the slice that is taken back next are there.
    taken_from: usize,
}

impl Operation {
    /// Does what can be done; whether that was anything.
    pub(super) fn advance_straight(&mut self, context: &mut Context<'_>) -> Result<bool> {
        let Some(mut at) = self.straight else {
            return Ok(false);
        };
        let mut progressed = false;
        loop {
            let published = self.publish_next(&mut at, context)?;
            let reduced = self.reduce_next(&mut at, context)?;
            let taken = self.take_next(&mut at, context)?;
            if !(published || reduced || taken) {
                break;
            }
            progressed = true;
        }
        self.straight = Some(at);
        Ok(progressed)
    }

    /// The peers that keep the straight way from going on.
    pub(super) fn straight_absent(&self, at: &Straight, context: &mut Context<'_>) -> Vec<usize> {
        let rank = context.rank;
        let others = (0..context.world_size).filter(|peer| *peer != rank);
        let Some(windows) = context.windows.as_deref() else {
            return Vec::new();
        };
        if at.published == at.taken && at.published < self.slices {
            return windows.behind(self.generation(at.published));
        }
        let lacks = |peer: usize, slice: u32, before: u32, phase| {
            slice < before
                && !windows
                    .has_reached(peer, self.generation(slice), phase, &self.call)
                    .unwrap_or(false)
        };
        others
            .filter(|&peer| {
                lacks(peer, at.reduced, at.published, INPUTS)
                    || lacks(peer, at.taken, at.reduced, REDUCED)
            })
            .collect()
    }

    fn generation(&self, slice: u32) -> u64 {
        self.first_generation + slice as u64
    }

    /// Publishes what others reduce of the next slice.
    fn publish_next(&self, at: &mut Straight, context: &mut Context<'_>) -> Result<bool> {
        let slice = at.published;
        if slice == self.slices || slice - at.taken == SLICES_AHEAD_MAX {
            return Ok(false);
        }
        let generation = self.generation(slice);
        let windows = windows(&mut context.windows)?;
        if !windows.is_free(generation) {
            return Ok(false);
        }
        context.unverified.verify_before(windows, generation)?;
        let (own, world_size) = (context.rank as u32, context.world_size as u32);
        for (first, len) in [(0, own), (own + 1, world_size - own - 1)] {
            if len > 0 {
                let part = span(Buffer::Input, first, len);
                let offset = self.slot_offset(Buffer::Input, first, slice);
                let from = self.region(part, slice);
                let slot = windows.slot(context.rank, generation, offset..offset + from.bytes());
                slot.copy_from(from);
            }
        }
        windows.publish(generation, INPUTS, &self.call, Wake::Peers);
        at.published += 1;
        Ok(true)
    }

    /// Reduces this rank's chunk of the next slice, once all others have published theirs, and gives it back to them.
    fn reduce_next(&self, at: &mut Straight, context: &mut Context<'_>) -> Result<bool> {
        let slice = at.reduced;
        if slice == at.published {
            return Ok(false);
        }
        let generation = self.generation(slice);
        let own = context.rank;
        let windows = windows(&mut context.windows)?;
        while at.heard < context.world_size {
            if at.heard != own {
                if !windows.has_reached(at.heard, generation, INPUTS, &self.call)? {
                    return Ok(false);
                }
                context.lateness.heard(at.heard);
            }
            at.heard += 1;
        }
        let mine = self.region(span(Buffer::Input, own as u32, 1), slice);
        let into = self.region(span(Buffer::Output, own as u32, 1), slice);
        let offset = self.slot_offset(Buffer::Input, own as u32, slice);
        let first_peer = usize::from(own == 0);
        for start in (0..mine.bytes()).step_by(BLOCK_BYTES) {
            let block = start..mine.bytes().min(start + BLOCK_BYTES);
            context.operands.clear();
            for rank in 0..context.world_size {
                let source = if rank == own {
                    mine.part(block.clone())
                } else {
                    windows.slot(rank, generation, offset + block.start..offset + block.end)
                };
                context.operands.push(source);
            }
            let sum = context.operands[first_peer];
            self.kernel().fold(sum, context.operands);
            into.part(block).copy_from(sum);
            for (rank, place) in context.operands.iter().enumerate() {
                if rank != own && rank != first_peer {
                    place.copy_from(sum);
                }
            }
        }
        windows.publish(generation, REDUCED, &self.call, Wake::Peers);
        at.reduced += 1;
        at.heard = 0;
        Ok(true)
    }

    /// Takes the sums of the next slice as they come; whether that was the last.
    fn take_next(&mut self, at: &mut Straight, context: &mut Context<'_>) -> Result<bool> {
        let slice = at.taken;
        if slice == at.reduced {
            return Ok(false);
        }
        let generation = self.generation(slice);
        let own = context.rank;
        let windows = windows(&mut context.windows)?;
        while at.taken_from < context.world_size {
            let peer = at.taken_from;
            if peer != own {
                if !windows.has_reached(peer, generation, REDUCED, &self.call)? {
                    return Ok(false);
                }
                context.lateness.heard(peer);
                let into = self.region(span(Buffer::Output, peer as u32, 1), slice);
                let offset = self.slot_offset(Buffer::Output, peer as u32, slice);
                into.copy_from(windows.slot(own, generation, offset..offset + into.bytes()));
            }
            at.taken_from += 1;
        }
        windows.finish(generation, Wake::Peers);
        self.finish_slice(0, slice)?;
        at.taken += 1;
        at.taken_from = 0;
        self.channels[0].retired = at.taken;
        Ok(true)
    }
}

fn span(buffer: Buffer, first: u32, len: u32) -> Span {
    Span { buffer, first, len }
}
