//! The path of a simulated message: it is offered, passes the sender's port, the wire and the
//! receiver's port, is matched with its receive, and is consumed.

use super::event::ScheduledEvent;
use super::job::{JobKind, ProcessorJob, Then};
use super::message::{Message, Receive, StreamKey};
use super::record::{PathKind, TimelineLane, TraceEvent};
use super::share::Flow;
use super::world::World;
use crate::simulate::model::{Links, Ports, Sending, Server};
use crate::transport::{HEADER_BYTES, Sink};

impl World {
    /// Returns the costs of the links between the sender and the receiver of a message.
    pub fn links(&self, message: &Message) -> Links {
        let network = &self.scenario.network;
        *network
            .links_between(message.from as usize, message.to as usize)
            .0
    }

    /// Returns the durations for which a message occupies the sender's and the receiver's port.
    fn durations_ps(&self, message: &Message) -> (u64, u64) {
        let base_ps = self.links(message).ps_per_byte * message.bytes;
        self.slow_links.apply(message.from, message.to, base_ps)
    }

    /// Whether a rank requests messages that it reduces one at a time.
    fn asks_one_by_one(&self) -> bool {
        self.scenario.network.sending == Sending::Rendezvous
            && self.scenario.compute.server == Server::Serial
    }

    /// Launches a message, or queues it until its receive is posted (rendezvous) or its grant
    /// arrives (RDMA).
    pub fn offer(&mut self, number: u32) {
        let message = self.messages.see(number);
        let (to, source) = (message.to, (message.from, message.channel));
        let is_eager = self.scenario.network.sending == Sending::Eager;
        if is_eager && !self.has_grants(source.0, to) {
            self.launch(number);
            return;
        }
        if is_eager {
            self.offer_for_grant(number);
        } else {
            self.incoming(to, source).offered.push_back(number);
            self.ask(to, source);
        }
        if self.is_listened(to, source) {
            self.touch(to);
        }
    }

    /// In a rendezvous: launches the offered messages of a stream for which receives are posted.
    pub fn ask(&mut self, to: u32, source: StreamKey) {
        loop {
            let incoming = self.incoming(to, source);
            let receive = incoming.receives.get(incoming.accepted);
            let (Some(&number), Some(receive)) = (incoming.offered.front(), receive) else {
                return;
            };
            let is_combined = matches!(receive.sink, Sink::Reduce { .. });
            if is_combined && self.asks_one_by_one() {
                let state = &mut self.ranks[to as usize];
                if state.has_asked {
                    if !state.unasked.contains(&source) {
                        state.unasked.push_back(source);
                    }
                    return;
                }
                state.has_asked = true;
            }
            let incoming = self.incoming(to, source);
            incoming.offered.pop_front();
            incoming.accepted += 1;
            // If the message waited for its receiver, the message continues the receiver's chain of
            // causes.
            if self.record.end_ps(self.messages.see(number).part) < self.now {
                let part = self.cause(to);
                self.messages.at(number).part = part;
            }
            self.launch(number);
        }
    }

    /// Requests the next message after a reduction, in a rendezvous with a serial server.
    pub fn ask_for_next(&mut self, to: u32) {
        let state = &mut self.ranks[to as usize];
        state.has_asked = false;
        while !self.ranks[to as usize].has_asked
            && let Some(source) = self.ranks[to as usize].unasked.pop_front()
        {
            self.ask(to, source);
        }
    }

    /// Puts a message on the sender's port.
    pub fn launch(&mut self, number: u32) {
        if !self.shares.is_empty() {
            self.queue_at_port(number);
            return;
        }
        let message = self.messages.see(number);
        let (from, to, is_local, bytes) =
            (message.from, message.to, message.is_local, message.bytes);
        let links = self.links(message);
        let (sending_ps, _) = self.durations_ps(message);
        let direction = self.scenario.network.direction(false);
        let until = self.ranks[from as usize].ports[usize::from(is_local)].until_ps[direction];
        let begin_ps = match self.scenario.network.ports {
            Ports::Unlimited => self.now,
            Ports::Full | Ports::Half => self.now.max(until),
        };
        let mut sent_ps = begin_ps + sending_ps;
        // If processors move the bytes, the bytes pass memory in the processors' jobs instead.
        if is_local && links.work_ps_per_byte == 0 {
            let machine = self.scenario.network.machine(from as usize);
            sent_ps = sent_ps.max(self.pass_memory(machine, begin_ps, bytes));
        }
        self.ranks[from as usize].ports[usize::from(is_local)].until_ps[direction] =
            sent_ps + links.gap_ps;
        self.leave_port(number, begin_ps, sent_ps);
        if self.scenario.network.sending == Sending::Eager {
            self.schedule(sent_ps, ScheduledEvent::Sent(number));
        }
        self.schedule(
            self.first_byte_ps(number),
            ScheduledEvent::FirstByte(number),
        );
        let source = (from, self.messages.see(number).channel);
        self.incoming(to, source).busy_ps += sent_ps - begin_ps;
    }

