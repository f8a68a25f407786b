//! One call under way: a plan, its buffers, and how far each channel has come.
//!
//! # Order of issue
//!
//! All slices of a call run the same steps. Slice `s` takes the steps of round `r` at tick `r + s * skew`; the steps of a
//! tick are issued slice by slice. So the order on every stream is the same at both ends, whatever completes when, and
//! the receive of one slice, the reduction of another and the send of a third overlap. A step that cannot be issued yet
//! holds back the later ones of its channel: it waits only for what stands before it in this order on some rank, so
//! somebody can always go on.
//!
//! # Invariants
//!
//! * Slice `s` begins after slice `s - slices_in_flight` has retired, so their scratch memory and bookkeeping are shared.
//! * Slices retire in order, once all their steps are issued and complete.

use std::sync::Arc;
use std::time::Duration;

use super::geometry::Geometry;
use super::plan::Plan;
use crate::call::Call;
use crate::error::{Error, Ranks, Result, Site};
use crate::memory::{Block, Region};
use crate::reduce::{self, Factor, Kernel};
use crate::schedule::{Action, Buffer, Cut, Peers, Span};
use crate::transport::{
    Header, P2P_CHANNEL, Posted, Sink, Stream, Ticket, Time, Transport, Windows,
};

/// The memory of one call and how it is cut.
#[derive(Debug)]
pub struct Buffers {
    /// What is read.
    pub input: Region,
    /// What is filled.
    pub output: Region,
    /// The engine's memory, `slices_in_flight` slices of `input_cut.slice_bytes()`.
    pub scratch: Region,
    /// How `input` and `scratch` are cut.
    pub input_cut: Geometry,
    /// How `output` is cut.
    pub output_cut: Geometry,
    /// Keeps `scratch`, and a scaled copy of the input, alive.
    pub owned: Vec<Block>,
}

/// A call under way.
#[derive(Debug)]
pub struct Operation {
    /// What runs.
    pub plan: Arc<Plan>,
    /// What this rank says it is in.
    pub call: Call,
    /// Where the data is.
    pub buffers: Buffers,
    /// The combining loop, where something is combined.
    pub kernel: Option<Kernel>,
    /// What every element of the result is scaled by at the end.
    pub finish: Option<Factor>,
    /// How many slices.
    pub slices: u32,
    /// The first window generation, when memory is published.
    pub first_generation: u64,
    /// How long it may take once it has begun.
    pub timeout: Duration,
    /// When it must be done; unset until the driver first looks at the clock.
    pub deadline: Option<Time>,
    /// Progress of each channel.
    pub channels: Vec<ChannelProgress>,
}

/// How far one channel has come.
#[derive(Debug, Default)]
pub struct ChannelProgress {
    tick: u64,
    slice: u32,
    step: u32,
    /// Where in the present slice's round we are: `step` counts from the round's start.
    started: u32,
    retired: u32,
    /// The first peer that an `Await` has not seen arrive.
    awaited: u32,
    /// One a slice in flight, at `slice % slices_in_flight`.
    flights: Vec<Flight>,
}

/// The asynchronous steps of one slice.
#[derive(Debug, Default)]
struct Flight {
    /// One bit a step: posted, not complete.
    pending: Vec<u64>,
    pending_count: u32,
    issued: bool,
}

/// What an operation needs of its engine.
pub struct Context<'a> {
    /// Where messages go.
    pub transport: &'a mut dyn Transport,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This operation's number, for tickets.
    pub id: usize,
    /// A list to build operands in, kept so that it is not allocated each time.
    pub operands: &'a mut Vec<Region>,
}

/// What became of an attempt to issue a step.
enum Issue {
    Done,
    Pending,
    Blocked,
}

/// A ticket's parts: operation 16 bits, channel 8, slice in flight 8, step 32.
pub fn ticket(operation: usize, channel: usize, flight: u32, step: u32) -> Ticket {
    (operation as u64) << 48 | (channel as u64) << 40 | (flight as u64) << 32 | step as u64
}

/// The operation that a ticket belongs to.
pub fn ticket_operation(ticket: Ticket) -> usize {
    (ticket >> 48) as usize
}

impl ChannelProgress {
    /// A channel of `steps` steps at its beginning.
    pub fn new(steps: usize, slices_in_flight: u32) -> ChannelProgress {
        let flight = || Flight {
            pending: vec![0; steps.div_ceil(64)],
            ..Flight::default()
        };
        ChannelProgress {
            flights: (0..slices_in_flight).map(|_| flight()).collect(),
            ..ChannelProgress::default()
        }
    }

    /// Back to the beginning, keeping the memory.
    pub fn reset(&mut self) {
        let flights = std::mem::take(&mut self.flights);
        *self = ChannelProgress {
            flights,
            ..ChannelProgress::default()
        };
    }
}

