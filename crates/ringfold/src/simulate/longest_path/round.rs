//! The rounds of the pass: in each, all ranks issue their steps, then their messages reach the
//! ports of their receivers, and then the steps that waited for a message of this round proceed.
//!
//! A rank ends a round and begins the next in one go, so that its state is fetched once.

use super::pending::StepAccesses;
use super::rank::{ComputeCosts, PortTimes, RankOnPath, RankTimes};
use super::source::{ChunkOffsets, StepSource, UnsupportedFeature};
use crate::schedule::{Action, Buffer, Span, Step};
use crate::simulate::model::Network;
use crate::simulate::network::slow_links::SlowLinks;
use crate::simulate::scenario::Scenario;

/// End of a list of messages.
const NONE: u32 = u32::MAX;

/// Refusal for a message that is not sent by the end of its round.
const NOT_IN_ROUND: UnsupportedFeature = "a message that depends on another message of its round";

/// A message of a round.
struct RoundMessage {
    from: u32,
    is_local: bool,
    is_taken: bool,
    /// Number of the previous message to the same receiver.
    before: u32,
    /// Arrival time of the message's first byte; once it has entered the port, of its last.
    at_ps: u64,
    /// Time that the message occupies the receiver's port.
    receiving_ps: u64,
}

/// A receive that was posted in a round.
struct RoundReceive {
    peer: u32,
    posted_ps: u64,
    /// Time at which both the receive and its message are available.
    delivered_ps: u64,
    /// Number of bytes to reduce, if any.
    reduced_bytes: Option<u64>,
}

/// Messages, receives and waiting steps of one round, of all ranks.
#[derive(Default)]
struct Issued {
    messages: Vec<RoundMessage>,
    /// Number of the last message to each rank.
    inboxes: Vec<u32>,
    receives: Vec<RoundReceive>,
    /// Index of each rank's first receive, and the end of the last rank's receives.
    receive_starts: Vec<u32>,
    /// Steps that wait for a message of the round, by rank.
    waiting: Vec<(u32, Step)>,
}

impl Issued {
    fn clear(&mut self, ranks: usize) {
        self.messages.clear();
        self.receives.clear();
        self.receive_starts.clear();
        self.receive_starts.push(0);
        self.waiting.clear();
        self.inboxes.clear();
        self.inboxes.resize(ranks, NONE);
    }
}

pub(super) struct Pass<'a> {
    network: &'a Network,
    costs: ComputeCosts<'a>,
    chunks: ChunkOffsets,
    slow_links: SlowLinks,
    ranks: Vec<RankTimes>,
    /// Ports between the ranks of one host, if local messages have ports of their own.
    local_ports: Vec<PortTimes>,
    /// The round that ends.
    ending: Issued,
    /// The round that begins.
    beginning: Issued,
    /// Scratch list: one rank's messages or receives, in the order of processing.
    order: Vec<u32>,
}

