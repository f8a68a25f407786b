//! Steps on published memory: publishing, waiting, reading, and storing results in peers' slots.

use std::ops::Range;

use super::channel::{Channel, Issue};
use crate::engine::context::windows;
use crate::engine::tiny::inline::Inline;
use crate::error::Result;
use crate::memory::Region;
use crate::reduce::Store;
use crate::schedule::{Assignment, AwaitedPeers, Buffer, BufferCut, Span};
use crate::transport::Wake;

/// Returns the peers to wake at a publication: none if any rank may do the work, because the last
/// one to publish finds all others there.
pub(super) fn wake(assignment: Assignment) -> Wake {
    match assignment {
        Assignment::Owner => Wake::Peers,
        Assignment::Dynamic => Wake::None,
    }
}

impl Channel<'_> {
    /// Publishes the chunks of `span`, and announces that `phase` is reached.
    pub(super) fn publish(&mut self, span: Span, phase: u8, wake: Wake) -> Result<Issue> {
        let (operation, generation) = (self.operation, self.generation());
        if Inline::carries(&operation.call) {
            let windows = windows(&mut self.context.windows)?;
            Inline::send(windows, generation, operation.buffers.input);
        } else {
            for part in contiguous_in_slot(self.plan.schedule.cut(span.buffer), span) {
                let from = self.region(part);
                let range = self.slot_range(part.buffer, part.first, from.bytes());
                let windows = windows(&mut self.context.windows)?;
                let rank = self.context.rank;
                let target = operation.slot_use.place(windows, rank, generation, range);
                self.context.parallel.copy(target, from, Store::Cached)?;
            }
        }
        windows(&mut self.context.windows)?.publish(generation, phase, &operation.call, wake);
        Ok(Issue::Done)
    }

    /// Completes once these peers have reached `phase`.
    pub(super) fn await_phase(&mut self, peers: AwaitedPeers, phase: u8) -> Result<Issue> {
        let (generation, call) = (self.generation(), &self.operation.call);
        let windows = windows(&mut self.context.windows)?;
        let mut has_arrived = |peer: usize| -> Result<bool> {
            let is_there = windows.has_reached(peer, generation, phase, call)?;
            if is_there {
                self.context.lateness.peer_arrived(peer);
            }
            Ok(is_there)
        };
        if let AwaitedPeers::One(peer) = peers {
            return Ok(match has_arrived(peer as usize)? {
                true => Issue::Done,
                false => Issue::Blocked,
            });
        }
        while (self.at.awaited as usize) < self.context.world_size {
            let peer = self.at.awaited as usize;
            if peer != self.context.rank && !has_arrived(peer)? {
                return Ok(Issue::Blocked);
            }
            self.at.awaited += 1;
        }
        self.at.awaited = 0;
        Ok(Issue::Done)
    }

    /// Copies the chunks from `first` on that `peer` has published.
    pub(super) fn copy_from(&mut self, peer: usize, first: u32, into: Span) -> Result<Issue> {
        let target = self.region(into);
        let range = self.slot_range(into.buffer, first, target.bytes());
        let from = self.published(peer, first, range)?;
        self.context.parallel.copy(target, from, self.store())?;
        self.operation.slot_use.done_reading(from);
        Ok(Issue::Done)
    }

    /// Reduces `own` and the same chunks published by all others.
    pub(super) fn reduce_from(&mut self, own: Span, into: Span) -> Result<Issue> {
        let mine = self.region(own);
        let range = self.slot_range(own.buffer, own.first, mine.bytes());
        self.context.operands.clear();
        for rank in 0..self.context.world_size {
            let operand = match rank == self.context.rank {
                true => mine,
                false => self.published(rank, own.first, range.clone())?,
            };
            self.context.operands.push(operand);
        }
        let (kernel, into) = (self.operation.kernel(), self.region(into));
        let operands = &self.context.operands;
        self.context.parallel.fold(kernel, into, operands);
        for (rank, read) in operands.iter().enumerate() {
            if rank != self.context.rank {
                self.operation.slot_use.done_reading(*read);
            }
        }
        Ok(Issue::Done)
    }

    /// Returns the data that `rank` published as `range` of its slot, or attached as block `first`.
    fn published(&mut self, rank: usize, first: u32, range: Range<usize>) -> Result<Region> {
        let (operation, generation) = (self.operation, self.generation());
        let windows = windows(&mut self.context.windows)?;
        if Inline::carries(&operation.call) {
            let start = operation.buffers.input_cut.range(first, 1, 0).start;
            let attached = start..start + range.len();
            let inline = &self.kept.inline;
            return Ok(inline.take(windows, rank, generation, attached));
        }
        Ok(operation.slot_use.place(windows, rank, generation, range))
    }

    /// Stores the chunks of `span` where each peer has published its own, and announces that
    /// `phase` is reached.
    pub(super) fn give_back(&mut self, span: Span, phase: u8) -> Result<Issue> {
        let (source, generation) = (self.region(span), self.generation());
        let range = self.slot_range(span.buffer, span.first, source.bytes());
        let windows = windows(&mut self.context.windows)?;
        for peer in (0..self.context.world_size).filter(|&peer| peer != self.context.rank) {
            let place = windows.slot(peer, generation, range.clone());
            self.context.parallel.copy(place, source, Store::Cached)?;
        }
        windows.publish(generation, phase, &self.operation.call, Wake::Peers);
        Ok(Issue::Done)
    }

    /// Copies the chunks that a peer has stored where this rank had published the same ones.
    pub(super) fn take_back(&mut self, into: Span) -> Result<Issue> {
        let (target, generation) = (self.region(into), self.generation());
        let range = self.slot_range(into.buffer, into.first, target.bytes());
        let windows = windows(&mut self.context.windows)?;
        let from = windows.slot(self.context.rank, generation, range);
        self.context.parallel.copy(target, from, Store::Cached)?;
        Ok(Issue::Done)
    }

    /// Returns the range in a slot of `bytes` bytes from chunk `first` of `buffer` on.
    pub(super) fn slot_range(&self, buffer: Buffer, first: u32, bytes: usize) -> Range<usize> {
        let offset = self.operation.slot_offset(buffer, first, self.at.slice);
        offset..offset + bytes
    }
}

/// Returns the parts of `span` that are contiguous in memory and in a slot: a vector's chunks
/// together, blocks separately.
fn contiguous_in_slot(cut: BufferCut, span: Span) -> impl Iterator<Item = Span> {
    let len = match cut {
        BufferCut::Vector(_) => span.len.max(1),
        BufferCut::Blocks(_) => 1,
    };
    let parts = span.len / len;
    (0..parts).map(move |part| Span {
        first: span.first + part * len,
        len,
        ..span
    })
}
