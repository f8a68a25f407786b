//! Executes one step: messages and local work here, other steps in their own modules.

use super::channel::{Channel, Issue};
use super::progress::ticket;
use super::staged::wake;
use crate::call::{Call, LISTED_MAX, PAIRWISE, list_digest};
use crate::engine::context::Context;
use crate::error::{Error, Result};
use crate::memory::{BufferHandle, Region};
use crate::reduce::Store;
use crate::schedule::{Access, Action, Buffer, Span};
use crate::transport::{
    EngineWork, Header, P2P_CHANNEL, Post, Posted, Sink, StreamId, Ticket, WorkKind,
};

impl Channel<'_> {
    /// Executes or starts step `index` of the current slice.
    pub(super) fn issue(&mut self, index: u32) -> Result<Issue> {
        match self.plan.channels[self.number].steps[index as usize].action {
            Action::Send { peer, span } => self.send(peer, index, span),
            Action::Recv { peer, span } => {
                self.receive(peer, index, span, Sink::Store(self.region(span)))
            }
            Action::RecvReduce { peer, with, into } => {
                let sink = Sink::Reduce {
                    with: self.region(with),
                    into: self.region(into),
                    kernel: self.operation.kernel(),
                };
                self.receive(peer, index, into, sink)
            }
            Action::RecvLeaf { peer, like, into } => {
                let place = self.leaf(into.first, self.region(like).bytes());
                self.receive(peer, index, like, Sink::Store(place))
            }
            Action::Fold {
                leaves,
                own,
                at,
                into,
            } => self.fold(index, (leaves, own, at), into),
            Action::Copy { from, into } => self.copy(index, from, into),
            Action::Reduce { with, from, into } => {
                let (operands, into) = ([self.region(with), self.region(from)], self.region(into));
                let kernel = self.operation.kernel();
                self.context.parallel.fold(kernel, into, &operands);
                self.report(WorkKind::Reduce, into.bytes(), index)
            }
            Action::Publish {
                span,
                phase,
                assignment,
            } => self.publish(span, phase, wake(assignment)),
            Action::Await { peers, phase } => self.await_phase(peers, phase),
            Action::CopyFrom { peer, first, into } => self.copy_from(peer as usize, first, into),
            Action::ReduceFrom { own, into } => self.reduce_from(own, into),
            Action::GiveBack { span, phase } => self.give_back(span, phase),
            Action::TakeBack { into, .. } => self.take_back(into),
            Action::Expose { phase, assignment } => self.expose(phase, wake(assignment)),
            Action::Combine(combine) if combine.access == Access::Registered => {
                self.combine_registered(&combine)
            }
            Action::Combine(combine) => self.combine_staged(&combine),
            Action::Collect { access, into } => self.collect(access, into),
        }
    }

    fn ticket(&self, index: u32) -> Ticket {
        let flight = self.at.slice % self.plan.slices_in_flight;
        ticket(self.operation.id, self.number, flight, index)
    }

    fn send(&mut self, peer: u32, index: u32, span: Span) -> Result<Issue> {
        let payload = self.region(span);
        let Some(post) = self.message(peer, index, span, payload)? else {
            return Ok(Issue::Done);
        };
        let place = self.place(span.buffer, payload);
        let Context {
            transport,
            registry,
            ..
        } = &mut *self.context;
        let posted = match place {
            Some(place) if !payload.is_empty() => {
                registry.sync_to_file(payload, place);
                transport.post_lent(post, payload, place)
            }
            _ if self.operation.reads => transport.post_readable(post, payload),
            _ => transport.post_send(post, payload),
        };
        Ok(posted?.into())
    }

    /// Returns the handle of `payload`, which lies in `buffer`, if the message can be lent.
    fn place(&self, buffer: Buffer, payload: Region) -> Option<BufferHandle> {
        let Context {
            transport,
            registry,
            ..
        } = &*self.context;
        match self.operation.own_parts() {
            None => self.operation.buffers.place(buffer, payload),
            Some(_) => {
                let is_lent = |least| payload.bytes() >= least;
                transport.lent_bytes_min().filter(|least| is_lent(*least))?;
                registry.find(payload)
            }
        }
    }

    /// Receives the message of `span`, whose memory `sink` fills.
    fn receive(&mut self, peer: u32, index: u32, span: Span, sink: Sink) -> Result<Issue> {
        let region = match sink {
            Sink::Store(into) | Sink::Reduce { into, .. } => into,
        };
        let Some(post) = self.message(peer, index, span, region)? else {
            return Ok(Issue::Done);
        };
        let posted = self.context.transport.post_recv(post, sink)?;
        if posted == Posted::Done {
            self.context.lateness.peer_arrived(peer as usize);
        }
        Ok(posted.into())
    }

    fn copy(&mut self, index: u32, from: Span, into: Span) -> Result<Issue> {
        let conversion = self.operation.conversion(from, into);
        let (into, from) = (self.region(into), self.region(from));
        match conversion {
            Some(kernel) => self.context.parallel.fold(kernel, into, &[from]),
            None if into.is_same(from) => return Ok(Issue::Done),
            None => self.context.parallel.copy(into, from, self.store())?,
        }
        self.report(WorkKind::Copy, into.bytes(), index)
    }

    /// Combines `own`, number `at` of its copies, with all others.
    fn fold(
        &mut self,
        index: u32,
        (leaves, own, at): (Span, Span, u32),
        into: Span,
    ) -> Result<Issue> {
        let kernel = self.operation.kernel_between(own, into);
        let (mine, into) = (self.region(own), self.region(into));
        self.context.operands.clear();
        for first in (leaves.first..leaves.first + leaves.len).step_by(own.len as usize) {
            if first == leaves.first + at * own.len {
                self.context.operands.push(mine);
            }
            let copy = self.leaf(first, mine.bytes());
            self.context.operands.push(copy);
        }
        if at == leaves.len / own.len {
            self.context.operands.push(mine);
        }
        let pairs = self.context.operands.len() - 1;
        let operands = &self.context.operands;
        self.context.parallel.fold(kernel, into, operands);
        self.report(WorkKind::Reduce, pairs * into.bytes(), index)
    }

    /// Returns the memory of a copy of a chunk of `bytes` bytes, from place `first` on.
    fn leaf(&self, first: u32, bytes: usize) -> Region {
        let flight = self.at.slice % self.operation.slices_in_flight;
        self.operation.buffers.leaf(first, flight, bytes)
    }

    /// Reports work that may take virtual time. `bytes` counts the result once for each pair of
    /// operands.
    fn report(&mut self, kind: WorkKind, bytes: usize, index: u32) -> Result<Issue> {
        if self.operation.publishes {
            return Ok(Issue::Done);
        }
        let work = EngineWork {
            kind,
            dtype: self.operation.call.dtype,
            bytes,
        };
        let ticket = self.ticket(index);
        Ok(self.context.transport.post_work(ticket, work)?.into())
    }

    /// Returns the message of step `index`, or `None` if the message is omitted: an empty one after
    /// the first slice carries no information beyond the first.
    fn message(&self, peer: u32, index: u32, span: Span, region: Region) -> Result<Option<Post>> {
        let slice = self.at.slice;
        if slice > 0 && region.is_empty() {
            return Ok(None);
        }
        let bytes = u32::try_from(region.bytes()).map_err(|_| {
            Error::Unsupported(
                "a message of 4 GiB or more; choose another algorithm or split the call".into(),
            )
        })?;
        let stream = StreamId {
            peer: peer as usize,
            channel: P2P_CHANNEL + 1 + self.number,
        };
        let call = match self.operation.call.lists {
            PAIRWISE => self.pair_call(span),
            _ => self.operation.call,
        };
        let header = Header {
            call,
            slice,
            index: self.plan.channels[self.number].steps[index as usize].message,
            bytes,
        };
        Ok(Some(Post(stream, self.ticket(index), header)))
    }

    /// Returns the call in a message of `span`, if each pair of ranks has its own count. The count
    /// is the whole block's, because a difference of whole slices does not show in the length of a
    /// message.
    fn pair_call(&self, span: Span) -> Call {
        let blocks = match span.buffer {
            Buffer::Output => &self.operation.buffers.output_cut,
            _ => &self.operation.buffers.input_cut,
        };
        let count = blocks.block_elements(span.first);
        Call {
            count: count.min(LISTED_MAX),
            lists: list_digest([count]),
            ..self.operation.call
        }
    }

    /// Returns how plain copies are stored: with non-temporal stores in a large call, because
    /// caches would fetch each line before it is overwritten and evict others for it.
    pub(super) fn store(&self) -> Store {
        match self.operation.non_temporal_stores {
            true => Store::Streamed,
            false => Store::Cached,
        }
    }
}
