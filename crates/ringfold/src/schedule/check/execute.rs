//! The symbolic execution of all ranks' schedules: the order in which steps may be issued, and the
//! effects of messages and local steps.

#![forbid(unsafe_code)]

mod exposed;
mod published;

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::exposed::Exposure;
use super::offers::Offers;
use super::past::Past;
use super::proof::{Slices, Violation};
use super::rank::{At, CheckedChannel, CheckedRank};
use super::value::SymbolicValue;
use crate::schedule::action::{Action, AwaitedPeers, Buffer, Combine, Span, Step, input};
use crate::schedule::dependence::BufferChunk;
use crate::schedule::spec::Schedule;
use crate::types::{Access, Collective};

/// One end of a message, waiting for the other end.
struct PostedEnd {
    at: At,
    /// The past of the step when it was issued.
    past: Past,
}

/// Posted ends of messages between an ordered pair of ranks on a channel: only sends or only
/// receives at a time.
#[derive(Default)]
struct PostedEnds {
    posted: VecDeque<PostedEnd>,
    sends: bool,
}

/// The state of all ranks.
pub(super) struct Execution<'a> {
    ranks: Vec<CheckedRank<'a>>,
    /// Unmatched ends of messages, by sender, receiver and channel.
    pairs: Vec<PostedEnds>,
    exposure: Exposure,
    offers: Offers,
    in_place: bool,
    /// Ranks and channels that may be able to make progress.
    ready: VecDeque<(u32, u32)>,
}

