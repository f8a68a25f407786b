//! The symbolic execution of all ranks' schedules.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::combined::Combined;
use super::exposed::{Cell, Exposure};
use super::rank::{At, Channel, Published, Rank, Touched};
use super::value::Value;
use super::{Slices, Violation};
use crate::schedule::dependence::Place;
use crate::schedule::{Action, Buffer, Members, Peers, Ranks, Schedule, Span, Step};
use crate::types::Collective;

/// What is wrong with an action whatever the others do, if anything.
pub(super) fn form(schedule: &Schedule, action: &Action) -> Option<&'static str> {
    let chunks = |span: Span| match span.buffer {
        Buffer::Output => schedule.output.chunks(),
        Buffer::Input | Buffer::Scratch => schedule.input.chunks(),
    };
    let barrier = schedule.spec.collective == Collective::Barrier;
    for span in action.spans() {
        if span.len == 0 && !barrier && !matches!(action, Action::Publish { .. }) {
            return Some("an empty span");
        }
        if span.first.saturating_add(span.len) > chunks(span) {
            return Some("a span beyond the end of its buffer");
        }
        let is_elsewhere = matches!(action, Action::Push { .. }) || span.len == 0;
        if !schedule.has(span.buffer) && !is_elsewhere {
            return Some("a buffer that this rank does not have");
        }
    }
    if let Action::Push {
        sources, targets, ..
    } = *action
    {
        let one = [sources, targets];
        let strange =
            |ranks: &Ranks| matches!(ranks, Ranks::One(rank) if *rank >= schedule.spec.world_size);
        if one.iter().any(strange) {
            return Some("a rank that does not exist");
        }
    }
    if let Action::ReduceFrom { among, .. } = *action {
        let n = schedule.spec.world_size;
        if among.ranks().any(|rank| rank >= n)
            || among.ranks().all(|rank| rank != schedule.spec.rank)
        {
            return Some("a reduction among ranks that do not exist, or without this one");
        }
    }
    let peer = match *action {
        Action::Send { peer, .. }
        | Action::Recv { peer, .. }
        | Action::RecvReduce { peer, .. }
        | Action::CopyFrom { peer, .. }
        | Action::TakeBack { peer, .. }
        | Action::Await {
            peers: Peers::One(peer),
            ..
        } => Some(peer),
        _ => None,
    };
    if peer.is_some_and(|peer| peer >= schedule.spec.world_size || peer == schedule.spec.rank) {
        return Some("a peer that is no other rank");
    }
    let into = action.writes();
    let mut sources = action.reads().into_iter().flatten();
    match into {
        Some(into) if sources.any(|source| source.len != into.len) => {
            Some("spans of different lengths")
        }
        _ => None,
    }
}

/// One end of a message that waits for the other.
struct Posted {
    at: At,
    /// The hops behind it when it was issued.
    hops: u32,
    /// Barrier only: what the sender knew.
    known: Vec<bool>,
}

/// The messages of an ordered pair of ranks on a channel whose other end is missing; of one kind at a time.
#[derive(Default)]
struct Pair {
    posted: VecDeque<Posted>,
    sends: bool,
}

/// The state of all ranks.
pub(super) struct Execution<'a> {
    ranks: Vec<Rank<'a>>,
    /// By sender, receiver and channel.
    pairs: Vec<Pair>,
    exposure: Exposure,
    combined: Combined,
    in_place: bool,
    barrier: bool,
    /// Ranks and channels that may be able to go on.
    ready: VecDeque<(u32, u32)>,
}