impl<'a> Pass<'a> {
    pub fn new(scenario: &'a Scenario, source: &StepSource) -> Pass<'a> {
        let local_ports = scenario.ranks * usize::from(scenario.network.local.is_some());
        Pass {
            network: &scenario.network,
            costs: ComputeCosts::new(scenario),
            chunks: ChunkOffsets::new(source.cuts(), scenario),
            slow_links: SlowLinks::new(scenario),
            ranks: scenario
                .begins_ps()
                .into_iter()
                .map(RankTimes::new)
                .collect(),
            local_ports: vec![PortTimes::default(); local_ports],
            ending: Issued::default(),
            beginning: Issued::default(),
            order: Vec::new(),
        }
    }

    /// Runs all rounds.
    pub fn run(mut self, mut source: StepSource) -> Result<Vec<RankOnPath>, UnsupportedFeature> {
        let (rounds, ranks) = (source.rounds(), self.ranks.len());
        self.beginning.clear(ranks);
        for rank in 0..ranks {
            self.begin(rank, source.steps(rank, 0))?;
        }
        for round in 1..=rounds {
            std::mem::swap(&mut self.ending, &mut self.beginning);
            self.beginning.clear(ranks);
            let mut waiting = 0;
            for rank in 0..ranks {
                self.end(rank)?;
                waiting = self.go_on(rank, waiting)?;
                if round < rounds {
                    self.begin(rank, source.steps(rank, round))?;
                }
            }
        }
        Ok(self.ranks.iter().map(RankTimes::swept).collect())
    }

    /// Issues a rank's steps of a round up to the first that waits for a message of the round.
    #[inline(always)]
    fn begin(&mut self, rank: usize, steps: &[Step]) -> Result<(), UnsupportedFeature> {
        for (number, step) in steps.iter().enumerate() {
            // Distinguish the memory accesses of each kind of step here, to keep the comparisons
            // for the other kinds out of the loop.
            let is_issued = match step.action {
                Action::Send { peer, span } => {
                    let touches = StepAccesses::reading(span);
                    let at_ps = self.ranks[rank].issue(&touches);
                    if let Some(at_ps) = at_ps {
                        let sent_ps = self.send(rank, peer, span, at_ps);
                        self.ranks[rank].completes(&touches, sent_ps);
                    }
                    at_ps.is_some()
                }
                Action::RecvReduce { with, into, .. } if with.buffer == Buffer::Input => {
                    self.issue_if_due(rank, &step.action, &StepAccesses::writing(into))?
                }
                _ => self.issue_if_due(rank, &step.action, &StepAccesses::of(&step.action))?,
            };
            if !is_issued {
                let rest = steps[number..].iter();
                let rest = rest.map(|step| (rank as u32, *step));
                self.beginning.waiting.extend(rest);
                break;
            }
        }
        let receives = self.beginning.receives.len() as u32;
        self.beginning.receive_starts.push(receives);
        Ok(())
    }

    /// Issues a step that sends nothing, unless it waits for a message of the round.
    #[inline(always)]
    fn issue_if_due(
        &mut self,
        rank: usize,
        action: &Action,
        touches: &StepAccesses,
    ) -> Result<bool, UnsupportedFeature> {
        let Some(at_ps) = self.ranks[rank].issue(touches) else {
            return Ok(false);
        };
        self.issue(rank, action, touches, at_ps, false)?;
        Ok(true)
    }

    /// Issues a step that sends nothing, in the round that ends or in the one that begins.
    #[inline(always)]
    fn issue(
        &mut self,
        rank: usize,
        action: &Action,
        touches: &StepAccesses,
        at_ps: u64,
        is_ending: bool,
    ) -> Result<(), UnsupportedFeature> {
        let (peer, reduced_bytes) = match *action {
            Action::Recv { peer, .. } | Action::RecvLeaf { peer, .. } => (peer, None),
            Action::RecvReduce { peer, into, .. } => (peer, Some(self.chunks.bytes(into))),
            _ => return self.compute(rank, action, touches, at_ps),
        };
        let round = match is_ending {
            true => &mut self.ending,
            false => &mut self.beginning,
        };
        self.ranks[rank].expects(touches, round.receives.len() as u32);
        round.receives.push(RoundReceive {
            peer,
            posted_ps: at_ps,
            delivered_ps: 0,
            reduced_bytes,
        });
        Ok(())
    }

    fn compute(
        &mut self,
        rank: usize,
        action: &Action,
        touches: &StepAccesses,
        at_ps: u64,
    ) -> Result<(), UnsupportedFeature> {
        let state = &mut self.ranks[rank];
        let done_ps = match *action {
            Action::Reduce { into, .. } => {
                let bytes = self.chunks.bytes(into);
                state.reduce(rank, at_ps, bytes, &mut self.costs)?
            }
            Action::Fold {
                leaves, own, into, ..
            } => {
                let pairs = u64::from(leaves.len / own.len);
                let bytes = pairs * self.chunks.bytes(into);
                state.reduce(rank, at_ps, bytes, &mut self.costs)?
            }
            Action::Copy { into, .. } => {
                let bytes = self.chunks.bytes(into);
                let compute = self.costs.compute;
                match compute.copy_ps_per_byte * bytes {
                    0 => return Ok(()),
                    duration_ps => state.work(at_ps, duration_ps, compute.server)?,
                }
            }
            _ => return Err("published memory"),
        };
        state.completes(touches, done_ps);
        Ok(())
    }

    /// Puts a message on its sender's port. Returns when the message has left the port.
    #[inline(always)]
    fn send(&mut self, from: usize, to: u32, span: Span, at_ps: u64) -> u64 {
        let bytes = self.chunks.bytes(span);
        let (links, is_local) = self.network.links_between(from, to as usize);
        let base_ps = links.ps_per_byte * bytes;
        let (sending_ps, receiving_ps) = self.slow_links.apply(from as u32, to, base_ps);
        let rank = &mut self.ranks[from];
        rank.counts_message(bytes);
        let port = match is_local {
            true => &mut self.local_ports[from],
            false => &mut rank.port,
        };
        let begin_ps = at_ps.max(port.sends_until_ps);
        let sent_ps = begin_ps + sending_ps;
        port.sends_until_ps = sent_ps + links.gap_ps;
        // The last byte does not arrive before it has left.
        let leaves_ps = begin_ps.max(sent_ps.saturating_sub(receiving_ps));
        let number = self.beginning.messages.len() as u32;
        let before = std::mem::replace(&mut self.beginning.inboxes[to as usize], number);
        self.beginning.messages.push(RoundMessage {
            from: from as u32,
            is_local,
            is_taken: false,
            before,
            at_ps: leaves_ps + links.alpha_ps,
            receiving_ps,
        });
        sent_ps
    }

    /// Passes a rank's messages through its port, and completes the receives that could be posted
    /// without a message of the round.
    #[inline(always)]
    fn end(&mut self, rank: usize) -> Result<(), UnsupportedFeature> {
        let starts = &self.ending.receive_starts;
        let range = starts[rank]..starts[rank + 1];
        let last = self.ending.inboxes[rank];
        if last == NONE && range.is_empty() {
            return Ok(());
        }
        if last != NONE && self.ending.messages[last as usize].before == NONE {
            self.enter(rank, last)?;
            if range.len() == 1 {
                return self.end_with_one(rank, last, range.start);
            }
        } else {
            self.enter_in_turn(rank)?;
        }
        for number in range.clone() {
            self.deliver(rank, number)?;
        }
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(range);
        order.sort_by_key(|number| self.ending.receives[*number as usize].delivered_ps);
        for number in &order {
            self.complete(rank, *number)?;
        }
        self.order = order;
        Ok(())
    }

    /// Ends a round of one message and one receive, the most common case.
    #[inline(always)]
    fn end_with_one(
        &mut self,
        rank: usize,
        message: u32,
        number: u32,
    ) -> Result<(), UnsupportedFeature> {
        let message = &mut self.ending.messages[message as usize];
        let receive = &mut self.ending.receives[number as usize];
        if message.from != receive.peer {
            return Err(NOT_IN_ROUND);
        }
        message.is_taken = true;
        receive.delivered_ps = message.at_ps.max(receive.posted_ps);
        self.complete(rank, number)
    }

    /// Passes several messages through a rank's port, first come, first served.
    fn enter_in_turn(&mut self, rank: usize) -> Result<(), UnsupportedFeature> {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        let messages = &self.ending.messages;
        let mut next = self.ending.inboxes[rank];
        while next != NONE {
            order.push(next);
            next = messages[next as usize].before;
        }
        order.reverse();
        order.sort_by_key(|number| messages[*number as usize].at_ps);
        for number in &order {
            self.enter(rank, *number)?;
        }
        self.order = order;
        Ok(())
    }

    #[inline(always)]
    fn enter(&mut self, rank: usize, number: u32) -> Result<(), UnsupportedFeature> {
        let from = self.ending.messages[number as usize].from;
        let (links, _) = self.network.links_between(from as usize, rank);
        let message = &mut self.ending.messages[number as usize];
        let port = match message.is_local {
            true => &mut self.local_ports[rank],
            false => &mut self.ranks[rank].port,
        };
        message.at_ps = port.enter(from, message.at_ps, message.receiving_ps, links.gap_ps)?;
        Ok(())
    }

    /// Finds the message of a receive.
    #[inline(always)]
    fn deliver(&mut self, rank: usize, number: u32) -> Result<(), UnsupportedFeature> {
        let receive = &mut self.ending.receives[number as usize];
        let mut next = self.ending.inboxes[rank];
        let mut found = NONE;
        // The list begins with the newest message; the oldest is due.
        while next != NONE {
            let message = &self.ending.messages[next as usize];
            if message.from == receive.peer && !message.is_taken {
                found = next;
            }
            next = message.before;
        }
        let Some(message) = self.ending.messages.get_mut(found as usize) else {
            return Err(NOT_IN_ROUND);
        };
        message.is_taken = true;
        receive.delivered_ps = message.at_ps.max(receive.posted_ps);
        Ok(())
    }

    /// Completes a receive whose message has arrived.
    #[inline(always)]
    fn complete(&mut self, rank: usize, number: u32) -> Result<(), UnsupportedFeature> {
        let receive = &self.ending.receives[number as usize];
        let state = &mut self.ranks[rank];
        let done_ps = match receive.reduced_bytes {
            None => receive.delivered_ps,
            Some(bytes) => state.reduce(rank, receive.delivered_ps, bytes, &mut self.costs)?,
        };
        state.received(number, done_ps);
        Ok(())
    }

    /// Issues a rank's steps that waited for a message of the round, from position `at` of the
    /// waiting steps. Returns the position after them.
    #[inline(always)]
    fn go_on(&mut self, rank: usize, mut at: usize) -> Result<usize, UnsupportedFeature> {
        while let Some((waiting, step)) = self.ending.waiting.get(at)
            && *waiting as usize == rank
        {
            let step = *step;
            at += 1;
            if matches!(step.action, Action::Send { .. }) {
                return Err(NOT_IN_ROUND);
            }
            let number = self.ending.receives.len() as u32;
            let touches = StepAccesses::of(&step.action);
            let at_ps = self.ranks[rank].issue(&touches);
            let at_ps = at_ps.ok_or("a step that depends on another step of its round")?;
            self.issue(rank, &step.action, &touches, at_ps, true)?;
            if self.ending.receives.len() as u32 > number {
                self.deliver(rank, number)?;
                self.complete(rank, number)?;
            }
        }
        Ok(at)
    }
}
