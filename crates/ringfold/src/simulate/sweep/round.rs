//! One round of a sweep: all ranks issue their steps, then their messages come to the ports of their receivers, and then the
//! steps go on that waited for a message of this round.

use std::collections::BTreeMap;

use super::super::{Disturbance, LinkEnds, Network, Scenario};
use super::rank::{Costs, Rank};
use super::{Chunks, Source, SweptRank, unsupported};
use crate::error::Result;
use crate::schedule::{Action, Buffer, Span, Step};

/// Ends a list of messages.
const NONE: u32 = u32::MAX;

/// A message of the round.
struct Message {
    from: u32,
    is_local: bool,
    is_taken: bool,
    /// When its first byte is there.
    first_byte_ps: u64,
    /// How long the receiver's port takes for it.
    receiving_ps: u64,
    /// When it has entered.
    arrival_ps: u64,
    /// The message to the same receiver before it.
    before: u32,
}

/// A receive that was posted in the round.
struct Receive {
    peer: u32,
    posted_ps: u64,
    /// When its message is there for it.
    delivered_ps: u64,
    /// The bytes that are reduced, if they are.
    reduced_bytes: Option<u64>,
}

pub(super) struct Sweep<'a> {
    network: &'a Network,
    costs: Costs<'a>,
    input: Chunks,
    output: Chunks,
    pair_factors: BTreeMap<(u32, u32), f64>,
    ranks: Vec<Rank>,
    messages: Vec<Message>,
    /// The last message to each rank.
    inboxes: Vec<u32>,
    receives: Vec<Receive>,
    /// Where each rank's receives begin, and where the last one's end.
    receive_starts: Vec<u32>,
    /// Steps that wait for a message of the round, by rank.
    waiting: Vec<(u32, Step)>,
    /// One rank's messages and receives, in the order in which they are looked at.
    order: Vec<u32>,
}

