//! Steps on published memory: what a rank publishes, waits for, reads, and gives back.

use std::ops::Range;

use super::channel::{Channel, Issue};
use crate::engine::context::{Context, windows};
use crate::engine::tiny::inline::Inline;
use crate::error::Result;
use crate::reduce::Store;
use crate::schedule::{Assignment, Buffer, Cut, Members, Peers, Span};
use crate::transport::Wake;

/// The peers that are woken when something is published: none where any rank may do the work,
/// because the last one to publish finds all others there.
pub(super) fn wake(assignment: Assignment) -> Wake {
    match assignment {
        Assignment::Owner => Wake::Peers,
        Assignment::Dynamic => Wake::None,
    }
}

impl Channel<'_> {
    /// Publishes the chunks of `span`, and says that `phase` is reached.
    pub(super) fn publish(
        &self,
        span: Span,
        (phase, assignment): (u8, Assignment),
        slice: u32,
        context: &mut Context,
    ) -> Result<Issue> {
        let generation = self.operation.generation(slice);
        let windows = windows(&mut context.windows)?;
        if Inline::carries(&self.operation.call) {
            Inline::send(windows, generation, self.operation.buffers.input);
        } else {
            for part in self.contiguous_in_slot(span) {
                let from = self.operation.region(part, slice);
                let range = self.slot_range(part.buffer, part.first, from.bytes(), slice);
                let slot_use = self.operation.slot_use;
                let target = slot_use.place(windows, context.rank, generation, range);
                context.parallel.copy(target, from, Store::Cached)?;
            }
        }
        windows.publish(generation, phase, &self.operation.call, wake(assignment));
        Ok(Issue::Done)
    }

    /// Goes on once these peers have reached `phase`.
    pub(super) fn await_phase(
        &mut self,
        peers: Peers,
        phase: u8,
        slice: u32,
        context: &mut Context,
    ) -> Result<Issue> {
        let generation = self.operation.generation(slice);
        let windows = windows(&mut context.windows)?;
        let mut has_arrived = |peer: usize| -> Result<bool> {
            let is_there = windows.has_reached(peer, generation, phase, &self.operation.call)?;
            if is_there {
                context.lateness.peer_arrived(peer);
            }
            Ok(is_there)
        };
        if let Peers::One(peer) = peers {
            return Ok(match has_arrived(peer as usize)? {
                true => Issue::Done,
                false => Issue::Blocked,
            });
        }
        while (self.at.awaited as usize) < context.world_size {
            let peer = self.at.awaited as usize;
            if peer != context.rank && !has_arrived(peer)? {
                return Ok(Issue::Blocked);
            }
            self.at.awaited += 1;
        }
        self.at.awaited = 0;
        Ok(Issue::Done)
    }

    /// Copies what `peer` has published as the chunks from `first` on.
    pub(super) fn copy_from(
        &self,
        peer: usize,
        first: u32,
        into: Span,
        slice: u32,
        context: &mut Context,
    ) -> Result<Issue> {
        let generation = self.operation.generation(slice);
        let target = self.operation.region(into, slice);
        let windows = windows(&mut context.windows)?;
        if Inline::carries(&self.operation.call) {
            let range = self.inline_range(first, target.bytes());
            target.copy_from(context.kept.inline.take(windows, peer, generation, range));
            return Ok(Issue::Done);
        }
        let range = self.slot_range(into.buffer, first, target.bytes(), slice);
        let slot_use = self.operation.slot_use;
        let from = slot_use.place(windows, peer, generation, range);
        context.parallel.copy(target, from, self.store())?;
        slot_use.done_reading(from);
        Ok(Issue::Done)
    }

    /// Reduces `own` and what the others of `among` have published under its numbers.
    pub(super) fn reduce_from(
        &self,
        among: Members,
        own: Span,
        into: Span,
        slice: u32,
        context: &mut Context,
    ) -> Result<Issue> {
        let generation = self.operation.generation(slice);
        let mine = self.operation.region(own, slice);
        let range = self.slot_range(own.buffer, own.first, mine.bytes(), slice);
        let slot_use = self.operation.slot_use;
        let windows = windows(&mut context.windows)?;
        context.kept.operands.clear();
        for rank in among.ranks().map(|rank| rank as usize) {
            context.kept.operands.push(if rank == context.rank {
                mine
            } else if Inline::carries(&self.operation.call) {
                let range = self.inline_range(own.first, mine.bytes());
                context.kept.inline.take(windows, rank, generation, range)
            } else {
                slot_use.place(windows, rank, generation, range.clone())
            });
        }
        let into = self.operation.region(into, slice);
        context
            .parallel
            .fold(self.operation.kernel(), into, &context.kept.operands);
        for (rank, read) in among.ranks().zip(&context.kept.operands) {
            if rank as usize != context.rank {
                slot_use.done_reading(*read);
            }
        }
        Ok(Issue::Done)
    }

    /// Stores the chunks of `span` where each peer has published its own, and says that `phase` is
    /// reached.
    pub(super) fn give_back(
        &self,
        span: Span,
        phase: u8,
        slice: u32,
        context: &mut Context,
    ) -> Result<Issue> {
        let generation = self.operation.generation(slice);
        let source = self.operation.region(span, slice);
        let range = self.slot_range(span.buffer, span.first, source.bytes(), slice);
        let windows = windows(&mut context.windows)?;
        for peer in (0..context.world_size).filter(|&peer| peer != context.rank) {
            let place = windows.slot(peer, generation, range.clone());
            context.parallel.copy(place, source, Store::Cached)?;
        }
        windows.publish(generation, phase, &self.operation.call, Wake::Peers);
        Ok(Issue::Done)
    }

    /// Copies what a peer has stored where this rank had published the same chunks.
    pub(super) fn take_back(&self, into: Span, slice: u32, context: &mut Context) -> Result<Issue> {
        let generation = self.operation.generation(slice);
        let target = self.operation.region(into, slice);
        let range = self.slot_range(into.buffer, into.first, target.bytes(), slice);
        let from = windows(&mut context.windows)?.slot(context.rank, generation, range);
        context.parallel.copy(target, from, Store::Cached)?;
        Ok(Issue::Done)
    }

    /// Where `bytes` from chunk `first` of `buffer` on stand in a slot.
    pub(super) fn slot_range(
        &self,
        buffer: Buffer,
        first: u32,
        bytes: usize,
        slice: u32,
    ) -> Range<usize> {
        let offset = self.operation.slot_offset(buffer, first, slice);
        offset..offset + bytes
    }

    /// The location of block `first` of a rank's input in the data attached to its slot.
    fn inline_range(&self, first: u32, bytes: usize) -> Range<usize> {
        let start = self.operation.buffers.input_cut.range(first, 1, 0).start;
        start..start + bytes
    }

    /// The parts of `span` that are contiguous in memory and in a slot: a vector's chunks together,
    /// blocks separately.
    fn contiguous_in_slot(&self, span: Span) -> impl Iterator<Item = Span> + use<> {
        let len = match self.plan.schedule.cut(span.buffer) {
            Cut::Vector(_) => span.len.max(1),
            Cut::Blocks(_) => 1,
        };
        let parts = span.len / len;
        (0..parts).map(move |part| Span {
            first: span.first + part * len,
            len,
            ..span
        })
    }
}
