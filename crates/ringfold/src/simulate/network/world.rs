//! State of the simulated machines, and virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::event::ScheduledEvent;
use super::job::{JobKind, MachineState, ProcessorJob, Then};
use super::lanes::Lanes;
use super::message::{IncomingStream, Message, Numbered, Receive, StreamKey};
use super::rank::RankState;
use super::record::{LinkUse, ORIGIN, PathKind, PathPart, Record};
use super::share::SharedLinks;
use super::slow_links::SlowLinks;
use crate::error::{Error, Result};
use crate::memory::{Owned, Region};
use crate::simulate::scenario::{Payload, Scenario};
use crate::transport::{EngineWork, Head, Post, Posted, Sink, StreamId, Ticket, WorkKind};

/// All simulated machines.
pub(in crate::simulate) struct World {
    pub scenario: Scenario,
    pub now: u64,
    events: BinaryHeap<Reverse<(u64, u64, ScheduledEvent)>>,
    next_event: u64,
    pub events_passed: u64,
    pub ranks: Vec<RankState>,
    pub machines: Vec<MachineState>,
    pub messages: Numbered<Message>,
    pub jobs: Numbered<ProcessorJob>,
    pub shares: SharedLinks,
    pub slow_links: SlowLinks,
    /// The ranks' devices; empty where there are none.
    pub lanes: Lanes,
    /// Time that a waiting rank keeps its core, polling.
    pub spin_ps: u64,
    /// Additional time per byte that a processor reads, because it may come from memory.
    pub miss_ps_per_byte: u64,
    /// Whether the ranks of a machine outnumber its cores.
    pub is_crowded: bool,
    touched: Vec<usize>,
    has_anybody_left: bool,
    pub record: Record,
}

/// Cause in the error for a peer that was dropped.
pub(super) const LEFT: &str = "left";

#[cold]
pub(super) fn left(rank: usize) -> Error {
    Error::peer_failed(rank, LEFT)
}

impl World {
    pub fn new(scenario: &Scenario) -> World {
        let network = &scenario.network;
        let rank = |(rank, begins_ps)| RankState {
            begins_ps,
            ..RankState::new(rank, scenario)
        };
        let machine = |_| MachineState::new(network.cores_per_host);
        let machines = 0..=network.machine(scenario.ranks.saturating_sub(1));
        let mut world = World {
            now: 0,
            events: BinaryHeap::new(),
            next_event: 0,
            events_passed: 0,
            ranks: scenario
                .begins_ps()
                .into_iter()
                .enumerate()
                .map(rank)
                .collect(),
            machines: machines.map(machine).collect(),
            messages: Numbered::new(),
            jobs: Numbered::new(),
            shares: SharedLinks::new(&network.switches, scenario.ranks),
            slow_links: SlowLinks::new(scenario),
            lanes: Lanes::new(scenario),
            spin_ps: network.polling_ps(&scenario.compute, scenario.ranks),
            miss_ps_per_byte: network.miss_ps(
                &scenario.compute,
                scenario.ranks,
                scenario.host_bytes(),
            ),
            is_crowded: network.is_crowded(scenario.ranks),
            touched: Vec::new(),
            has_anybody_left: false,
            record: Record::new(scenario.traces),
            scenario: Scenario {
                network: network.clone().among(scenario.ranks),
                ..scenario.clone()
            },
        };
        world.begin_streams();
        world
    }