impl<'a> Sweep<'a> {
    pub fn new(scenario: &'a Scenario, source: &Source) -> Sweep<'a> {
        let mut begins_ps = vec![0; scenario.ranks];
        let mut slow = Vec::new();
        for disturbance in &scenario.disturbances {
            match disturbance {
                Disturbance::Late { rank, delay_ps } => begins_ps[*rank] += delay_ps,
                Disturbance::Slow(reductions) => slow.push(*reductions),
                _ => {}
            }
        }
        let (input, output) = source.cuts();
        let ranks = begins_ps.into_iter().enumerate();
        let mut sweep = Sweep {
            network: &scenario.network,
            costs: Costs {
                compute: &scenario.compute,
                dtype: scenario.dtype,
                slow,
            },
            input: Chunks::new(input, scenario),
            output: Chunks::new(output, scenario),
            pair_factors: BTreeMap::new(),
            ranks: ranks
                .map(|(rank, begin_ps)| Rank::new(rank, begin_ps, scenario.seed))
                .collect(),
            messages: Vec::new(),
            inboxes: vec![NONE; scenario.ranks],
            receives: Vec::new(),
            receive_starts: Vec::new(),
            waiting: Vec::new(),
            order: Vec::new(),
        };
        for disturbance in &scenario.disturbances {
            if let Disturbance::SlowLink { ends, factor } = disturbance {
                sweep.slow_down(*ends, *factor);
            }
        }
        sweep
    }

    fn slow_down(&mut self, ends: LinkEnds, factor: f64) {
        match ends {
            LinkEnds::Port(rank) => self.ranks[rank].port_factor *= factor,
            LinkEnds::Pair(from, to) => {
                let pair = (from as u32, to as u32);
                *self.pair_factors.entry(pair).or_insert(1.0) *= factor;
            }
        }
    }

    /// Goes through all rounds.
    pub fn run(mut self, mut source: Source) -> Result<Vec<SweptRank>> {
        for round in 0..source.rounds() {
            self.issue_all(&mut source, round)?;
            for rank in 0..self.ranks.len() {
                self.enter(rank)?;
                self.receive(rank)?;
            }
            self.go_on()?;
        }
        Ok(self.ranks.into_iter().map(|rank| rank.swept).collect())
    }

    /// Has all ranks issue what they can without a message of this round.
    fn issue_all(&mut self, source: &mut Source, round: u32) -> Result<()> {
        self.messages.clear();
        self.receives.clear();
        self.receive_starts.clear();
        self.inboxes.fill(NONE);
        for rank in 0..self.ranks.len() {
            self.receive_starts.push(self.receives.len() as u32);
            let steps = source.steps(rank, round);
            for (number, step) in steps.iter().enumerate() {
                if !self.issue(rank, step)? {
                    let rest = steps[number..].iter();
                    self.waiting.extend(rest.map(|step| (rank as u32, *step)));
                    break;
                }
            }
        }
        self.receive_starts.push(self.receives.len() as u32);
        Ok(())
    }

    /// Issues a step, unless it waits for a message of the round.
    fn issue(&mut self, rank: usize, step: &Step) -> Result<bool> {
        let action = &step.action;
        let Some(at_ps) = self.ranks[rank].issue(action) else {
            return Ok(false);
        };
        match *action {
            Action::Send { peer, span } => {
                let sent_ps = self.send(rank, peer, span, at_ps);
                self.ranks[rank].completes(action, sent_ps);
            }
            Action::Recv { peer, .. } => self.expect(rank, action, peer, at_ps, None),
            Action::RecvReduce { peer, into, .. } => {
                let bytes = self.bytes(into);
                self.expect(rank, action, peer, at_ps, Some(bytes));
            }
            Action::Reduce { into, .. } => {
                let bytes = self.bytes(into);
                let done_ps = self.ranks[rank].reduce(rank, at_ps, bytes, &self.costs)?;
                self.ranks[rank].completes(action, done_ps);
            }
            Action::Copy { into, .. } => {
                let compute = self.costs.compute;
                let duration_ps = compute.copy_ps_per_byte * self.bytes(into);
                if duration_ps > 0 {
                    let done_ps = self.ranks[rank].work(at_ps, duration_ps, compute.server)?;
                    self.ranks[rank].completes(action, done_ps);
                }
            }
            _ => return Err(unsupported("published memory")),
        }
        Ok(true)
    }

    fn bytes(&self, span: Span) -> u64 {
        let chunks = match span.buffer {
            Buffer::Input | Buffer::Scratch => &self.input,
            Buffer::Output => &self.output,
        };
        chunks.bytes(span.first, span.len)
    }

    fn expect(
        &mut self,
        rank: usize,
        action: &Action,
        peer: u32,
        posted_ps: u64,
        reduced_bytes: Option<u64>,
    ) {
        self.ranks[rank].expects(action, self.receives.len() as u32);
        self.receives.push(Receive {
            peer,
            posted_ps,
            delivered_ps: 0,
            reduced_bytes,
        });
    }

    /// Puts a message on its sender's port. When the port is free of it.
    fn send(&mut self, from: usize, to: u32, span: Span, at_ps: u64) -> u64 {
        let network = self.network;
        let bytes = self.bytes(span);
        let links = *network.links_between(from, to as usize);
        let is_local = network.local.is_some() && network.host(from) == network.host(to as usize);
        let base_ps = links.ps_per_byte * bytes;
        let times = |factor: f64| match factor {
            1.0 => base_ps,
            _ => (base_ps as f64 * factor).round() as u64,
        };
        let mut sending = self.ranks[from].port_factor;
        if !self.pair_factors.is_empty() {
            let pair = self.pair_factors.get(&(from as u32, to));
            sending = sending.max(pair.copied().unwrap_or(1.0));
        }
        let receiving_ps = times(self.ranks[to as usize].port_factor);
        let rank = &mut self.ranks[from];
        rank.swept.sent_bytes += bytes;
        rank.swept.sent_messages += 1;
        let port = &mut rank.ports[usize::from(is_local)];
        let begin_ps = at_ps.max(port.sends_until_ps);
        let sent_ps = begin_ps + times(sending);
        port.sends_until_ps = sent_ps + links.gap_ps;
        let earliest_ps = begin_ps.max(sent_ps.saturating_sub(receiving_ps));
        let inbox = &mut self.inboxes[to as usize];
        self.messages.push(Message {
            from: from as u32,
            is_local,
            is_taken: false,
            first_byte_ps: earliest_ps + links.alpha_ps,
            receiving_ps,
            arrival_ps: 0,
            before: std::mem::replace(inbox, self.messages.len() as u32),
        });
        sent_ps
    }

    /// Lets a rank's messages through its port, first come first served.
    fn enter(&mut self, rank: usize) -> Result<()> {
        let (order, messages) = (&mut self.order, &mut self.messages);
        order.clear();
        let mut next = self.inboxes[rank];
        while next != NONE {
            order.push(next);
            next = messages[next as usize].before;
        }
        order.reverse();
        if order.len() > 1 {
            order.sort_by_key(|number| messages[*number as usize].first_byte_ps);
        }
        for number in order.iter() {
            let message = &mut messages[*number as usize];
            let links = self.network.links_between(message.from as usize, rank);
            let port = &mut self.ranks[rank].ports[usize::from(message.is_local)];
            let takes_ps = message.receiving_ps + links.gap_ps;
            let is_tie = message.first_byte_ps == port.last_ps
                && message.from != port.last_from
                && takes_ps > 0
                && port.last_ps > 0;
            if message.first_byte_ps < port.last_ps || is_tie {
                return Err(unsupported("messages that contend for a port"));
            }
            (port.last_ps, port.last_from) = (message.first_byte_ps, message.from);
            let begin_ps = message.first_byte_ps.max(port.receives_until_ps);
            message.arrival_ps = begin_ps + message.receiving_ps;
            port.receives_until_ps = begin_ps + takes_ps;
        }
        Ok(())
    }

    /// Gives a rank's messages to the receives that were posted before anything came.
    fn receive(&mut self, rank: usize) -> Result<()> {
        let range = self.receive_starts[rank]..self.receive_starts[rank + 1];
        if range.len() == 1 {
            self.deliver(rank, range.start)?;
            return self.complete(rank, range.start);
        }
        for number in range.clone() {
            self.deliver(rank, number)?;
        }
        let mut order: Vec<u32> = range.collect();
        order.sort_by_key(|number| self.receives[*number as usize].delivered_ps);
        order
            .into_iter()
            .try_for_each(|number| self.complete(rank, number))
    }

    /// Finds the message of a receive.
    fn deliver(&mut self, rank: usize, number: u32) -> Result<()> {
        let receive = &mut self.receives[number as usize];
        let mut next = self.inboxes[rank];
        let mut found = NONE;
        // The list begins with the newest; due is the oldest.
        while next != NONE {
            let message = &self.messages[next as usize];
            if message.from == receive.peer && !message.is_taken {
                found = next;
            }
            next = message.before;
        }
        let Some(message) = self.messages.get_mut(found as usize) else {
            return Err(unsupported("a message that waits for one of its round"));
        };
        message.is_taken = true;
        receive.delivered_ps = message.arrival_ps.max(receive.posted_ps);
        Ok(())
    }

    /// Ends a receive whose message is there.
    fn complete(&mut self, rank: usize, number: u32) -> Result<()> {
        let receive = &self.receives[number as usize];
        let done_ps = match receive.reduced_bytes {
            None => receive.delivered_ps,
            Some(bytes) => {
                self.ranks[rank].reduce(rank, receive.delivered_ps, bytes, &self.costs)?
            }
        };
        self.ranks[rank].received(number, done_ps);
        Ok(())
    }

    /// Issues what waited for a message of the round.
    fn go_on(&mut self) -> Result<()> {
        let mut waiting = std::mem::take(&mut self.waiting);
        for (rank, step) in waiting.drain(..) {
            let rank = rank as usize;
            if matches!(step.action, Action::Send { .. }) {
                return Err(unsupported("a message that waits for one of its round"));
            }
            let number = self.receives.len() as u32;
            if !self.issue(rank, &step)? {
                return Err(unsupported("a step that waits for nothing known"));
            }
            if self.receives.len() as u32 > number {
                self.deliver(rank, number)?;
                self.complete(rank, number)?;
            }
        }
        self.waiting = waiting;
        Ok(())
    }
}