impl<'a> Execution<'a> {
    pub fn new(schedules: &'a [Schedule], in_place: bool, slices: Slices) -> Execution<'a> {
        let barrier = schedules[0].spec.collective == Collective::Barrier;
        let channels = schedules[0].channels.len();
        let mut pairs = Vec::new();
        pairs.resize_with(schedules.len().pow(2) * channels, Pair::default);
        let rank = |schedule| Rank::new(schedule, in_place, slices);
        let exposes = schedules.iter().any(Schedule::exposes);
        Execution {
            ranks: schedules.iter().map(rank).collect(),
            pairs,
            exposure: Exposure::new(if exposes { schedules.len() } else { 0 }),
            combined: Combined::new(schedules.len()),
            in_place,
            barrier,
            ready: VecDeque::new(),
        }
    }

    /// Drops one dependence of a step on channel 0.
    #[cfg(test)]
    pub fn forget(&mut self, rank: usize, step: usize, wait: usize) {
        self.ranks[rank].waits[0][step].remove(wait);
    }

    /// Runs to the end, or to the first violation.
    pub fn run(&mut self) -> Result<(), Violation> {
        for rank in 0..self.ranks.len() as u32 {
            for channel in 0..self.ranks[rank as usize].channels.len() as u32 {
                self.wake(rank, channel);
            }
        }
        while let Some((rank, channel)) = self.ready.pop_front() {
            self.channel(rank, channel).queued = false;
            while self.advance(rank, channel)? {}
        }
        self.check_ended()
    }

    /// The content of a chunk at the end.
    pub fn value(&self, rank: u32, slice: u32, place: Place) -> Option<Value> {
        self.ranks[rank as usize].value(slice, place)
    }

    /// The longest chain of messages and publications, each of which was waited for before the next.
    pub fn hops(&self) -> u32 {
        self.ranks.iter().map(Rank::hops).max().unwrap_or_default()
    }

    /// Whether everybody knows at the end that everybody has entered. What was never waited for counts now.
    pub fn check_barrier(&self, slice: u32) -> Result<(), Violation> {
        for (number, rank) in self.ranks.iter().enumerate() {
            let missing = rank.known[slice as usize].iter().position(|known| !known);
            if let Some(missing) = missing {
                return Err(Violation {
                    at: None,
                    what: format!("rank {number} may leave before rank {missing} has entered"),
                });
            }
        }
        Ok(())
    }

    fn channel(&mut self, rank: u32, channel: u32) -> &mut Channel {
        &mut self.ranks[rank as usize].channels[channel as usize]
    }

    fn wake(&mut self, rank: u32, channel: u32) {
        let entry = self.channel(rank, channel);
        if !entry.queued {
            entry.queued = true;
            self.ready.push_back((rank, channel));
        }
    }

    /// Issues the next step of a channel if it may be issued.
    fn advance(&mut self, rank: u32, channel: u32) -> Result<bool, Violation> {
        let own = &mut self.ranks[rank as usize];
        let Some(at) = own.next(channel) else {
            return Ok(false);
        };
        let step = own.step(at);
        if !own.waits_are_over(at) || !self.phase_is_reached(at, &step) {
            return Ok(false);
        }
        let own = &mut self.ranks[rank as usize];
        own.finish_waits(at);
        own.channels[channel as usize].next += 1;
        if matches!(step.action, Action::Push { .. }) {
            self.check_agreed(at)?;
        }
        let own = &mut self.ranks[rank as usize];
        if !own.schedule.is_void(&step.action, self.in_place) {
            own.check_conflicts(at, &step.action)?;
            self.touch_own(at, &step.action)?;
            self.issue(at, &step)?;
        }
        Ok(true)
    }

    /// For an `Await` or a `Collect`: whether the peers got that far.
    fn phase_is_reached(&self, at: At, step: &Step) -> bool {
        let (peers, phase) = match step.action {
            Action::Await { peers, phase } => (peers, phase),
            Action::Collect { into } => {
                let is_there = |i| self.combined.value(at.slice, into.first + i).is_some();
                return (0..into.len).all(is_there);
            }
            _ => return true,
        };
        let reached =
            |peer: u32| self.ranks[peer as usize].reached[at.slice as usize] > u16::from(phase);
        match peers {
            Peers::One(peer) => reached(peer),
            Peers::Others => (0..self.ranks.len() as u32)
                .filter(|&peer| peer != at.rank)
                .all(reached),
        }
    }

    fn issue(&mut self, at: At, step: &Step) -> Result<(), Violation> {
        let own = &mut self.ranks[at.rank as usize];
        match step.action {
            Action::Send { peer, .. } => self.post(at, at.rank, peer, true),
            Action::Recv { peer, .. } | Action::RecvReduce { peer, .. } => {
                self.post(at, peer, at.rank, false)
            }
            Action::Copy { from, into } => {
                for i in 0..into.len {
                    let value = own.read(at, from, i)?;
                    own.write(at, into, i, value)?;
                }
                Ok(())
            }
            Action::Reduce { with, from, into } => {
                for i in 0..into.len {
                    let left = own.read(at, with, i)?;
                    let right = own.read(at, from, i)?;
                    let value = combine(at, left, right)?;
                    own.write(at, into, i, value)?;
                }
                Ok(())
            }
            Action::Publish { span, phase } => self.publish(at, span, phase),
            Action::Await { peers, phase } => {
                self.await_phase(at, peers, phase);
                Ok(())
            }
            Action::CopyFrom { peer, first, into } => {
                for i in 0..into.len {
                    let value = self.published(at, peer, into.buffer, first + i)?;
                    self.ranks[at.rank as usize].write(at, into, i, value)?;
                }
                Ok(())
            }
            Action::ReduceFrom {
                among,
                own: span,
                into,
            } => self.reduce_from(at, among, span, into),
            Action::Expose { phase } => {
                self.exposure.expose(at, phase);
                let nothing = Span {
                    buffer: Buffer::Input,
                    first: 0,
                    len: 0,
                };
                self.publish(at, nothing, phase)
            }
            Action::Push {
                sources,
                from,
                targets,
                into,
            } => self.push(at, (sources, from), (targets, into)),
            Action::GiveBack { span, phase } => self.give_back(at, span, phase),
            Action::TakeBack { peer, into } => {
                for i in 0..into.len {
                    let value = self.given_back(at, peer, into.first + i)?;
                    self.ranks[at.rank as usize].write(at, into, i, value)?;
                }
                Ok(())
            }
            Action::Combine { first, len } => self.offer(at, first, len),
            Action::Collect { into } => self.collect(at, into),
        }
    }

    fn publish(&mut self, at: At, span: Span, phase: u8) -> Result<(), Violation> {
        let own = &mut self.ranks[at.rank as usize];
        for i in 0..span.len {
            let value = Some(own.read(at, span, i)?);
            let slot = own.published(at.slice, span.buffer, span.first + i);
            match slot {
                Some(slot @ None) => {
                    let touched = Touched::Not;
                    *slot = Some(Published {
                        value,
                        phase,
                        touched,
                    });
                }
                _ => {
                    return Err(at.violation(format!(
                        "chunk {} is published again while peers may read it",
                        span.first + i
                    )));
                }
            }
        }
        self.reach(at, phase)
    }

    /// This rank says that it has come to `phase`.
    fn reach(&mut self, at: At, phase: u8) -> Result<(), Violation> {
        let own = &mut self.ranks[at.rank as usize];
        let reached = &mut own.reached[at.slice as usize];
        if *reached > u16::from(phase) {
            return Err(at.violation("the phase does not rise"));
        }
        *reached = u16::from(phase) + 1;
        let hops = own.channels[at.channel as usize].hops;
        own.hops_at.insert((at.slice, phase), hops);
        self.exposure.publish(at, phase);
        let own = &mut self.ranks[at.rank as usize];
        if self.barrier {
            let known = own.known[at.slice as usize].clone();
            own.known_at.insert((at.slice, phase), known);
        }
        for rank in 0..self.ranks.len() as u32 {
            self.wake_if_awaiting(rank, at.channel);
        }
        Ok(())
    }

    fn wake_if_awaiting(&mut self, rank: u32, channel: u32) {
        let other = &self.ranks[rank as usize];
        let awaiting = other.next(channel).map(|at| other.step(at).action);
        if matches!(
            awaiting,
            Some(Action::Await { .. } | Action::Collect { .. })
        ) {
            self.wake(rank, channel);
        }
    }

    fn await_phase(&mut self, at: At, peers: Peers, phase: u8) {
        let peers = match peers {
            Peers::One(peer) => peer..peer + 1,
            Peers::Others => 0..self.ranks.len() as u32,
        };
        for peer in peers.filter(|&peer| peer != at.rank) {
            let awaited = self.ranks[at.rank as usize].awaited(at.slice, peer);
            *awaited = (*awaited).max(u16::from(phase) + 1);
            self.exposure.hear(at, peer, phase);
            let published = self.ranks[peer as usize].hops_at.get(&(at.slice, phase));
            let hops = published.copied().unwrap_or_default() + 1;
            let own = self.channel(at.rank, at.channel);
            own.hops = own.hops.max(hops);
            if self.barrier {
                let at_phase = self.ranks[peer as usize].known_at.get(&(at.slice, phase));
                let known = at_phase.cloned().unwrap_or_default();
                self.ranks[at.rank as usize].learn(at.slice, &known);
            }
        }
    }

    /// What `peer` published under a chunk number, if this rank has awaited that and nobody combines there.
    fn published(
        &mut self,
        at: At,
        peer: u32,
        buffer: Buffer,
        chunk: u32,
    ) -> Result<Value, Violation> {
        if buffer == Buffer::Input && self.combined.is_touched(at.slice, chunk) {
            return Err(at.violation(format!(
                "chunk {chunk} of rank {peer} is read when it may be combined already"
            )));
        }
        self.awaited_value(at, peer, buffer, chunk)
    }

    fn awaited_value(
        &mut self,
        at: At,
        peer: u32,
        buffer: Buffer,
        chunk: u32,
    ) -> Result<Value, Violation> {
        let awaited = *self.ranks[at.rank as usize].awaited(at.slice, peer);
        let published = self.ranks[peer as usize].published(at.slice, buffer, chunk);
        let published = published.and_then(Option::as_mut);
        let published = published.filter(|published| u16::from(published.phase) < awaited);
        let Some(published) = published else {
            return Err(at.violation(format!(
                "chunk {chunk} of rank {peer} is read without having awaited its publication"
            )));
        };
        published.touched = match published.touched {
            Touched::Not => Touched::ReadBy(at.rank),
            Touched::ReadBy(reader) if reader == at.rank => Touched::ReadBy(reader),
            Touched::ReadBy(_) | Touched::ReadByMany => Touched::ReadByMany,
            Touched::GivenBack(..) => {
                return Err(at.violation(format!(
                    "chunk {chunk} of rank {peer} is read as published although it is given back"
                )));
            }
        };
        Ok(published.value.expect("only defined chunks are published"))
    }

    /// Every peer's published chunks are overwritten by the one rank that has read them.
    fn give_back(&mut self, at: At, span: Span, phase: u8) -> Result<(), Violation> {
        for i in 0..span.len {
            let value = self.ranks[at.rank as usize].read(at, span, i)?;
            if self.combined.is_touched(at.slice, span.first + i) {
                return Err(at.violation(format!(
                    "chunk {} is given back when it may be combined already",
                    span.first + i
                )));
            }
            for peer in (0..self.ranks.len() as u32).filter(|&peer| peer != at.rank) {
                let published =
                    self.ranks[peer as usize].published(at.slice, Buffer::Input, span.first + i);
                match published.and_then(Option::as_mut) {
                    Some(published) if published.touched == Touched::ReadBy(at.rank) => {
                        published.value = Some(value);
                        published.touched = Touched::GivenBack(at.rank, phase);
                    }
                    _ => {
                        return Err(at.violation(format!(
                            "chunk {} of rank {peer} is overwritten, but this rank is not its one reader",
                            span.first + i
                        )));
                    }
                }
            }
        }
        self.reach(at, phase)
    }

    /// What `peer` put in the place of a chunk of this rank's, if this rank has awaited that.
    fn given_back(&mut self, at: At, peer: u32, chunk: u32) -> Result<Value, Violation> {
        let own = &mut self.ranks[at.rank as usize];
        let awaited = *own.awaited(at.slice, peer);
        let published = own
            .published(at.slice, Buffer::Input, chunk)
            .and_then(|slot| *slot);
        match published {
            Some(Published {
                value: Some(value),
                touched: Touched::GivenBack(by, phase),
                ..
            }) if by == peer && u16::from(phase) < awaited => Ok(value),
            _ => Err(at.violation(format!(
                "chunk {chunk} is taken back without having awaited that rank {peer} gave it"
            ))),
        }
    }

    fn reduce_from(
        &mut self,
        at: At,
        among: Members,
        span: Span,
        into: Span,
    ) -> Result<(), Violation> {
        for i in 0..into.len {
            let own = self.ranks[at.rank as usize].read(at, span, i)?;
            let mut sum = None;
            for rank in among.ranks() {
                let value = if rank == at.rank {
                    own
                } else {
                    self.published(at, rank, span.buffer, span.first + i)?
                };
                sum = Some(match sum {
                    None => value,
                    Some(sum) => combine(at, sum, value)?,
                });
            }
            let sum = sum.expect("there is at least this rank");
            self.ranks[at.rank as usize].write(at, into, i, sum)?;
        }
        Ok(())
    }

    /// Touches what a step touches in its rank's own memory, where peers may work too.
    fn touch_own(&mut self, at: At, action: &Action) -> Result<(), Violation> {
        if !self.exposure.is_watched() || matches!(action, Action::Push { .. }) {
            return Ok(());
        }
        for span in action.reads().into_iter().flatten() {
            self.touch(at, at.rank, span, false)?;
        }
        match action.writes() {
            Some(span) => self.touch(at, at.rank, span, true),
            None => Ok(()),
        }
    }

    /// Touches a span of `owner`'s memory.
    fn touch(&mut self, at: At, owner: u32, span: Span, writes: bool) -> Result<(), Violation> {
        for i in 0..span.len {
            let index = self.ranks[owner as usize].place_index(At { rank: owner, ..at }, span, i);
            let cell = Cell {
                owner,
                slice: at.slice,
                index,
            };
            self.exposure.touch(at, cell, writes)?;
        }
        Ok(())
    }

    /// Refuses a push before all ranks are known to agree to it.
    fn check_agreed(&mut self, at: At) -> Result<(), Violation> {
        for owner in 0..self.ranks.len() as u32 {
            let awaited = *self.ranks[at.rank as usize].awaited(at.slice, owner);
            if owner != at.rank && !self.exposure.is_heard(at, owner, awaited) {
                return Err(at.violation(format!(
                    "works in peers' memory without having awaited the exposure of rank {owner}"
                )));
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        at: At,
        (sources, from): (Ranks, Span),
        (targets, into): (Ranks, Span),
    ) -> Result<(), Violation> {
        let n = self.ranks.len() as u32;
        let has = |execution: &Execution<'_>, owner: u32, span: Span| {
            let schedule = execution.ranks[owner as usize].schedule;
            let missing = || at.violation(format!("rank {owner} has no {:?}", span.buffer));
            schedule.has(span.buffer).then_some(()).ok_or_else(missing)
        };
        for owner in sources.numbers(n) {
            has(self, owner, from)?;
            self.touch(at, owner, from, false)?;
        }
        for i in 0..into.len {
            let mut sum = None;
            for owner in sources.numbers(n) {
                let there = At { rank: owner, ..at };
                let value = self.ranks[owner as usize].read(there, from, i)?;
                sum = Some(match sum {
                    None => value,
                    Some(sum) => combine(at, sum, value)?,
                });
            }
            let sum = sum.expect("one source at least");
            for owner in targets.numbers(n) {
                has(self, owner, into)?;
                let there = At { rank: owner, ..at };
                self.ranks[owner as usize].write(there, into, i, sum)?;
            }
        }
        for owner in targets.numbers(n) {
            self.touch(at, owner, into, true)?;
        }
        Ok(())
    }

    /// Offers to combine what all have published.
    fn offer(&mut self, at: At, first: u32, len: u32) -> Result<(), Violation> {
        let hops = self.channel(at.rank, at.channel).hops;
        for chunk in first..first.saturating_add(len) {
            let mut sum = None;
            for rank in 0..self.ranks.len() as u32 {
                let value = if rank == at.rank {
                    self.own_published(at, chunk)?
                } else {
                    self.awaited_value(at, rank, Buffer::Input, chunk)?
                };
                sum = Some(match sum {
                    None => value,
                    Some(sum) => combine(at, sum, value)?,
                });
            }
            let sum = sum.expect("there is at least this rank");
            if !self.combined.offer((at.slice, chunk), at.rank, sum, hops) {
                return Err(at.violation(format!("offers chunk {chunk} a second time")));
            }
        }
        for rank in 0..self.ranks.len() as u32 {
            self.wake_if_awaiting(rank, at.channel);
        }
        Ok(())
    }

    fn own_published(&mut self, at: At, chunk: u32) -> Result<Value, Violation> {
        let own = &mut self.ranks[at.rank as usize];
        let published = own
            .published(at.slice, Buffer::Input, chunk)
            .and_then(|slot| *slot);
        published
            .and_then(|published| published.value)
            .ok_or_else(|| at.violation(format!("combines chunk {chunk}, which it kept")))
    }

    fn collect(&mut self, at: At, into: Span) -> Result<(), Violation> {
        for i in 0..into.len {
            let combined = self.combined.value(at.slice, into.first + i);
            let (value, hops) = combined.expect("waited for");
            let channel = self.channel(at.rank, at.channel);
            channel.hops = channel.hops.max(hops + 1);
            self.ranks[at.rank as usize].write(at, into, i, value)?;
        }
        Ok(())
    }

    /// One end of the message from `sender` to `receiver`; carries it out if the other end is there.
    fn post(&mut self, at: At, sender: u32, receiver: u32, send: bool) -> Result<(), Violation> {
        let own = &mut self.ranks[at.rank as usize];
        own.mark_in_flight(at);
        let known = if send && self.barrier {
            own.known[at.slice as usize].clone()
        } else {
            Vec::new()
        };
        let hops = own.channels[at.channel as usize].hops;
        let posted = Posted { at, hops, known };
        let channels = own.channels.len() as u32;
        let n = self.ranks.len() as u32;
        let index = (sender * n + receiver) * channels + at.channel;
        let pair = &mut self.pairs[index as usize];
        if pair.posted.is_empty() || pair.sends == send {
            pair.sends = send;
            pair.posted.push_back(posted);
            return Ok(());
        }
        let other = pair.posted.pop_front().expect("not empty");
        if send {
            self.deliver(&posted, &other)
        } else {
            self.deliver(&other, &posted)
        }
    }

    fn deliver(&mut self, sender: &Posted, receiver: &Posted) -> Result<(), Violation> {
        let (from, to) = (sender.at, receiver.at);
        let sent = self.ranks[from.rank as usize].step(from);
        let received = self.ranks[to.rank as usize].step(to);
        let Action::Send { span: source, .. } = sent.action else {
            unreachable!("a send was posted");
        };
        let (with, into) = match received.action {
            Action::Recv { span, .. } => (None, span),
            Action::RecvReduce { with, into, .. } => (Some(with), into),
            _ => unreachable!("a receive was posted"),
        };
        if (from.slice, sent.round, source.len) != (to.slice, received.round, into.len) {
            return Err(to.violation(format!(
                "slice, round or length differ from the message of rank {}, step {}: {sent:?} meets {received:?}",
                from.rank, from.number
            )));
        }
        for i in 0..into.len {
            let message = self.ranks[from.rank as usize].read(from, source, i)?;
            let own = &mut self.ranks[to.rank as usize];
            let value = match with {
                None => message,
                Some(with) => combine(to, own.read(to, with, i)?, message)?,
            };
            own.write(to, into, i, value)?;
        }
        let arrival = receiver.hops.max(sender.hops + 1);
        for (at, hops) in [(from, sender.hops), (to, arrival)] {
            self.ranks[at.rank as usize].deliver(at, hops);
            self.wake(at.rank, at.channel);
        }
        if self.barrier {
            let own = &mut self.ranks[to.rank as usize];
            own.heard.insert(to.key(), sender.known.clone());
        }
        Ok(())
    }

    /// Everybody issued everything and every message was received; or who waits.
    fn check_ended(&mut self) -> Result<(), Violation> {
        for rank in &self.ranks {
            for channel in 0..rank.channels.len() as u32 {
                if let Some(at) = rank.next(channel) {
                    let step = rank.step(at);
                    return Err(at.violation(format!(
                        "deadlock: slice {}, round {}, {:?} is never issued",
                        at.slice, step.round, step.action
                    )));
                }
            }
        }
        let lonely = self.pairs.iter().position(|pair| !pair.posted.is_empty());
        if let Some(index) = lonely {
            let pair = &self.pairs[index];
            let between = index / self.ranks[0].channels.len();
            return Err(Violation {
                at: None,
                what: format!(
                    "{} messages from rank {} to rank {} lack their {}",
                    pair.posted.len(),
                    between / self.ranks.len(),
                    between % self.ranks.len(),
                    if pair.sends { "receive" } else { "send" },
                ),
            });
        }
        for rank in &mut self.ranks {
            rank.hear_the_rest();
        }
        self.exposure.check_ended()
    }
}

fn combine(at: At, left: Value, right: Value) -> Result<Value, Violation> {
    left.combined(right).ok_or_else(|| {
        at.violation(format!(
            "combines chunk {} with chunk {}",
            left.chunk, right.chunk
        ))
    })
}