    /// Returns the time of the next event.
    pub fn next_event_ps(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((time, ..))| *time)
    }

    /// Processes all events until `to`, and advances time to `to`.
    pub fn advance(&mut self, to: u64) {
        while let Some(Reverse((time, ..))) = self.events.peek()
            && *time <= to
        {
            let Some(Reverse((time, _, event))) = self.events.pop() else {
                break;
            };
            self.now = self.now.max(time);
            self.events_passed += 1;
            self.happen(event);
        }
        self.now = self.now.max(to);
    }

    fn happen(&mut self, event: ScheduledEvent) {
        match event {
            ScheduledEvent::Sent(message) => self.sent(message),
            ScheduledEvent::FirstByte(message) => self.first_byte(message),
            ScheduledEvent::Arrived(message) => self.arrived(message),
            ScheduledEvent::Granted(rank) => self.write_granted(rank),
            ScheduledEvent::JobDone(job) => self.job_done(job),
            ScheduledEvent::Sleep { rank, turn } => self.sleep(rank, turn),
            ScheduledEvent::Poll { rank, turn } => self.poll_for_work(rank, turn),
            ScheduledEvent::Drained(deal) => self.drained(deal),
            ScheduledEvent::Stream(rank, direction) => self.go_on_in_stream(rank, direction),
            ScheduledEvent::CopyReady(rank, direction) => self.put_on_link(rank, direction),
            ScheduledEvent::CopyPassed(device, change) => self.copy_passed(device, change),
            ScheduledEvent::Seen {
                rank,
                direction,
                part,
            } => self.see_copy(rank, direction, part),
            ScheduledEvent::Released(rank, part) => self.see_release(rank, part),
            ScheduledEvent::GivenBack(rank, part) => self.see_slot(rank, part),
            ScheduledEvent::KernelPassed(rank, side, begin_ps) => {
                self.kernel_passed(rank, side, begin_ps)
            }
            ScheduledEvent::Flag(part) => self.see_flag(part),
            ScheduledEvent::PortRested { rank, is_local } => self.port_rested(rank, is_local),
        }
    }

    /// Schedules `event` for `time`; events of one time happen in the order of scheduling.
    pub fn schedule(&mut self, time: u64, event: ScheduledEvent) {
        self.events.push(Reverse((time, self.next_event, event)));
        self.next_event += 1;
    }

    /// Appends the ranks that events have affected since the last call.
    pub fn take_touched(&mut self, into: &mut Vec<usize>) {
        for rank in self.touched.drain(..) {
            self.ranks[rank].is_touched = false;
            into.push(rank);
        }
    }

    pub fn touch(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        if !std::mem::replace(&mut state.is_touched, true) {
            self.touched.push(rank as usize);
        }
    }

    /// Reports a ticket as complete; `part` is the end of the chain that led to it.
    pub fn complete(&mut self, rank: u32, ticket: Ticket, part: u32) {
        let state = &mut self.ranks[rank as usize];
        if state.is_stopped {
            return;
        }
        state.done.push(ticket);
        state.cause = part;
        self.touch(rank);
    }

    /// Returns the chain that led to a rank's current action.
    pub fn cause(&mut self, rank: u32) -> u32 {
        let before = self.ranks[rank as usize].cause;
        let kind = match before {
            ORIGIN => PathKind::Start,
            _ => PathKind::Wait,
        };
        let part = self.record.extend(before, kind, (rank, None), self.now);
        self.ranks[rank as usize].cause = part;
        part
    }

    pub fn incoming(&mut self, to: u32, source: StreamKey) -> &mut IncomingStream {
        self.ranks[to as usize].incoming.entry(source).or_default()
    }

    pub fn post_send(
        &mut self,
        from: usize,
        Post(stream, ticket, header): Post,
        payload: Region,
    ) -> Result<Posted> {
        if self.ranks[stream.peer].has_left {
            return Err(left(stream.peer));
        }
        let (from, to, channel) = (from as u32, stream.peer as u32, stream.channel as u32);
        let network = &self.scenario.network;
        let (_, is_local) = network.links_between(from as usize, stream.peer);
        let segment_bytes = network.segment_bytes.unwrap_or(u64::MAX);
        let part = self.cause(from);
        let account = &mut self.ranks[from as usize].account;
        account.sent_messages += 1;
        account.sent_bytes += u64::from(header.bytes);
        let incoming = self.incoming(to, (from, channel));
        incoming.messages += 1;
        incoming.bytes += u64::from(header.bytes);
        let total = u64::from(header.bytes);
        for at in 0..total.div_ceil(segment_bytes).max(1) {
            let offset = at * segment_bytes;
            let bytes = segment_bytes.min(total - offset);
            let range = offset as usize..(offset + bytes) as usize;
            let is_real = self.scenario.payload == Payload::Real;
            let message = self.messages.add(Message {
                from,
                to,
                channel,
                ticket,
                header,
                offset,
                bytes,
                payload: is_real.then(|| Owned::copy_of(payload.part(range))),
                is_local,
                begin_ps: 0,
                sent_ps: 0,
                part,
            });
            let incoming = self.incoming(to, (from, channel));
            incoming.under_way += 1;
            incoming.waiting.push_back(message);
        }
        self.fill(to, (from, channel));
        Ok(Posted::Pending)
    }

    pub fn post_recv(
        &mut self,
        to: usize,
        Post(stream, ticket, header): Post,
        sink: Sink,
    ) -> Result<Posted> {
        let to = to as u32;
        let source = (stream.peer as u32, stream.channel as u32);
        let (part, posted_ps) = (self.cause(to), self.now);
        self.incoming(to, source).receives.push_back(Receive {
            ticket,
            header,
            sink,
            posted_ps,
            part,
        });
        self.expect(to, source);
        self.pair(to, source);
        Ok(Posted::Pending)
    }

    pub fn post_work(&mut self, rank: usize, ticket: Ticket, work: &EngineWork) -> Posted {
        let rank = rank as u32;
        let bytes = work.bytes as u64;
        let part = self.cause(rank);
        let (kind, duration_ps) = match work.kind {
            WorkKind::Copy => (
                JobKind::Copy,
                self.scenario.compute.copy_ps_per_byte * bytes,
            ),
            WorkKind::Reduce => (
                JobKind::Reduce,
                self.scenario.compute.reduction_ps(work.dtype, bytes),
            ),
        };
        let duration_ps = duration_ps + self.miss_ps_per_byte * bytes;
        let mut job = ProcessorJob::new(rank, kind, duration_ps, part, Then::Report(ticket));
        job.bytes = bytes;
        if kind == JobKind::Reduce {
            job.slow_ps = self.count_reduction(rank);
        }
        if self.is_free(&job) {
            if kind == JobKind::Reduce {
                self.note_reduction(rank, 0);
            }
            return Posted::Done;
        }
        self.submit(job);
        Posted::Pending
    }

    /// Whether a job costs nothing, so that it need not wait for its turn.
    pub fn is_free(&self, job: &ProcessorJob) -> bool {
        let touches_memory = self.scenario.network.memory_ps_per_byte.is_some() && job.bytes > 0;
        job.duration_ps + job.slow_ps == 0 && !touches_memory
    }

    pub fn listen(&mut self, rank: usize, stream: StreamId, is_wanted: bool) {
        let source = (stream.peer as u32, stream.channel as u32);
        let listened = &mut self.ranks[rank].listened;
        listened.retain(|known| *known != source);
        if is_wanted {
            listened.push(source);
        }
    }

    /// Whether unexpected messages of a stream are reported.
    pub fn is_listened(&self, to: u32, source: StreamKey) -> bool {
        self.ranks[to as usize].listened.contains(&source)
    }

    /// Returns the header of the next message of a stream: once the message has arrived, or as soon
    /// as it waits for its receive, as headers have no cost.
    pub fn head(&self, to: usize, stream: StreamId) -> Head {
        let source = (stream.peer as u32, stream.channel as u32);
        let Some(incoming) = self.ranks[to].incoming.get(&source) else {
            return match self.ranks[stream.peer].has_left {
                true => Head::End(LEFT),
                false => Head::Nothing,
            };
        };
        assert!(incoming.receives.is_empty(), "a receive is posted");
        let next = incoming.arrived.front().or(incoming.offered.front());
        match next {
            Some(message) => Head::Message(self.messages.see(*message).header),
            None if self.is_over(stream.peer, incoming) => Head::End(LEFT),
            None => Head::Nothing,
        }
    }

    /// Whether no further message can arrive on a stream.
    fn is_over(&self, from: usize, incoming: &IncomingStream) -> bool {
        self.ranks[from].has_left && incoming.arrived.is_empty() && incoming.under_way == 0
    }

    /// Moves the completed tickets of `rank` to `done`; returns the rank's error, if any.
    pub fn poll(&mut self, rank: usize, done: &mut Vec<Ticket>) -> Result<()> {
        done.append(&mut self.ranks[rank].done);
        if let Some(error) = self.ranks[rank].error.clone() {
            return Err(error);
        }
        if self.has_anybody_left {
            return self.look_for_leavers(rank);
        }
        Ok(())
    }

    /// Returns an error if a rank waits for a rank that has left.
    fn look_for_leavers(&self, rank: usize) -> Result<()> {
        for ((from, _), incoming) in &self.ranks[rank].incoming {
            let from = *from as usize;
            if !incoming.receives.is_empty() && self.is_over(from, incoming) {
                return Err(left(from));
            }
        }
        for (peer, state) in self
            .ranks
            .iter()
            .enumerate()
            .filter(|(_, peer)| peer.has_left)
        {
            let mut offers = state.incoming.iter();
            if offers
                .any(|((from, _), incoming)| *from as usize == rank && !incoming.offered.is_empty())
            {
                return Err(left(peer));
            }
        }
        Ok(())
    }

    /// Marks a rank as gone: messages that it has launched still arrive; those that wait for a
    /// receive, a grant or room do not, and the rank consumes nothing.
    pub fn leave(&mut self, rank: usize) {
        self.stop(rank);
        self.ranks[rank].has_left = true;
        self.has_anybody_left = true;
        for to in 0..self.ranks.len() {
            for channel in self.sources_from(to, rank) {
                let incoming = self.incoming(to as u32, (rank as u32, channel));
                let kept = incoming.offered.drain(..).chain(incoming.waiting.drain(..));
                let kept: Vec<u32> = kept.collect();
                incoming.under_way -= kept.len();
                for message in kept {
                    self.messages.take(message);
                }
            }
            self.touch(to as u32);
        }
    }

    /// Stops a rank: from now on, its memory is not touched.
    pub fn stop(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        state.is_stopped = true;
        state.done.clear();
        for incoming in state.incoming.values_mut() {
            incoming.receives.clear();
            incoming.accepted = 0;
        }
    }

    /// Returns the ranks that have unconsumed messages with data, and the number of such messages.
    pub fn left_over(&self) -> Vec<(usize, usize)> {
        let has_data = |message: &&u32| self.messages.see(**message).bytes > 0;
        let of_rank = |(rank, state): (usize, &RankState)| {
            let incoming = state.incoming.values();
            let waiting =
                incoming.flat_map(|incoming| incoming.arrived.iter().chain(&incoming.offered));
            (rank, waiting.filter(has_data).count())
        };
        let all = self.ranks.iter().enumerate().map(of_rank);
        all.filter(|(_, messages)| *messages > 0).collect()
    }

    fn sources_from(&self, to: usize, from: usize) -> Vec<u32> {
        let range = (from as u32, 0)..=(from as u32, u32::MAX);
        let incoming = self.ranks[to].incoming.range(range);
        incoming.map(|((_, channel), _)| *channel).collect()
    }

    /// Returns the traffic from each rank to each other, if there was any.
    pub fn traffic(&self) -> Vec<LinkUse> {
        let mut all: BTreeMap<(usize, usize), LinkUse> = BTreeMap::new();
        for (to, rank) in self.ranks.iter().enumerate() {
            for ((from, _), incoming) in &rank.incoming {
                let from = *from as usize;
                let link = all.entry((from, to)).or_default();
                (link.from, link.to) = (from, to);
                link.messages += incoming.messages;
                link.bytes += incoming.bytes;
                link.busy_ps += incoming.busy_ps;
            }
        }
        all.into_values().filter(|link| link.messages > 0).collect()
    }

    /// Returns the chain of parts from time 0 to the last report to `rank`.
    pub fn path(&self, rank: usize) -> Vec<PathPart> {
        self.record.path(self.ranks[rank].cause)
    }
}