    /// Records the times at which a message began to leave its sender's port and had left it.
    pub fn leave_port(&mut self, number: u32, begin_ps: u64, sent_ps: u64) {
        let message = self.messages.at(number);
        let ends = (message.from, Some(message.to));
        let part = self
            .record
            .extend(message.part, PathKind::Port, ends, begin_ps);
        message.part = self.record.extend(part, PathKind::Transmit, ends, sent_ps);
        (message.begin_ps, message.sent_ps) = (begin_ps, sent_ps);
        self.record.note(TraceEvent {
            rank: message.from as usize,
            lane: TimelineLane::Transmit,
            begin_ps,
            end_ps: sent_ps,
            peer: Some(message.to as usize),
            bytes: message.bytes,
            slice: message.header.slice,
        });
    }

    /// Completes an eager send when its last segment has left the sender's port.
    pub fn sent(&mut self, number: u32) {
        let message = self.messages.see(number);
        let (from, ticket, part) = (message.from, message.ticket, message.part);
        if message.is_last() {
            self.complete(from, ticket, part);
        }
    }

    /// Returns the time at which a launched message can begin to enter the receiver's port, so that
    /// its last byte does not arrive before that byte has been sent.
    pub fn first_byte_ps(&self, number: u32) -> u64 {
        let message = self.messages.see(number);
        let (_, receiving_ps) = self.durations_ps(message);
        let earliest_ps = message.sent_ps.saturating_sub(receiving_ps);
        message.begin_ps.max(earliest_ps) + self.links(message).alpha_ps
    }

    /// Reserves the receiver's port for a message whose first byte has arrived.
    pub fn first_byte(&mut self, number: u32) {
        let first_byte_ps = self.first_byte_ps(number);
        let message = self.messages.see(number);
        let (_, receiving_ps) = self.durations_ps(message);
        let gap_ps = self.links(message).gap_ps;
        let direction = self.scenario.network.direction(true);
        let (begin_ps, arrival_ps) = match self.scenario.network.ports {
            Ports::Unlimited => {
                let source = (message.from, message.channel);
                let behind = &mut self.incoming(message.to, source).until_ps;
                *behind = (first_byte_ps + receiving_ps).max(*behind);
                (first_byte_ps, *behind)
            }
            Ports::Full | Ports::Half => {
                let state = &mut self.ranks[message.to as usize];
                let until_ps = &mut state.ports[usize::from(message.is_local)].until_ps[direction];
                let begin_ps = first_byte_ps.max(*until_ps);
                *until_ps = begin_ps + receiving_ps + gap_ps;
                (begin_ps, begin_ps + receiving_ps)
            }
        };
        let message = self.messages.see(number);
        self.record.note(TraceEvent {
            rank: message.to as usize,
            lane: TimelineLane::Receive,
            begin_ps,
            end_ps: arrival_ps,
            peer: Some(message.from as usize),
            bytes: message.bytes,
            slice: message.header.slice,
        });
        self.schedule(arrival_ps, ScheduledEvent::Arrived(number));
    }

    /// Handles a message that has passed the receiver's port.
    pub fn arrived(&mut self, number: u32) {
        let now = self.now;
        let alpha_ps = self.links(self.messages.see(number)).alpha_ps;
        let message = self.messages.at(number);
        let (from, to, channel) = (message.from, message.to, message.channel);
        let wire_ps = now.min(message.sent_ps + alpha_ps);
        let part = self
            .record
            .extend(message.part, PathKind::Wire, (from, Some(to)), wire_ps);
        message.part = self
            .record
            .extend(part, PathKind::Port, (to, Some(from)), now);
        let (ticket, part) = (message.ticket, message.part);
        if self.scenario.network.sending == Sending::Rendezvous {
            self.complete(from, ticket, part);
        }
        let incoming = self.incoming(to, (from, channel));
        incoming.under_way -= 1;
        incoming.arrived.push_back(number);
        self.pair(to, (from, channel));
        if self.ranks[from as usize].has_left || self.is_listened(to, (from, channel)) {
            self.touch(to);
        }
    }

