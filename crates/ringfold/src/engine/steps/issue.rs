//! Carrying out one step: where its spans lie, and what it asks of the transport.

use std::ops::Range;

use super::super::tiny::inline::Inline;
use super::push::Push;
use super::{Context, Operation, ticket, windows};
use crate::call::{Call, LISTED_MAX, PAIRWISE, list_digest};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::reduce::{Kernel, Store};
use crate::schedule::{Action, Buffer, Cut, Members, Peers, Span};
use crate::transport::{Header, P2P_CHANNEL, Posted, Sink, Stream, Wake, Work, WorkKind};

/// What one rank combines at a time: large enough that taking it costs little, small enough that nobody waits long for a
/// rank that loses its core meanwhile.
const BLOCK_BYTES: usize = 16 << 10;

/// The blocks of a published slice.
fn blocks(bytes: usize) -> u32 {
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    u32::try_from(blocks).expect("slices are cut to fit slots")
}

/// What became of an attempt to issue a step.
pub(super) enum Issue {
    Done,
    Pending,
    Blocked,
    /// A piece of it is done; the rest waits for nobody.
    Begun,
    /// It cannot be done, which all ranks know alike.
    Refused,
}

impl Operation {
    /// Carries out step `index` of `slice`, or begins to.
    pub(super) fn issue(
        &mut self,
        channel: usize,
        slice: u32,
        index: u32,
        context: &mut Context<'_>,
    ) -> Result<Issue> {
        let plan = self.plan.clone();
        let step = &plan.channels[channel].steps[index as usize];
        let posted = match step.action {
            Action::Send { peer, span } => {
                let payload = self.region(span, slice);
                let Some((stream, header)) =
                    self.message(peer, channel, slice, step.message, span, payload)?
                else {
                    return Ok(Issue::Done);
                };
                let ticket = ticket(context.id, channel, slice % plan.slices_in_flight, index);
                context
                    .transport
                    .post_send(stream, ticket, header, payload)?
            }
            Action::Recv { peer, span } => {
                let sink = Sink::Store(self.region(span, slice));
                return self.receive(peer, channel, slice, index, (span, sink), context);
            }
            Action::RecvReduce { peer, with, into } => {
                let filled = into;
                let (with, into) = (self.region(with, slice), self.region(into, slice));
                let sink = Sink::Reduce {
                    with,
                    into,
                    kernel: self.kernel(),
                };
                return self.receive(peer, channel, slice, index, (filled, sink), context);
            }
            Action::Copy { from, into } => {
                let (into, from) = (self.region(into, slice), self.region(from, slice));
                context.parallel.copy(into, from, self.store())?;
                match into.is_same(from) {
                    true => Posted::Done,
                    false => self.tell(WorkKind::Copy, into, channel, slice, index, context)?,
                }
            }
            Action::Reduce { with, from, into } => {
                let operands = [self.region(with, slice), self.region(from, slice)];
                let into = self.region(into, slice);
                context.parallel.fold(self.kernel(), into, &operands);
                self.tell(WorkKind::Reduce, into, channel, slice, index, context)?
            }
            shared => return self.issue_shared(shared, channel, slice, context),
        };
        Ok(if posted == Posted::Done {
            Issue::Done
        } else {
            Issue::Pending
        })
    }

    fn receive(
        &self,
        peer: u32,
        channel: usize,
        slice: u32,
        index: u32,
        (span, sink): (Span, Sink),
        context: &mut Context<'_>,
    ) -> Result<Issue> {
        let step = &self.plan.channels[channel].steps[index as usize];
        let region = match sink {
            Sink::Store(into) | Sink::Reduce { into, .. } => into,
        };
        let Some((stream, header)) =
            self.message(peer, channel, slice, step.message, span, region)?
        else {
            return Ok(Issue::Done);
        };
        let ticket = ticket(
            context.id,
            channel,
            slice % self.plan.slices_in_flight,
            index,
        );
        let posted = context.transport.post_recv(stream, ticket, header, sink)?;
        Ok(if posted == Posted::Done {
            context.lateness.heard(peer as usize);
            Issue::Done
        } else {
            Issue::Pending
        })
    }

    /// Says what was done, where that may take virtual time.
    fn tell(
        &self,
        kind: WorkKind,
        into: Region,
        channel: usize,
        slice: u32,
        index: u32,
        context: &mut Context<'_>,
    ) -> Result<Posted> {
        if self.publishes() {
            return Ok(Posted::Done);
        }
        let flight = slice % self.plan.slices_in_flight;
        let work = Work {
            kind,
            dtype: self.call.dtype,
            bytes: into.bytes(),
        };
        let ticket = ticket(context.id, channel, flight, index);
        context.transport.post_work(ticket, work)
    }