impl Flight {
    fn is_pending(&self, step: u32) -> bool {
        self.pending[step as usize / 64] >> (step % 64) & 1 == 1
    }

    fn flip(&mut self, step: u32) {
        self.pending[step as usize / 64] ^= 1 << (step % 64);
    }
}

impl Operation {
    /// Issues what can be issued; whether anything was.
    pub fn advance(&mut self, context: &mut Context<'_>) -> Result<bool> {
        let mut progressed = false;
        for channel in 0..self.channels.len() {
            progressed |= self.advance_channel(channel, context)?;
        }
        Ok(progressed)
    }

    /// Whether everything is done.
    pub fn is_done(&self) -> bool {
        self.channels
            .iter()
            .all(|progress| progress.retired == self.slices)
    }

    /// Whether all steps are issued, so that a later message on the same streams may be posted.
    pub fn is_issued(&self) -> bool {
        self.channels
            .iter()
            .all(|progress| progress.slice >= self.slices && progress.started == self.slices)
    }

    /// The last generation of a call through published memory.
    pub fn last_generation(&self) -> u64 {
        self.first_generation + self.slices as u64 - 1
    }

    /// Notes that the step of `ticket` is complete.
    pub fn complete(&mut self, ticket: Ticket) {
        let (channel, flight, step) = ((ticket >> 40) as u8, (ticket >> 32) as u8, ticket as u32);
        let flight = &mut self.channels[channel as usize].flights[flight as usize];
        assert!(flight.is_pending(step), "a step completed twice");
        flight.flip(step);
        flight.pending_count -= 1;
    }

    fn advance_channel(&mut self, channel: usize, context: &mut Context<'_>) -> Result<bool> {
        let plan = self.plan.clone();
        let steps = &plan.channels[channel].steps;
        let starts = &plan.channels[channel].round_starts;
        let (rounds, skew) = (plan.schedule.rounds.max(1) as u64, plan.skew as u64);
        let last_tick = rounds - 1 + (self.slices as u64 - 1) * skew;
        let mut progressed = self.retire(channel, context)?;
        loop {
            let at = &self.channels[channel];
            if at.tick > last_tick {
                break;
            }
            let (tick, slice) = (at.tick, at.slice);
            if slice as u64 * skew > tick || slice >= self.slices {
                self.next_tick(channel, rounds, skew);
                continue;
            }
            let round = (tick - slice as u64 * skew) as usize;
            if slice == self.channels[channel].started
                && !self.begin_slice(channel, slice, context)?
            {
                break;
            }
            let index = starts.get(round).copied().unwrap_or(0) + self.channels[channel].step;
            if index >= starts.get(round + 1).copied().unwrap_or(0) {
                let at = &mut self.channels[channel];
                at.flights[(slice % plan.slices_in_flight) as usize].issued |=
                    round as u64 + 1 == rounds;
                (at.slice, at.step) = (slice + 1, 0);
                progressed |= self.retire(channel, context)?;
                continue;
            }
            let step = &steps[index as usize];
            let flight = slice % plan.slices_in_flight;
            if step
                .after
                .iter()
                .any(|&earlier| self.channels[channel].flights[flight as usize].is_pending(earlier))
            {
                break;
            }
            match self.issue(channel, slice, index, context)? {
                Issue::Blocked => break,
                Issue::Done => {}
                Issue::Pending => {
                    let flight = &mut self.channels[channel].flights[flight as usize];
                    flight.flip(index);
                    flight.pending_count += 1;
                }
            }
            self.channels[channel].step += 1;
            progressed = true;
        }
        Ok(progressed)
    }

    /// Goes to the first slice that has a round at the next tick.
    fn next_tick(&mut self, channel: usize, rounds: u64, skew: u64) {
        let at = &mut self.channels[channel];
        at.tick += 1;
        at.slice = (at.tick + 1).saturating_sub(rounds).div_ceil(skew) as u32;
        at.step = 0;
        if at.tick > rounds - 1 + (self.slices as u64 - 1) * skew {
            at.slice = self.slices;
        }
    }

    /// Makes room for `slice`; false when there is none yet.
    fn begin_slice(
        &mut self,
        channel: usize,
        slice: u32,
        context: &mut Context<'_>,
    ) -> Result<bool> {
        let limit = self.plan.slices_in_flight;
        if slice >= limit && self.channels[channel].retired <= slice - limit {
            return Ok(false);
        }
        let generation = self.first_generation + slice as u64;
        if self.publishes() && !windows(context.transport)?.is_free(generation) {
            return Ok(false);
        }
        if self.publishes() && !self.plan.is_heard {
            windows(context.transport)?.enter(generation, &self.call);
        }
        let at = &mut self.channels[channel];
        at.started += 1;
        at.flights[(slice % limit) as usize].issued = false;
        Ok(true)
    }