    /// Matches arrived messages with their receives.
    pub fn pair(&mut self, to: u32, source: StreamKey) {
        if self.ranks[to as usize].is_stopped {
            return;
        }
        loop {
            let incoming = self.incoming(to, source);
            let (Some(&number), Some(receive)) =
                (incoming.arrived.front(), incoming.receives.front())
            else {
                return;
            };
            let receive = receive.clone();
            incoming.arrived.pop_front();
            if self.messages.see(number).is_last() {
                let incoming = self.incoming(to, source);
                incoming.receives.pop_front();
                incoming.accepted = incoming.accepted.saturating_sub(1);
            }
            self.take(number, receive);
        }
    }

    /// Starts the receiver's work on a message; if the headers of message and receive differ, the
    /// rank fails.
    fn take(&mut self, number: u32, receive: Receive) {
        let message = self.messages.see(number);
        let (to, from) = (message.to, message.from);
        if message.header != receive.header {
            let claimed: [u8; HEADER_BYTES] = message.header.encode(0);
            let refusal = receive.header.expect(&claimed, from as usize, to as usize);
            self.messages.take(number);
            self.ranks[to as usize].error = refusal.err();
            self.touch(to);
            return;
        }
        // The path continues from the later one of the message and the receive.
        let part = match self.record.end_ps(message.part) < self.now {
            true => self.cause(to),
            false => message.part,
        };
        let then = Then::Deliver(number, receive);
        self.process(number, (to, from), part, then);
    }

    /// Releases the segments for which a stream has room; an empty stream accepts a segment of any
    /// length.
    pub fn fill(&mut self, to: u32, source: StreamKey) {
        loop {
            let incoming = self.incoming(to, source);
            let held_bytes = incoming.held_bytes;
            let Some(&number) = incoming.waiting.front() else {
                return;
            };
            let message = self.messages.see(number);
            let bytes = held_bytes + message.bytes;
            let window_bytes = self.links(message).window_bytes.unwrap_or(u64::MAX);
            if held_bytes > 0 && bytes > window_bytes {
                return;
            }
            let part = match self.record.end_ps(message.part) < self.now {
                true => self.cause(source.0),
                false => message.part,
            };
            let incoming = self.incoming(to, source);
            incoming.waiting.pop_front();
            incoming.held_bytes = bytes;
            self.process(number, (source.0, to), part, Then::Offer(number));
        }
    }

    /// Frees the room of a segment that the receiver has taken from the stream.
    fn make_room(&mut self, to: u32, source: StreamKey, bytes: u64) {
        self.incoming(to, source).held_bytes -= bytes;
        self.fill(to, source);
    }

    /// Submits the work on a message to the processor of `rank`, the sender or the receiver.
    pub fn process(&mut self, number: u32, (rank, peer): (u32, u32), part: u32, then: Then) {
        let message = self.messages.see(number);
        let links = self.links(message);
        // A message that arrives by RDMA is reduced where it is.
        let is_moved = links.work_ps_per_byte > 0 && !(links.grants.is_some() && then.combines());
        let moved_bytes = if is_moved { message.bytes } else { 0 };
        let mut duration_ps = links.work_ps_per_byte * moved_bytes;
        // Bytes that no processor moves cause no cache misses, nor does a cell that was just
        // written.
        let is_received = message.to == rank;
        if !(message.is_local && is_received) {
            duration_ps += self.miss_ps_per_byte * moved_bytes;
        }
        if message.is_first() {
            duration_ps += links.message_ps(message.header.bytes.into());
        }
        let mut job = ProcessorJob::new(rank, JobKind::Overhead, duration_ps, part, then);
        job.peer = Some(peer);
        job.bytes = moved_bytes;
        // A segment without costs still waits for the first segment, which has the overhead.
        match links.has_free_ends() {
            true => self.follow(job.then, rank, part),
            false => self.submit(job),
        }
    }