    /// The stream and header of a message, or nothing when it is left out: an empty one after the first slice, which
    /// says nothing that the first has not said.
    fn message(
        &self,
        peer: u32,
        channel: usize,
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
            channel: P2P_CHANNEL + 1 + channel,
        };
        let call = match self.call.lists {
            PAIRWISE => self.pair_call(span),
            _ => self.call,
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

    /// The call as it stands in a message of `span`, where each pair of ranks has a count of its
    /// own: the whole block's, because a difference of whole slices does not show in the length of
    /// a message.
    fn pair_call(&self, span: Span) -> Call {
        let blocks = match span.buffer {
            Buffer::Output => &self.buffers.output_cut,
            Buffer::Input | Buffer::Scratch => &self.buffers.input_cut,
        };
        let count = blocks.block_elements(span.first);
        Call {
            count: count.min(LISTED_MAX),
            lists: list_digest([count]),
            ..self.call
        }
    }

    pub(in crate::engine) fn region(&self, span: Span, slice: u32) -> Region {
        if span.len == 0 {
            return Region::EMPTY;
        }
        let buffers = &self.buffers;
        match span.buffer {
            Buffer::Input => buffers
                .input
                .part(buffers.input_cut.range(span.first, span.len, slice)),
            Buffer::Output => buffers
                .output
                .part(buffers.output_cut.range(span.first, span.len, slice)),
            Buffer::Scratch => {
                let cut = &buffers.input_cut;
                let bytes = cut.range(span.first, span.len, slice).len();
                let base = (slice % self.plan.slices_in_flight) as usize * cut.slice_bytes()
                    + cut.slot_offset(span.first, slice);
                buffers.scratch.part(base..base + bytes)
            }
        }
    }

    /// Where chunk `first` of `buffer` stands in a published slot.
    pub(in crate::engine) fn slot_offset(&self, buffer: Buffer, first: u32, slice: u32) -> usize {
        match buffer {
            Buffer::Input | Buffer::Scratch => self.buffers.input_cut.slot_offset(first, slice),
            Buffer::Output => {
                let offset = self.buffers.output_cut.slot_offset(first, slice);
                let is_behind = self.plan.schedule.apart;
                offset
                    + if is_behind {
                        self.buffers.input_cut.slice_bytes()
                    } else {
                        0
                    }
            }
        }
    }

    /// The parts of `span` that stand in one piece in memory and in a slot: a vector's chunks together, blocks apart.
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

    /// How results that are copied as they are are stored: of a large call past the caches, which
    /// would fetch each line before it is overwritten and lose others for it.
    fn store(&self) -> Store {
        match self.streams {
            true => Store::Streamed,
            false => Store::Cached,
        }
    }

    /// Where block `first` of a rank's input stands in what it attaches to its slot.
    fn inline_range(&self, first: u32, bytes: usize) -> Range<usize> {
        let start = self.buffers.input_cut.range(first, 1, 0).start;
        start..start + bytes
    }

    pub(in crate::engine) fn kernel(&self) -> Kernel {
        self.kernel.expect(
            "a schedule that reduces belongs to a collective that does, whose kernel was made",
        )
    }

    fn issue_shared(
        &mut self,
        action: Action,
        channel: usize,
        slice: u32,
        context: &mut Context<'_>,
    ) -> Result<Issue> {
        let generation = self.first_generation + slice as u64;
        let is_combined = self.plan.is_combined;
        match action {
            Action::Publish { span, phase } => {
                let windows = windows(&mut context.windows)?;
                if Inline::carries(&self.call) {
                    Inline::send(windows, generation, self.buffers.input);
                    windows.publish(generation, phase, &self.call, Wake::Peers);
                    return Ok(Issue::Done);
                }
                for part in self.contiguous_in_slot(span) {
                    let offset = self.slot_offset(part.buffer, part.first, slice);
                    let from = self.region(part, slice);
                    let range = offset..offset + from.bytes();
                    let target = self
                        .slot_use
                        .place(windows, context.rank, generation, range);
                    context.parallel.copy(target, from, Store::Cached)?;
                }
                let wake = match is_combined {
                    true => Wake::None,
                    false => Wake::Peers,
                };
                windows.publish(generation, phase, &self.call, wake);
            }
            Action::Await {
                peers: Peers::One(peer),
                phase,
            } => {
                let peer = peer as usize;
                if !windows(&mut context.windows)?
                    .has_reached(peer, generation, phase, &self.call)?
                {
                    return Ok(Issue::Blocked);
                }
                context.lateness.heard(peer);
            }
            Action::Await {
                peers: Peers::Others,
                phase,
            } => {
                let windows = windows(&mut context.windows)?;
                let awaited = &mut self.channels[channel].awaited;
                while (*awaited as usize) < context.world_size {
                    let peer = *awaited as usize;
                    if peer != context.rank {
                        if !windows.has_reached(peer, generation, phase, &self.call)? {
                            return Ok(Issue::Blocked);
                        }
                        context.lateness.heard(peer);
                    }
                    *awaited += 1;
                }
                *awaited = 0;
            }
            Action::CopyFrom { peer, first, into } => {
                let target = self.region(into, slice);
                let (peer, bytes) = (peer as usize, target.bytes());
                let windows = windows(&mut context.windows)?;
                if Inline::carries(&self.call) {
                    let range = self.inline_range(first, bytes);
                    target.copy_from(context.inline.take(windows, peer, generation, range));
                    return Ok(Issue::Done);
                }
                let offset = self.slot_offset(into.buffer, first, slice);
                let from = self
                    .slot_use
                    .place(windows, peer, generation, offset..offset + bytes);
                context.parallel.copy(target, from, self.store())?;
                self.slot_use.done_reading(from);
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
                    self.serve(push, channel, slice, context)
                } else {
                    self.push(push, channel, slice, context)
                };
            }
            Action::AwaitServed { span } => {
                if !self.is_served(span, slice, context)? {
                    return Ok(Issue::Blocked);
                }
            }
            Action::GiveBack { span, phase } => {
                let source = self.region(span, slice);
                let offset = self.slot_offset(span.buffer, span.first, slice);
                let windows = windows(&mut context.windows)?;
                for peer in (0..context.world_size).filter(|&peer| peer != context.rank) {
                    let place = windows.slot(peer, generation, offset..offset + source.bytes());
                    context.parallel.copy(place, source, Store::Cached)?;
                }
                windows.publish(generation, phase, &self.call, Wake::Peers);
            }
            Action::TakeBack { into, .. } => {
                let target = self.region(into, slice);
                let offset = self.slot_offset(into.buffer, into.first, slice);
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

    /// Combines the blocks that nobody else takes.
    fn combine(
        &mut self,
        first: u32,
        len: u32,
        slice: u32,
        context: &mut Context<'_>,
    ) -> Result<()> {
        let generation = self.first_generation + slice as u64;
        let span = Span {
            buffer: Buffer::Input,
            first,
            len,
        };
        let (offset, bytes) = (
            self.slot_offset(Buffer::Input, first, slice),
            self.region(span, slice).bytes(),
        );
        let blocks = blocks(bytes);
        let windows = windows(&mut context.windows)?;
        while let Some(block) = windows.claim(generation, blocks) {
            let begin = block as usize * BLOCK_BYTES;
            let end = bytes.min(begin + BLOCK_BYTES);
            let part = |rank: usize| windows.slot(rank, generation, offset + begin..offset + end);
            context.operands.clear();
            context.operands.extend((0..context.world_size).map(part));
            self.kernel().fold(part(0), context.operands);
            windows.complete(generation, blocks);
        }
        Ok(())
    }

    /// Fetches what was combined, once all of it is.
    fn collect(&mut self, into: Span, slice: u32, context: &mut Context<'_>) -> Result<Issue> {
        let generation = self.first_generation + slice as u64;
        let target = self.region(into, slice);
        let offset = self.slot_offset(Buffer::Input, into.first, slice);
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
        context: &mut Context<'_>,
    ) -> Result<()> {
        let generation = self.first_generation + slice as u64;
        let mine = self.region(own, slice);
        let offset = self.slot_offset(own.buffer, own.first, slice);
        let windows = windows(&mut context.windows)?;
        context.operands.clear();
        for rank in among.ranks().map(|rank| rank as usize) {
            context.operands.push(if rank == context.rank {
                mine
            } else if Inline::carries(&self.call) {
                let range = self.inline_range(own.first, mine.bytes());
                context.inline.take(windows, rank, generation, range)
            } else {
                self.slot_use
                    .place(windows, rank, generation, offset..offset + mine.bytes())
            });
        }
        let into = self.region(into, slice);
        context.parallel.fold(self.kernel(), into, context.operands);
        for (rank, read) in among.ranks().zip(&*context.operands) {
            if rank as usize != context.rank {
                self.slot_use.done_reading(*read);
            }
        }
        Ok(())
    }
}