    /// Retires finished slices, in order.
    fn retire(&mut self, channel: usize, context: &mut Context<'_>) -> Result<bool> {
        let mut progressed = false;
        loop {
            let at = &self.channels[channel];
            let flight = &at.flights[(at.retired % self.plan.slices_in_flight) as usize];
            if at.retired == at.started || !flight.issued || flight.pending_count > 0 {
                return Ok(progressed);
            }
            let slice = at.retired;
            self.finish_slice(channel, slice)?;
            if self.publishes() {
                windows(context.transport)?.finish(self.first_generation + slice as u64);
            }
            self.channels[channel].retired += 1;
            progressed = true;
        }
    }

    /// Scales what this channel made of `slice`.
    fn finish_slice(&mut self, channel: usize, slice: u32) -> Result<()> {
        let Some(factor) = self.finish else {
            return Ok(());
        };
        // Channel `j` has the `j`-th part of all chunks, see `Schedule::striped`.
        let chunks = self.plan.schedule.output.chunks() / self.channels.len() as u32;
        let first = channel as u32 * chunks;
        let range = self.buffers.output_cut.range(first, chunks, slice);
        let region = self.buffers.output.part(range);
        reduce::scale(self.call.dtype, region, region, factor)?;
        Ok(())
    }

    /// Whether the call goes through published memory.
    pub fn publishes(&self) -> bool {
        self.plan.schedule.spec.medium == crate::schedule::Medium::Shared
    }

