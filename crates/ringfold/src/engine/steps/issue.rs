//! Executing one step: the location of its spans, and its operations on the transport.

use std::ops::Range;

use super::Channel;
use super::progress::ticket;
use super::push::Push;
use crate::call::{Call, LISTED_MAX, PAIRWISE, list_digest};
use crate::engine::executor::{Context, windows};
use crate::engine::tiny::inline::Inline;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::reduce::Store;
use crate::schedule::{Action, Buffer, Cut, Members, Peers, Span};
use crate::transport::{
    Header, P2P_CHANNEL, Post, Posted, Sink, Stream, Ticket, Wake, Work, WorkKind,
};

/// The unit that one rank reduces at a time: large enough that claiming it costs little, small
/// enough that other ranks do not wait long for a rank that loses its core meanwhile.
const BLOCK_BYTES: usize = 16 << 10;

/// The blocks of a published slice.
fn blocks(bytes: usize) -> u32 {
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    u32::try_from(blocks).expect("slices are cut to fit slots")
}

/// The result of an attempt to issue a step.
pub(super) enum Issue {
    Done,
    Pending,
    Blocked,
    /// A piece of it is done; the rest does not wait for any rank.
    Begun,
    /// It cannot be done, which all ranks know alike.
    Refused,
}

impl Channel<'_> {
    /// Executes step `index` of `slice`, or starts it.
    pub(super) fn issue(&mut self, slice: u32, index: u32, context: &mut Context) -> Result<Issue> {
        let step = &self.plan.channels[self.number].steps[index as usize];
        let posted = match step.action {
            Action::Send { peer, span } => {
                let payload = self.operation.region(span, slice);
                let Some((stream, header)) =
                    self.message(peer, slice, step.message, span, payload)?
                else {
                    return Ok(Issue::Done);
                };
                let ticket = self.ticket(slice, index);
                context
                    .transport
                    .post_send(Post(stream, ticket, header), payload)?
            }
            Action::Recv { peer, span } => {
                let sink = Sink::Store(self.operation.region(span, slice));
                return self.receive(peer, slice, index, (span, sink), context);
            }
            Action::RecvReduce { peer, with, into } => {
                let filled = into;
                let (with, into) = (
                    self.operation.region(with, slice),
                    self.operation.region(into, slice),
                );
                let sink = Sink::Reduce {
                    with,
                    into,
                    kernel: self.operation.kernel(),
                };
                return self.receive(peer, slice, index, (filled, sink), context);
            }
            Action::Copy { from, into } => {
                let (into, from) = (
                    self.operation.region(into, slice),
                    self.operation.region(from, slice),
                );
                context.parallel.copy(into, from, self.store())?;
                match into.is_same(from) {
                    true => Posted::Done,
                    false => self.tell(WorkKind::Copy, into, slice, index, context)?,
                }
            }
            Action::Reduce { with, from, into } => {
                let operands = [
                    self.operation.region(with, slice),
                    self.operation.region(from, slice),
                ];
                let into = self.operation.region(into, slice);
                context
                    .parallel
                    .fold(self.operation.kernel(), into, &operands);
                self.tell(WorkKind::Reduce, into, slice, index, context)?
            }
            shared => return self.issue_shared(shared, slice, context),
        };
        Ok(if posted == Posted::Done {
            Issue::Done
        } else {
            Issue::Pending
        })
    }

    fn ticket(&self, slice: u32, index: u32) -> Ticket {
        let flight = slice % self.plan.slices_in_flight;
        ticket(self.operation.id, self.number, flight, index)
    }

    fn receive(
        &self,
        peer: u32,
        slice: u32,
        index: u32,
        (span, sink): (Span, Sink),
        context: &mut Context,
    ) -> Result<Issue> {
        let step = &self.plan.channels[self.number].steps[index as usize];
        let region = match sink {
            Sink::Store(into) | Sink::Reduce { into, .. } => into,
        };
        let Some((stream, header)) = self.message(peer, slice, step.message, span, region)? else {
            return Ok(Issue::Done);
        };
        let ticket = self.ticket(slice, index);
        let posted = context
            .transport
            .post_recv(Post(stream, ticket, header), sink)?;
        Ok(if posted == Posted::Done {
            context.lateness.peer_arrived(peer as usize);
            Issue::Done
        } else {
            Issue::Pending
        })
    }

    /// Reports work that may take virtual time.
    fn tell(
        &self,
        kind: WorkKind,
        into: Region,
        slice: u32,
        index: u32,
        context: &mut Context,
    ) -> Result<Posted> {
        if self.operation.publishes {
            return Ok(Posted::Done);
        }
        let work = Work {
            kind,
            dtype: self.operation.call.dtype,
            bytes: into.bytes(),
        };
        let ticket = self.ticket(slice, index);
        context.transport.post_work(ticket, work)
    }

    /// The stream and header of a message, or nothing if it is omitted: an empty one after the
    /// first slice carries no information beyond the first.
    fn message(
        &self,
        peer: u32,
        slice: u32,
        index: u32,
        span: Span,
        region: Region,
    ) -> Result<Option<(Stream, Header)>> {
        if slice > 0 && region.is_empty() {
            return Ok(None);
        }
        let bytes = u32::try_from(region.bytes()).map_err(|_| {
            Error::Unsupported(
                "a message of 4 GiB or more; choose another algorithm or split the call".into(),
            )
        })?;
        let stream = Stream {
            peer: peer as usize,
            channel: P2P_CHANNEL + 1 + self.number,
        };
        let call = match self.operation.call.lists {
            PAIRWISE => self.pair_call(span),
            _ => self.operation.call,
        };
        Ok(Some((
            stream,
            Header {
                call,
                slice,
                index,
                bytes,
            },
        )))
    }

    /// The call in a message of `span`, if each pair of ranks has a count of its own: the whole
    /// block's, because a difference of whole slices does not show in the length of a message.
    fn pair_call(&self, span: Span) -> Call {
        let blocks = match span.buffer {
            Buffer::Output => &self.operation.buffers.output_cut,
            Buffer::Input | Buffer::Scratch => &self.operation.buffers.input_cut,
        };
        let count = blocks.block_elements(span.first);
        Call {
            count: count.min(LISTED_MAX),
            lists: list_digest([count]),
            ..self.operation.call
        }
    }

    /// The parts of `span` that are contiguous in memory and in a slot: a vector's chunks together,
    /// blocks separately.
    fn contiguous_in_slot(&self, span: Span) -> impl Iterator<Item = Span> + use<> {
        let cut = match span.buffer {
            Buffer::Output => self.plan.schedule.output,
            Buffer::Input | Buffer::Scratch => self.plan.schedule.input,
        };
        let len = if matches!(cut, Cut::Vector(_)) {
            span.len
        } else {
            1
        };
        let parts = if span.len == 0 { 0 } else { span.len / len };
        (0..parts).map(move |part| Span {
            first: span.first + part * len,
            len,
            ..span
        })
    }

    /// How results that are plain copies are stored: for a large call past the caches, which would
    /// fetch each line before it is overwritten and evict others for it.
    fn store(&self) -> Store {
        match self.operation.streams {
            true => Store::Streamed,
            false => Store::Cached,
        }
    }

    /// The location of block `first` of a rank's input in the data attached to its slot.
    fn inline_range(&self, first: u32, bytes: usize) -> Range<usize> {
        let start = self.operation.buffers.input_cut.range(first, 1, 0).start;
        start..start + bytes
    }

    fn issue_shared(&mut self, action: Action, slice: u32, context: &mut Context) -> Result<Issue> {
        let generation = self.operation.generation(slice);
        let is_combined = self.plan.is_combined;
        match action {
            Action::Publish { span, phase } => {
                let windows = windows(&mut context.windows)?;
                if Inline::carries(&self.operation.call) {
                    Inline::send(windows, generation, self.operation.buffers.input);
                    windows.publish(generation, phase, &self.operation.call, Wake::Peers);
                    return Ok(Issue::Done);
                }
                for part in self.contiguous_in_slot(span) {
                    let offset = self.operation.slot_offset(part.buffer, part.first, slice);
                    let from = self.operation.region(part, slice);
                    let range = offset..offset + from.bytes();
                    let target =
                        self.operation
                            .slot_use
                            .place(windows, context.rank, generation, range);
                    context.parallel.copy(target, from, Store::Cached)?;
                }
                let wake = match is_combined {
                    true => Wake::None,
                    false => Wake::Peers,
                };
                windows.publish(generation, phase, &self.operation.call, wake);
            }
            Action::Await {
                peers: Peers::One(peer),
                phase,
            } => {
                let peer = peer as usize;
                if !windows(&mut context.windows)?.has_reached(
                    peer,
                    generation,
                    phase,
                    &self.operation.call,
                )? {
                    return Ok(Issue::Blocked);
                }
                context.lateness.peer_arrived(peer);
            }
            Action::Await {
                peers: Peers::Others,
                phase,
            } => {
                let windows = windows(&mut context.windows)?;
                let awaited = &mut self.at.awaited;
                while (*awaited as usize) < context.world_size {
                    let peer = *awaited as usize;
                    if peer != context.rank {
                        if !windows.has_reached(peer, generation, phase, &self.operation.call)? {
                            return Ok(Issue::Blocked);
                        }
                        context.lateness.peer_arrived(peer);
                    }
                    *awaited += 1;
                }
                *awaited = 0;
            }
            Action::CopyFrom { peer, first, into } => {
                let target = self.operation.region(into, slice);
                let (peer, bytes) = (peer as usize, target.bytes());
                let windows = windows(&mut context.windows)?;
                if Inline::carries(&self.operation.call) {
                    let range = self.inline_range(first, bytes);
                    target.copy_from(context.kept.inline.take(windows, peer, generation, range));
                    return Ok(Issue::Done);
                }
                let offset = self.operation.slot_offset(into.buffer, first, slice);
                let from = self.operation.slot_use.place(
                    windows,
                    peer,
                    generation,
                    offset..offset + bytes,
                );
                context.parallel.copy(target, from, self.store())?;
                self.operation.slot_use.done_reading(from);
            }
            Action::ReduceFrom { among, own, into } => {
                self.reduce_from(among, own, into, slice, context)?
            }
            Action::Expose { phase } => self.expose(phase, slice, context)?,
            Action::Push {
                sources,
                from,
                targets,
                into,
            }
            | Action::Serve {
                sources,
                from,
                targets,
                into,
            } => {
                let push = Push {
                    sources,
                    from,
                    targets,
                    into,
                };
                return if self.plan.is_served {
                    self.serve(push, slice, context)
                } else {
                    self.push(push, slice, context)
                };
            }
            Action::AwaitServed { span } => {
                if !self.is_served(span, slice, context)? {
                    return Ok(Issue::Blocked);
                }
            }
            Action::GiveBack { span, phase } => {
                let source = self.operation.region(span, slice);
                let offset = self.operation.slot_offset(span.buffer, span.first, slice);
                let windows = windows(&mut context.windows)?;
                for peer in (0..context.world_size).filter(|&peer| peer != context.rank) {
                    let place = windows.slot(peer, generation, offset..offset + source.bytes());
                    context.parallel.copy(place, source, Store::Cached)?;
                }
                windows.publish(generation, phase, &self.operation.call, Wake::Peers);
            }
            Action::TakeBack { into, .. } => {
                let target = self.operation.region(into, slice);
                let offset = self.operation.slot_offset(into.buffer, into.first, slice);
                let windows = windows(&mut context.windows)?;
                let from = windows.slot(context.rank, generation, offset..offset + target.bytes());
                context.parallel.copy(target, from, Store::Cached)?;
            }
            Action::Combine { first, len } => self.combine(first, len, slice, context)?,
            Action::Collect { into } => return self.collect(into, slice, context),
            _ => unreachable!("message and local steps are issued by `issue`"),
        }
        Ok(Issue::Done)
    }

    /// Reduces the blocks that no other rank claims.
    fn combine(&mut self, first: u32, len: u32, slice: u32, context: &mut Context) -> Result<()> {
        let generation = self.operation.generation(slice);
        let span = Span {
            buffer: Buffer::Input,
            first,
            len,
        };
        let (offset, bytes) = (
            self.operation.slot_offset(Buffer::Input, first, slice),
            self.operation.region(span, slice).bytes(),
        );
        let blocks = blocks(bytes);
        let windows = windows(&mut context.windows)?;
        while let Some(block) = windows.claim(generation, blocks) {
            let begin = block as usize * BLOCK_BYTES;
            let end = bytes.min(begin + BLOCK_BYTES);
            let part = |rank: usize| windows.slot(rank, generation, offset + begin..offset + end);
            context.kept.operands.clear();
            context
                .kept
                .operands
                .extend((0..context.world_size).map(part));
            self.operation
                .kernel()
                .fold(part(0), &context.kept.operands);
            windows.complete(generation, blocks);
        }
        Ok(())
    }

    /// Fetches the result, once all of it is reduced.
    fn collect(&mut self, into: Span, slice: u32, context: &mut Context) -> Result<Issue> {
        let generation = self.operation.generation(slice);
        let target = self.operation.region(into, slice);
        let offset = self.operation.slot_offset(Buffer::Input, into.first, slice);
        let windows = windows(&mut context.windows)?;
        if !windows.is_complete(generation, blocks(target.bytes())) {
            return Ok(Issue::Blocked);
        }
        target.copy_from(windows.slot(0, generation, offset..offset + target.bytes()));
        Ok(Issue::Done)
    }

    fn reduce_from(
        &mut self,
        among: Members,
        own: Span,
        into: Span,
        slice: u32,
        context: &mut Context,
    ) -> Result<()> {
        let generation = self.operation.generation(slice);
        let mine = self.operation.region(own, slice);
        let offset = self.operation.slot_offset(own.buffer, own.first, slice);
        let windows = windows(&mut context.windows)?;
        context.kept.operands.clear();
        for rank in among.ranks().map(|rank| rank as usize) {
            context.kept.operands.push(if rank == context.rank {
                mine
            } else if Inline::carries(&self.operation.call) {
                let range = self.inline_range(own.first, mine.bytes());
                context.kept.inline.take(windows, rank, generation, range)
            } else {
                self.operation.slot_use.place(
                    windows,
                    rank,
                    generation,
                    offset..offset + mine.bytes(),
                )
            });
        }
        let into = self.operation.region(into, slice);
        context
            .parallel
            .fold(self.operation.kernel(), into, &context.kept.operands);
        for (rank, read) in among.ranks().zip(&context.kept.operands) {
            if rank as usize != context.rank {
                self.operation.slot_use.done_reading(*read);
            }
        }
        Ok(())
    }
}