    /// Stores a message, or submits its reduction.
    pub fn deliver(&mut self, number: u32, receive: Receive, part: u32) {
        let message = self.messages.see(number);
        let (to, source, bytes) = (message.to, (message.from, message.channel), message.bytes);
        self.make_room(to, source, bytes);
        let message = self.messages.see(number);
        let Sink::Reduce { into, kernel, .. } = &receive.sink else {
            let message = self.messages.take(number);
            self.absorb(&receive.sink, &message);
            if message.is_last() {
                self.complete(to, receive.ticket, part);
            }
            return;
        };
        debug_assert_eq!(into.bytes(), message.header.bytes as usize);
        let is_first = message.is_first();
        let compute = &self.scenario.compute;
        let mut duration_ps = compute.reduction_ps(kernel.dtype(), bytes);
        if !is_first {
            duration_ps -= compute.reduce_ps;
        }
        duration_ps += self.miss_ps_per_byte * bytes;
        let slice = message.header.slice;
        let slow_ps = if is_first {
            self.count_reduction(to)
        } else {
            0
        };
        let mut job = ProcessorJob::new(
            to,
            JobKind::Reduce,
            duration_ps,
            part,
            Then::Fold(number, receive),
        );
        (job.bytes, job.slow_ps, job.slice, job.peer) = (bytes, slow_ps, slice, Some(source.0));
        self.submit(job);
    }

    /// Queues a message at its sender's port, if links are shared.
    pub fn queue_at_port(&mut self, number: u32) {
        let message = self.messages.see(number);
        let (from, is_local) = (message.from, message.is_local);
        let port = &mut self.ranks[from as usize].ports[usize::from(is_local)];
        port.queue.push_back(number);
        if !port.is_taken {
            self.port_rested(from, is_local);
        }
    }

    /// Starts the next message of a port, whose last message and gap are over.
    pub fn port_rested(&mut self, rank: u32, is_local: bool) {
        let port = &mut self.ranks[rank as usize].ports[usize::from(is_local)];
        port.is_taken = false;
        let Some(number) = port.queue.pop_front() else {
            return;
        };
        port.is_taken = true;
        let message = self.messages.see(number);
        let (sending_ps, _) = self.durations_ps(message);
        let bytes = message.bytes as f64;
        let most = match sending_ps {
            0 => f64::MAX,
            ps => bytes / ps as f64,
        };
        let links = self
            .shares
            .links_between(message.from as usize, message.to as usize);
        let begin_ps = self.now;
        self.shares.move_on(begin_ps);
        self.shares.flows.push(Flow {
            message: number,
            links,
            most,
            rate: 0.0,
            bytes_left: bytes,
            begin_ps,
            end_ps: begin_ps,
        });
        self.deal_out();
    }

    fn deal_out(&mut self) {
        self.shares.deal_out();
        let next = self.shares.flows.iter().map(|flow| flow.end_ps).min();
        if let Some(end_ps) = next {
            self.schedule(end_ps, ScheduledEvent::Drained(self.shares.deal));
        }
    }

    /// Handles messages that have left over shared links, unless the bandwidth has been distributed
    /// again since `deal`.
    pub fn drained(&mut self, deal: u64) {
        if deal != self.shares.deal {
            return;
        }
        let now = self.now;
        self.shares.move_on(now);
        let gone = self.shares.flows.extract_if(.., |flow| flow.end_ps <= now);
        let gone: Vec<(u32, u64)> = gone.map(|flow| (flow.message, flow.begin_ps)).collect();
        self.deal_out();
        for (number, begin_ps) in gone {
            self.leave_port(number, begin_ps, now);
            let message = self.messages.see(number);
            let (from, to, is_local) = (message.from, message.to, message.is_local);
            let source = (from, message.channel);
            let links = self.links(message);
            self.incoming(to, source).busy_ps += now - begin_ps;
            if self.scenario.network.sending == Sending::Eager {
                self.sent(number);
            }
            self.schedule(
                now.max(self.first_byte_ps(number)),
                ScheduledEvent::FirstByte(number),
            );
            self.schedule(
                now + links.gap_ps,
                ScheduledEvent::PortRested {
                    rank: from,
                    is_local,
                },
            );
        }
    }
}