    fn region(&self, span: Span, slice: u32) -> Region {
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
    fn slot_offset(&self, buffer: Buffer, first: u32, slice: u32) -> usize {
        match buffer {
            Buffer::Input | Buffer::Scratch => self.buffers.input_cut.slot_offset(first, slice),
            Buffer::Output => self.buffers.output_cut.slot_offset(first, slice),
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

    fn kernel(&self) -> Kernel {
        self.kernel.expect(
            "a schedule that reduces belongs to a collective that does, whose kernel was made",
        )
    }

    fn issue(
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
                    self.message(peer, channel, slice, step.message, payload)?
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
                return self.receive(peer, channel, slice, index, sink, context);
            }
            Action::RecvReduce { peer, with, into } => {
                let (with, into) = (self.region(with, slice), self.region(into, slice));
                let sink = Sink::Reduce {
                    with,
                    into,
                    kernel: self.kernel(),
                };
                return self.receive(peer, channel, slice, index, sink, context);
            }
            Action::Copy { from, into } => {
                self.region(into, slice).copy_from(self.region(from, slice));
                Posted::Done
            }
            Action::Reduce { with, from, into } => {
                let operands = [self.region(with, slice), self.region(from, slice)];
                self.kernel().fold(self.region(into, slice), &operands);
                Posted::Done
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
        sink: Sink,
        context: &mut Context<'_>,
    ) -> Result<Issue> {
        let step = &self.plan.channels[channel].steps[index as usize];
        let region = match sink {
            Sink::Store(into) | Sink::Reduce { into, .. } => into,
        };
        let Some((stream, header)) = self.message(peer, channel, slice, step.message, region)?
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
            Issue::Done
        } else {
            Issue::Pending
        })
    }

    /// The stream and header of a message, or nothing when it is left out: an empty one after the first slice, which
    /// says nothing that the first has not said.
    fn message(
        &self,
        peer: u32,
        channel: usize,
        slice: u32,
        index: u32,
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
        let channel = if self.is_point_to_point() {
            P2P_CHANNEL
        } else {
            P2P_CHANNEL + 1 + channel
        };
        let stream = Stream {
            peer: peer as usize,
            channel,
        };
        Ok(Some((
            stream,
            Header {
                call: self.call,
                slice,
                index,
                bytes,
            },
        )))
    }

    /// Whether this is a `send` or `recv`, which has its own stream.
    pub fn is_point_to_point(&self) -> bool {
        matches!(
            self.call.collective,
            crate::Collective::Send | crate::Collective::Recv
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
        match action {
            Action::Publish { span, phase } => {
                let windows = windows(context.transport)?;
                for part in self.contiguous_in_slot(span) {
                    let offset = self.slot_offset(part.buffer, part.first, slice);
                    windows.write(generation, offset, self.region(part, slice));
                }
                windows.publish(generation, phase, &self.call)?;
            }
            Action::Await {
                peers: Peers::One(peer),
                phase,
            } => {
                let peer = peer as usize;
                if !windows(context.transport)?.has_reached(peer, generation, phase, &self.call)? {
                    return Ok(Issue::Blocked);
                }
            }
            Action::Await {
                peers: Peers::Others,
                phase,
            } => {
                let windows = windows(context.transport)?;
                let awaited = &mut self.channels[channel].awaited;
                while (*awaited as usize) < context.world_size {
                    let peer = *awaited as usize;
                    if peer != context.rank
                        && !windows.has_reached(peer, generation, phase, &self.call)?
                    {
                        return Ok(Issue::Blocked);
                    }
                    *awaited += 1;
                }
                *awaited = 0;
            }
            Action::CopyFrom { peer, first, into } => {
                let target = self.region(into, slice);
                let offset = self.slot_offset(into.buffer, first, slice);
                let windows = windows(context.transport)?;
                target.copy_from(windows.view(
                    peer as usize,
                    generation,
                    offset..offset + target.bytes(),
                ));
            }
            Action::ReduceFrom { own, into } => self.reduce_from(own, into, slice, context)?,
            _ => unreachable!("message and local steps are issued by `issue`"),
        }
        Ok(Issue::Done)
    }

    fn reduce_from(
        &mut self,
        own: Span,
        into: Span,
        slice: u32,
        context: &mut Context<'_>,
    ) -> Result<()> {
        let generation = self.first_generation + slice as u64;
        let mine = self.region(own, slice);
        let offset = self.slot_offset(own.buffer, own.first, slice);
        let windows = windows(context.transport)?;
        context.operands.clear();
        for rank in 0..context.world_size {
            context.operands.push(if rank == context.rank {
                mine
            } else {
                windows.view(rank, generation, offset..offset + mine.bytes())
            });
        }
        self.kernel()
            .fold(self.region(into, slice), context.operands);
        Ok(())
    }
}

/// What a call is doing, in words: for whom it waits, and how far it has come.
pub fn phase(waiting_for: &[usize], slice: u32, slices: u32) -> String {
    match waiting_for {
        [] => format!("slice {slice} of {slices}"),
        ranks => format!("waiting for {}, slice {slice} of {slices}", Ranks(ranks)),
    }
}

fn windows(transport: &mut dyn Transport) -> Result<&mut dyn Windows> {
    transport
        .windows()
        .ok_or_else(|| Error::Unsupported("published memory between ranks of several hosts".into()))
}

/// What an operation waits for, for errors: not on the data path.
impl Operation {
    /// The ranks that this operation waits for now.
    pub fn waiting_for(&self, context: &mut Context<'_>) -> Vec<usize> {
        let mut ranks = Vec::new();
        for channel in 0..self.channels.len() {
            self.pending_peers(channel, &mut ranks);
            ranks.extend(self.absent_peers(channel, context));
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Where the operation stands, in words.
    pub fn site(&self, context: &mut Context<'_>) -> Site {
        let ranks = self.waiting_for(context);
        let slice = self.channels.iter().map(|at| at.retired).min().unwrap_or(0);
        Site {
            call: self.call,
            phase: phase(&ranks, slice + 1, self.slices),
        }
    }

    fn pending_peers(&self, channel: usize, ranks: &mut Vec<usize>) {
        let steps = &self.plan.channels[channel].steps;
        for flight in &self.channels[channel].flights {
            for (index, step) in steps
                .iter()
                .enumerate()
                .filter(|(index, _)| flight.is_pending(*index as u32))
            {
                let _ = index;
                if let Action::Send { peer, .. }
                | Action::Recv { peer, .. }
                | Action::RecvReduce { peer, .. } = step.action
                {
                    ranks.push(peer as usize);
                }
            }
        }
    }

    /// The peers that the present `Await`, or the beginning of the next slice, waits for.
    fn absent_peers(&self, channel: usize, context: &mut Context<'_>) -> Vec<usize> {
        let at = &self.channels[channel];
        if !self.publishes()
            || at.slice >= self.slices
            || at.tick < at.slice as u64 * self.plan.skew as u64
        {
            return Vec::new();
        }
        let (rank, world_size) = (context.rank, context.world_size);
        let Some(windows) = context.transport.windows() else {
            return Vec::new();
        };
        let generation = self.first_generation + at.slice as u64;
        let round = (at.tick - at.slice as u64 * self.plan.skew as u64) as usize;
        let plan = &self.plan.channels[channel];
        let step = plan
            .round_starts
            .get(round)
            .and_then(|start| plan.steps.get((start + at.step) as usize));
        match step.map(|step| step.action) {
            _ if at.slice == at.started => windows.behind(generation),
            Some(Action::Await { peers, phase }) => {
                let due = |peer: &usize| match peers {
                    Peers::Others => *peer != rank,
                    Peers::One(one) => *peer == one as usize,
                };
                let mut absent = |peer: &usize| {
                    !windows
                        .has_reached(*peer, generation, phase, &self.call)
                        .unwrap_or(false)
                };
                (0..world_size)
                    .filter(due)
                    .filter(|peer| absent(peer))
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}