impl<'a> Execution<'a> {
    pub fn new(schedules: &'a [Schedule], in_place: bool, slices: Slices) -> Execution<'a> {
        let channels = schedules[0].channels.len();
        let mut pairs = Vec::new();
        pairs.resize_with(schedules.len().pow(2) * channels, PostedEnds::default);
        let barrier = schedules[0].spec.collective == Collective::Barrier;
        let exposes = schedules.iter().any(Schedule::exposes);
        let rank = |schedule| CheckedRank::new(schedule, in_place, slices, barrier || exposes);
        Execution {
            ranks: schedules.iter().map(rank).collect(),
            pairs,
            exposure: Exposure::new(exposes),
            offers: Offers::new(schedules.len()),
            in_place,
            ready: VecDeque::new(),
        }
    }

    /// Drops one dependence of a step on channel 0.
    #[cfg(test)]
    pub fn forget(&mut self, rank: usize, step: usize, wait: usize) {
        self.ranks[rank].waits[0][step].remove(wait);
    }

    /// Runs to the end or to the first violation.
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

    /// Returns the content of a chunk at the end.
    pub fn value(&self, rank: u32, slice: u32, place: BufferChunk) -> Option<SymbolicValue> {
        self.ranks[rank as usize].value(slice, place)
    }

    /// Returns the length of the longest chain of dependent messages and publications.
    pub fn hops(&self) -> u32 {
        let hops = self.ranks.iter().map(|rank| rank.past().hops);
        hops.max().unwrap_or_default()
    }

    /// Checks that every rank knows at its end that all ranks have entered. Messages that no step
    /// has waited for count now.
    pub fn check_barrier(&self) -> Result<(), Violation> {
        for (number, rank) in self.ranks.iter().enumerate() {
            let past = rank.past();
            if let Some(missing) = past.clock.iter().position(|interval| *interval == 0) {
                return Err(Violation::of_all(format!(
                    "rank {number} may leave before rank {missing} has entered"
                )));
            }
        }
        Ok(())
    }

    fn channel(&mut self, rank: u32, channel: u32) -> &mut CheckedChannel {
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
        if let Action::Combine(Combine {
            access: Access::Registered,
            ..
        }) = step.action
        {
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

    /// Whether the phase or the blocks that the step waits for, if any, are reached or complete.
    fn phase_is_reached(&self, at: At, step: &Step) -> bool {
        let (peers, phase) = match step.action {
            Action::Await { peers, phase } => (peers, phase),
            Action::Collect { into, .. } => {
                let is_done = |i| self.offers.value(at.slice, into.first + i).is_some();
                return (0..into.len).all(is_done);
            }
            _ => return true,
        };
        let reached =
            |peer: u32| self.ranks[peer as usize].reached[at.slice as usize] > u16::from(phase);
        match peers {
            AwaitedPeers::One(peer) => reached(peer),
            AwaitedPeers::Others => (0..self.ranks.len() as u32)
                .filter(|&peer| peer != at.rank)
                .all(reached),
        }
    }

    fn issue(&mut self, at: At, step: &Step) -> Result<(), Violation> {
        match step.action {
            Action::Send { peer, .. } => self.post(at, at.rank, peer, true),
            Action::Recv { peer, .. }
            | Action::RecvReduce { peer, .. }
            | Action::RecvLeaf { peer, .. } => self.post(at, peer, at.rank, false),
            Action::Fold {
                leaves,
                own,
                at: number,
                into,
            } => self.compute(at, into, |rank, i| {
                let count = leaves.len / own.len;
                let value = |place: u32| match place.cmp(&number) {
                    Ordering::Less => rank.read(at, leaves, place * own.len + i),
                    Ordering::Equal => rank.read(at, own, i),
                    Ordering::Greater => rank.read(at, leaves, (place - 1) * own.len + i),
                };
                combine_all(at, (0..=count).map(value))
            }),
            Action::Copy { from, into } => self.compute(at, into, |own, i| own.read(at, from, i)),
            Action::Reduce { with, from, into } => self.compute(at, into, |own, i| {
                combine(at, own.read(at, with, i)?, own.read(at, from, i)?)
            }),
            Action::Publish { span, phase, .. } => self.publish(at, span, phase),
            Action::Await { peers, phase } => {
                self.await_phase(at, peers, phase);
                Ok(())
            }
            Action::CopyFrom { peer, first, into } => {
                self.fill(at, into, |ranks, i| ranks.published(at, peer, first + i))
            }
            Action::ReduceFrom { own, into } => {
                self.fill(at, into, |ranks, i| ranks.reduced(at, own, i))
            }
            Action::GiveBack { span, phase } => self.give_back(at, span, phase),
            Action::TakeBack { peer, into } => self.fill(at, into, |ranks, i| {
                ranks.given_back(at, peer, into.first + i)
            }),
            Action::Expose { phase, .. } => {
                self.exposure.expose(at, phase);
                self.publish(at, input(0, 0), phase)
            }
            Action::Combine(combine) => self.combine(at, &combine),
            Action::Collect { access, into } => self.collect(at, access, into),
        }
    }

    /// Writes the results of `value` to `into`, chunk by chunk.
    fn fill(
        &mut self,
        at: At,
        into: Span,
        mut value: impl FnMut(&mut Self, u32) -> Result<SymbolicValue, Violation>,
    ) -> Result<(), Violation> {
        for i in 0..into.len {
            let value = value(self, i)?;
            self.ranks[at.rank as usize].write(at, into, i, value)?;
        }
        Ok(())
    }

    /// Does the same as `fill` from the rank's own memory alone, as a step that may complete later.
    fn compute(
        &mut self,
        at: At,
        into: Span,
        value: impl Fn(&CheckedRank<'_>, u32) -> Result<SymbolicValue, Violation>,
    ) -> Result<(), Violation> {
        self.fill(at, into, |ranks, i| {
            value(&ranks.ranks[at.rank as usize], i)
        })?;
        self.ranks[at.rank as usize].put_in_flight(at);
        Ok(())
    }

    /// Posts one end of a message from `sender` to `receiver`, and executes it if the other is
    /// posted.
    fn post(&mut self, at: At, sender: u32, receiver: u32, send: bool) -> Result<(), Violation> {
        let own = &mut self.ranks[at.rank as usize];
        own.mark(at, true);
        let past = own.channels[at.channel as usize].past.clone();
        let posted = PostedEnd { at, past };
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

    fn deliver(&mut self, sender: &PostedEnd, receiver: &PostedEnd) -> Result<(), Violation> {
        let (from, to) = (sender.at, receiver.at);
        let sent = self.ranks[from.rank as usize].step(from);
        let received = self.ranks[to.rank as usize].step(to);
        let Action::Send { span: source, .. } = sent.action else {
            unreachable!("a send was posted");
        };
        let (with, into, like) = match received.action {
            Action::Recv { span, .. } => (None, span, span),
            Action::RecvReduce { with, into, .. } => (Some(with), into, into),
            Action::RecvLeaf { like, into, .. } => (None, into, like),
            _ => unreachable!("a receive was posted"),
        };
        if (from.slice, sent.round, source.len) != (to.slice, received.round, into.len) {
            return Err(to.violation(format!(
                "slice, round or length differ from the message of rank {}, step {}: {sent:?} \
                 meets {received:?}",
                from.rank, from.number
            )));
        }
        let is_wide = |span: Span| span.buffer == Buffer::Scratch;
        let has_types = self.ranks[to.rank as usize].schedule.spec.is_wide;
        if has_types && is_wide(source) != is_wide(like) {
            return Err(to.violation(format!(
                "receives elements of another type: {sent:?} meets {received:?}"
            )));
        }
        for i in 0..into.len {
            let message = self.ranks[from.rank as usize].read(from, source, i)?;
            if into.buffer == Buffer::Leaves && message.chunk != like.first + i {
                return Err(to.violation(format!(
                    "keeps chunk {} as a copy of chunk {}, which may be smaller",
                    message.chunk,
                    like.first + i
                )));
            }
            let own = &mut self.ranks[to.rank as usize];
            let value = match with {
                None => message,
                Some(with) => combine(to, own.read(to, with, i)?, message)?,
            };
            own.write(to, into, i, value)?;
        }
        let mut arrival = receiver.past.clone();
        arrival.join(&sender.past.passed_on());
        for (at, past) in [(from, sender.past.clone()), (to, arrival)] {
            self.ranks[at.rank as usize].deliver(at, past);
            self.wake(at.rank, at.channel);
        }
        Ok(())
    }

    /// Checks that all ranks issued all steps and every message was received; the error names a
    /// waiting rank.
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
            return Err(Violation::of_all(format!(
                "{} messages from rank {} to rank {} have no matching {}",
                pair.posted.len(),
                between / self.ranks.len(),
                between % self.ranks.len(),
                if pair.sends { "receive" } else { "send" },
            )));
        }
        self.exposure
            .check_ended(|owner| self.ranks[owner as usize].past())
    }
}

/// Combines the values of several ranks, in the order of the canonical tree.
fn combine_all(
    at: At,
    values: impl Iterator<Item = Result<SymbolicValue, Violation>>,
) -> Result<SymbolicValue, Violation> {
    let values = values.collect::<Result<Vec<_>, _>>()?;
    SymbolicValue::tree(&values, &|left, right| combine(at, left, right))
}

fn combine(at: At, left: SymbolicValue, right: SymbolicValue) -> Result<SymbolicValue, Violation> {
    left.combined(right).ok_or_else(|| {
        at.violation(format!(
            "combines chunk {} with chunk {}",
            left.chunk, right.chunk
        ))
    })
}
