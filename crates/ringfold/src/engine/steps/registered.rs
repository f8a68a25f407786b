//! Steps in the peers' registered buffers: announcing the location of our own, agreeing that all
//! are registered, and the pieces of the work.
//!
//! Whether buffers are registered is not known alike on all ranks. So each attaches the handles of
//! its own to its slot, or marks that it has none, and after seeing all of them all ranks make the
//! same decision whether to continue. A handle is untrusted input, which the registry checks.
//!
//! A rank that returns an error first announces that it withdraws its memory, which its owner may
//! then write. So a rank checks for that after it has read, and does not use what it may have read
//! too late.
//!
//! The work is done a piece at a time, so that the thread that drives the engine can check for
//! aborts in between.

use std::ops::Range;

use super::channel::{Channel, Issue};
use super::exposed::{Exposed, NOWHERE, PushScratch};
use super::staged::wake;
use crate::engine::context::{Context, windows};
use crate::engine::geometry::Geometry;
use crate::error::Result;
use crate::memory::{Handle, Region};
use crate::reduce::Store;
use crate::schedule::{Assignment, Buffer, Combine, Span};
use crate::transport::ATTACHED_WORDS;

/// The maximum that one attempt reads and stores: some 100 µs of work, after which a verdict is
/// seen.
const ATTEMPT_BYTES: usize = 4 << 20;

/// The minimum that one attempt processes of a chunk, however many ranks there are: the start of
/// each source has a cost.
const PIECE_BYTES_MIN: usize = 16 << 10;

impl Channel<'_> {
    /// Attaches the locations of this rank's buffers to the slot, and publishes that.
    pub(super) fn expose(
        &self,
        (phase, assignment): (u8, Assignment),
        slice: u32,
        context: &mut Context,
    ) -> Result<Issue> {
        let registry = &context.registry;
        let place = |buffer, region: Region| {
            if region.is_empty() || !self.plan.schedule.has(buffer) {
                Some(NOWHERE)
            } else {
                registry.find(region)
            }
        };
        let input = place(Buffer::Input, self.operation.buffers.input);
        let output = place(Buffer::Output, self.operation.buffers.output);
        let words = match (input, output) {
            (Some(input), Some(output)) => {
                registry.sync_to_file(self.operation.buffers.input, input);
                Exposed { input, output }.encode()
            }
            _ => [0; ATTACHED_WORDS],
        };
        let generation = self.operation.generation(slice);
        let windows = windows(&mut context.windows)?;
        windows.attach(generation, &words);
        windows.publish(generation, phase, &self.operation.call, wake(assignment));
        Ok(Issue::Done)
    }

    /// Whether all ranks have exposed registered buffers: the same answer on all of them.
    fn is_agreed(&self, slice: u32, context: &mut Context) -> Result<bool> {
        let generation = self.operation.generation(slice);
        let windows = windows(&mut context.windows)?;
        context.kept.push.exposed.clear();
        for rank in 0..context.world_size {
            let words = std::array::from_fn(|word| windows.attached(rank, generation, word));
            let Some(exposed) = Exposed::decode(words) else {
                return Ok(false);
            };
            context.kept.push.exposed.push(exposed);
        }
        Ok(true)
    }

    /// Does what can be done now of `combine`, in all ranks' buffers.
    pub(super) fn combine_registered(
        &mut self,
        combine: &Combine,
        slice: u32,
        context: &mut Context,
    ) -> Result<Issue> {
        if self.at.pushed == 0 && !self.is_agreed(slice, context)? {
            return Ok(Issue::Refused);
        }
        // Neither does it begin to write there.
        if Self::is_withdrawn(context)? {
            return Ok(Issue::Blocked);
        }
        let buffers = &self.operation.buffers;
        let range = |cut: &Geometry, span: Span| cut.range(span.first, span.len, slice);
        let from = range(&buffers.input_cut, combine.from);
        let into = range(&buffers.output_cut, combine.into);
        match combine.assignment {
            Assignment::Owner => self.push(combine, from, into, context),
            Assignment::Dynamic => self.serve(combine, from, into, slice, context),
        }
    }

    /// Does the next piece of `combine`.
    fn push(
        &mut self,
        combine: &Combine,
        from: Range<usize>,
        into: Range<usize>,
        context: &mut Context,
    ) -> Result<Issue> {
        let ends = combine.sources.count + combine.targets.count;
        let piece = (ATTEMPT_BYTES / ends as usize / 64 * 64).max(PIECE_BYTES_MIN);
        let done = self.at.pushed;
        let part = done..into.len().min(done + piece);
        if !part.is_empty() {
            self.push_part(combine, &from, &into, part.clone(), context)?;
        }
        let is_done = part.end == into.len();
        self.at.pushed = if is_done { 0 } else { part.end };
        if is_done && Self::is_withdrawn(context)? {
            return Ok(Issue::Blocked);
        }
        Ok(if is_done { Issue::Done } else { Issue::Begun })
    }

    /// Whether some peer's memory is not what it had there in the call. Data read before the answer
    /// no is valid.
    pub(super) fn is_withdrawn(context: &mut Context) -> Result<bool> {
        let (own, world_size) = (context.rank, context.world_size);
        let windows = windows(&mut context.windows)?;
        let mut peers = (0..world_size).filter(|rank| *rank != own);
        Ok(peers.any(|peer| windows.has_withdrawn(peer)))
    }

    /// Reduces bytes `part` of `from` of all sources' inputs, and stores the result as the same
    /// part of `into` of all targets' outputs.
    pub(super) fn push_part(
        &self,
        combine: &Combine,
        from: &Range<usize>,
        into: &Range<usize>,
        part: Range<usize>,
        context: &mut Context,
    ) -> Result<()> {
        let within = |whole: &Range<usize>| whole.start + part.start..whole.start + part.end;
        context.kept.operands.clear();
        for rank in combine.sources.ranks() {
            let source = Self::reach(rank as usize, Buffer::Input, within(from), context)?;
            context.kept.operands.push(source);
        }
        context.kept.push.targets.clear();
        for rank in combine.targets.ranks() {
            let target = Self::reach(rank as usize, Buffer::Output, within(into), context)?;
            context.kept.push.targets.push(target);
        }
        let PushScratch { targets, parts, .. } = &mut context.kept.push;
        let sources = &context.kept.operands;
        let replaces = |target: &Region| sources.iter().any(|from| from.is_same(*target));
        let store = match self.store() {
            Store::Streamed if !targets.iter().any(replaces) => Store::Streamed,
            _ => Store::Cached,
        };
        match &self.operation.kernel {
            Some(kernel) if sources.len() > 1 => {
                let how = (self.operation.factor, store);
                context
                    .parallel
                    .spread(kernel, targets, sources, how, parts)
            }
            _ => context.parallel.spread_copy(targets, sources[0], store),
        }
    }

    /// The location of bytes `range` of a rank's buffer for this rank. Its own is looked up in the
    /// registry, too: if existing memory was registered, not every page could be shared.
    fn reach(
        rank: usize,
        buffer: Buffer,
        range: Range<usize>,
        context: &Context,
    ) -> Result<Region> {
        let Handle {
            registration,
            offset,
        } = context.kept.push.exposed[rank].handle(buffer);
        let place = Handle {
            registration,
            offset: offset.saturating_add(range.start as u64),
        };
        context.registry.resolve(rank, place, range.len())
    }
}
