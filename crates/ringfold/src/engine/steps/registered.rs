//! Steps in peers' registered buffers: announcing the location of this rank's, agreeing that all
//! are registered, and the pieces of the work.
//!
//! A rank does not know whether its peers' buffers are registered. So each rank attaches the
//! handles of its buffers to its slot, or a mark that it has none. After seeing all ranks' handles
//! and marks, all ranks make the same decision whether to continue. A handle is untrusted input,
//! which the registry checks.
//!
//! A rank that returns an error first announces that it withdraws its memory, which its owner may
//! then write. So a peer checks for withdrawal after it has read, and does not use data that it may
//! have read too late.
//!
//! The work is done a piece at a time, so that the thread that drives the engine can check for
//! aborts in between.

use std::ops::Range;

use super::channel::{Channel, Issue};
use super::exposed::{Exposed, NOWHERE};
use super::kept::StepsKept;
use crate::engine::context::windows;
use crate::engine::geometry::Geometry;
use crate::error::Result;
use crate::memory::{BufferHandle, Region};
use crate::reduce::Store;
use crate::schedule::{Assignment, Buffer, Combine, Span};
use crate::transport::{ATTACHED_WORDS, Wake};

/// Maximum number of bytes that one attempt reads and stores: some 100 µs of work, after which a
/// verdict is seen.
pub(super) const ATTEMPT_BYTES: usize = 4 << 20;

/// Minimum number of bytes that one attempt processes of a chunk, however many ranks there are: the
/// start of each source has a cost.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// The byte ranges in all ranks' buffers that a [`Combine`] reads and stores.
pub(super) struct Ends {
    pub from: Range<usize>,
    pub into: Range<usize>,
}

impl Channel<'_> {
    /// Attaches the locations of this rank's buffers to its slot, and publishes them.
    pub(super) fn expose(&mut self, phase: u8, wake: Wake) -> Result<Issue> {
        let registry = &self.context.registry;
        let buffers = &self.operation.buffers;
        let place = |buffer, region: Region| {
            if region.is_empty() || !self.plan.schedule.has(buffer) {
                Some(NOWHERE)
            } else {
                registry.find(region)
            }
        };
        let input = place(Buffer::Input, buffers.input);
        let output = place(Buffer::Output, buffers.output);
        let words = match (input, output) {
            (Some(input), Some(output)) => {
                registry.sync_to_file(buffers.input, input);
                Exposed { input, output }.encode()
            }
            _ => [0; ATTACHED_WORDS],
        };
        let generation = self.generation();
        let windows = windows(&mut self.context.windows)?;
        windows.attach(generation, &words);
        windows.publish(generation, phase, &self.operation.call, wake);
        Ok(Issue::Done)
    }

    /// Whether all ranks have exposed registered buffers: the same answer on all of them.
    fn is_agreed(&mut self) -> Result<bool> {
        let generation = self.generation();
        let windows = windows(&mut self.context.windows)?;
        let all_exposed = &mut self.kept.exposed;
        all_exposed.clear();
        for rank in 0..self.context.world_size {
            let words = std::array::from_fn(|word| windows.attached(rank, generation, word));
            let Some(exposed) = Exposed::decode(words) else {
                return Ok(false);
            };
            all_exposed.push(exposed);
        }
        Ok(true)
    }

    /// Does the part of `combine` that is ready, in all ranks' buffers.
    pub(super) fn combine_registered(&mut self, combine: &Combine) -> Result<Issue> {
        if self.at.pushed == 0 && !self.is_agreed()? {
            return Ok(Issue::Refused);
        }
        // A rank does not begin to write to withdrawn memory, either.
        if self.is_withdrawn()? {
            return Ok(Issue::Blocked);
        }
        let buffers = &self.operation.buffers;
        let range = |cut: &Geometry, span: Span| cut.range(span.first, span.len, self.at.slice);
        let ends = Ends {
            from: range(&buffers.input_cut, combine.from),
            into: range(&buffers.output_cut, combine.into),
        };
        match combine.assignment {
            Assignment::Owner => self.push(combine, &ends),
            Assignment::Dynamic => self.serve(combine, &ends),
        }
    }

    /// Does the next piece of `combine`.
    fn push(&mut self, combine: &Combine, ends: &Ends) -> Result<Issue> {
        let copies = combine.sources.count + combine.targets.count;
        let piece = (ATTEMPT_BYTES / copies as usize / 64 * 64).max(PIECE_BYTES_MIN);
        let (done, bytes) = (self.at.pushed, ends.into.len());
        let end = bytes.min(done + piece);
        if done < end {
            self.push_part(combine, ends, done..end)?;
        }
        let is_done = end == bytes;
        self.at.pushed = if is_done { 0 } else { end };
        if is_done && self.is_withdrawn()? {
            return Ok(Issue::Blocked);
        }
        Ok(if is_done { Issue::Done } else { Issue::Begun })
    }

    /// Returns whether some peer has withdrawn its memory. Data read before a negative answer is
    /// valid.
    pub(super) fn is_withdrawn(&mut self) -> Result<bool> {
        let windows = windows(&mut self.context.windows)?;
        let mut peers = (0..self.context.world_size).filter(|rank| *rank != self.context.rank);
        Ok(peers.any(|peer| windows.has_withdrawn(peer)))
    }

    /// Reduces bytes `part` of `ends.from` of all sources' inputs, and stores the result as the
    /// same part of `ends.into` of all targets' outputs.
    pub(super) fn push_part(
        &mut self,
        combine: &Combine,
        ends: &Ends,
        part: Range<usize>,
    ) -> Result<()> {
        let within = |whole: &Range<usize>| whole.start + part.start..whole.start + part.end;
        self.context.operands.clear();
        for rank in combine.sources.ranks() {
            let source = self.reach(rank as usize, Buffer::Input, within(&ends.from))?;
            self.context.operands.push(source);
        }
        self.kept.targets.clear();
        for rank in combine.targets.ranks() {
            let target = self.reach(rank as usize, Buffer::Output, within(&ends.into))?;
            self.kept.targets.push(target);
        }
        let wanted = self.store();
        let StepsKept { targets, parts, .. } = &mut *self.kept;
        let sources = &self.context.operands;
        let replaces = |target: &Region| sources.iter().any(|from| from.is_same(*target));
        let store = match wanted {
            Store::Streamed if !targets.iter().any(replaces) => Store::Streamed,
            _ => Store::Cached,
        };
        let parallel = &mut self.context.parallel;
        match &self.operation.kernel {
            Some(kernel) if sources.len() > 1 => {
                let how = (self.operation.factor, store);
                parallel.spread(kernel, targets, sources, how, parts)
            }
            _ => parallel.spread_copy(targets, sources[0], store),
        }
    }

    /// Returns bytes `range` of a rank's buffer as mapped here. This rank's own is looked up in the
    /// registry, too: if existing memory was registered, not every page could be shared.
    fn reach(&self, rank: usize, buffer: Buffer, range: Range<usize>) -> Result<Region> {
        let exposed = self.kept.exposed[rank].handle(buffer);
        let place = BufferHandle {
            offset: exposed.offset.saturating_add(range.start as u64),
            ..exposed
        };
        self.context.registry.resolve(rank, place, range.len())
    }
}
