//! One rank in the symbolic execution: its memory, its steps in flight, and its progress.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::past::Past;
use super::proof::{Slices, Violation};
use super::value::SymbolicValue;
use crate::schedule::action::{Action, Buffer, Span, Step};
use crate::schedule::dependence::{BufferChunk, dependencies};
use crate::schedule::spec::{BufferCut, Schedule, Spec};
use crate::types::{Access, Collective};

/// A step of a slice.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub rank: u32,
    pub channel: u32,
    pub slice: u32,
    pub number: u32,
}

impl At {
    pub fn violation(self, what: impl Into<String>) -> Violation {
        Violation {
            at: Some((self.rank, self.channel, self.number)),
            what: what.into(),
        }
    }
}

/// One chunk of a rank's memory.
#[derive(Clone, Copy, Default)]
struct Chunk {
    value: Option<SymbolicValue>,
    /// Number of steps in flight that read the chunk.
    readers: u32,
    /// Number of steps in flight that write the chunk.
    writers: u32,
    /// The channel that touches the chunk, plus 1.
    channel: u32,
}

/// A published chunk of a rank.
#[derive(Clone, Copy)]
pub(super) struct Published {
    pub value: Option<SymbolicValue>,
    pub phase: u8,
    pub touched: Touched,
}

/// The accesses of peers to a published chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Touched {
    /// No access.
    Not,
    /// Reads by the given rank alone.
    ReadBy(u32),
    /// Reads by several ranks.
    ReadByMany,
    /// Reads by the given rank alone, which then overwrote the chunk in the given phase.
    GivenBack(u32, u8),
}

/// One channel's steps for all slices, in the order of issue, and its progress.
pub(super) struct CheckedChannel {
    /// Slice and number of each step, in the order of issue.
    order: Vec<(u32, u32)>,
    pub next: usize,
    /// The past of the next step: all steps that were waited for so far.
    pub past: Past,
    /// The past of each asynchronous step's message, by slice and number, if it was delivered.
    delivered: Vec<Option<Past>>,
    /// Whether the channel is in the list of channels to try.
    pub queued: bool,
}

/// The state of one rank.
pub(super) struct CheckedRank<'a> {
    pub schedule: &'a Schedule,
    pub waits: Vec<Vec<Vec<u32>>>,
    in_place: bool,
    memory: Vec<Chunk>,
    pub channels: Vec<CheckedChannel>,
    /// Published chunks, by slice and chunk number.
    published: Vec<Option<Published>>,
    /// The last phase published, plus 1, by slice.
    pub reached: Vec<u16>,
    /// The past that each publication passes on, by slice and phase.
    pub passed_on: BTreeMap<(u32, u8), Past>,
    /// The last phase awaited, plus 1, by slice and peer.
    awaited: Vec<u16>,
}

impl<'a> CheckedRank<'a> {
    pub fn new(
        schedule: &'a Schedule,
        in_place: bool,
        slices: Slices,
        has_clock: bool,
    ) -> CheckedRank<'a> {
        let Spec {
            rank, world_size, ..
        } = schedule.spec;
        let barrier = schedule.spec.collective == Collective::Barrier;
        let channel = |steps: &Vec<Step>| CheckedChannel {
            order: order_of_issue(steps, slices),
            next: 0,
            past: Past::new(rank, if has_clock { world_size } else { 0 }),
            delivered: vec![None; steps.len() * slices.count as usize],
            queued: false,
        };
        let (input, output) = (schedule.input.chunks(), schedule.output.chunks());
        let slots = input.max(output) as usize;
        let mut rank = CheckedRank {
            schedule,
            waits: dependencies(schedule, in_place),
            in_place,
            memory: Vec::new(),
            channels: schedule.channels.iter().map(channel).collect(),
            published: vec![None; slots * slices.count as usize],
            reached: vec![0; slices.count as usize],
            awaited: vec![0; (world_size * slices.count) as usize],
            passed_on: BTreeMap::new(),
        };
        rank.memory = vec![Chunk::default(); rank.stride() * slices.count as usize];
        if barrier || schedule.has(Buffer::Input) {
            for slice in 0..slices.count {
                for chunk in 0..schedule.input.chunks() {
                    let index = rank.index(slice, schedule.place(Buffer::Input, chunk, in_place));
                    rank.memory[index].value =
                        Some(SymbolicValue::input(schedule.spec.rank, chunk));
                }
            }
        }
        rank
    }

    /// Returns the content of a chunk.
    pub fn value(&self, slice: u32, place: BufferChunk) -> Option<SymbolicValue> {
        self.memory[self.index(slice, place)].value
    }

    /// Returns the next step that a channel issues, or `None` at the end.
    pub fn next(&self, channel: u32) -> Option<At> {
        let entry = &self.channels[channel as usize];
        entry.order.get(entry.next).map(|&(slice, number)| At {
            rank: self.schedule.spec.rank,
            channel,
            slice,
            number,
        })
    }

    pub fn step(&self, at: At) -> Step {
        self.schedule.channels[at.channel as usize][at.number as usize]
    }

    /// Whether all steps that the step depends on are complete.
    pub fn waits_are_over(&self, at: At) -> bool {
        let delivered = |&number: &u32| {
            let earlier = At { number, ..at };
            self.channels[at.channel as usize].delivered[self.step_index(earlier)].is_some()
        };
        self.waits_of(at).iter().all(delivered)
    }

    /// Marks the steps that the step waited for as no longer in flight, and joins their pasts.
    pub fn finish_waits(&mut self, at: At) {
        for index in 0..self.waits_of(at).len() {
            let earlier = At {
                number: self.waits_of(at)[index],
                ..at
            };
            self.mark(earlier, false);
            let delivered = self.step_index(earlier);
            let channel = &mut self.channels[at.channel as usize];
            if let Some(past) = &channel.delivered[delivered] {
                channel.past.join(past);
            }
        }
    }

    /// Records that the message of a step was delivered, with this past.
    pub fn deliver(&mut self, at: At, past: Past) {
        let index = self.step_index(at);
        self.channels[at.channel as usize].delivered[index] = Some(past);
    }

    /// Returns the past of all that this rank has done and received.
    pub fn past(&self) -> Past {
        let mut past = self.channels[0].past.clone();
        for channel in &self.channels {
            let delivered = channel.delivered.iter().flatten();
            delivered
                .chain([&channel.past])
                .for_each(|own| past.join(own));
        }
        past
    }

    /// Puts a copy or reduction beside messages in flight until a step that depends on it is
    /// issued: no other step relies on its completion.
    pub fn put_in_flight(&mut self, at: At) {
        if self.schedule.spec.access == Access::Messages {
            self.mark(at, true);
            let past = self.channels[at.channel as usize].past.clone();
            self.deliver(at, past);
        }
    }

    /// Rejects a step that conflicts with a step in flight, or touches another channel's chunks.
    pub fn check_conflicts(&mut self, at: At, action: &Action) -> Result<(), Violation> {
        let into = action.writes();
        for span in action.spans() {
            for i in 0..span.len {
                let index = self.place_index(at, span, i);
                let chunk = &mut self.memory[index];
                let before = std::mem::replace(&mut chunk.channel, at.channel + 1);
                if before != 0 && before != at.channel + 1 {
                    return Err(at.violation(format!(
                        "touches {:?} {}, as another channel does",
                        span.buffer,
                        span.first + i
                    )));
                }
                let chunk = self.memory[index];
                if chunk.writers > 0 || (Some(span) == into && chunk.readers > 0) {
                    return Err(at.violation(format!(
                        "touches {:?} {}, which is in flight: {action:?}",
                        span.buffer,
                        span.first + i
                    )));
                }
            }
        }
        match into {
            Some(into) => self.check_overlap(at, action, into),
            None => Ok(()),
        }
    }

    /// Reads the `i`-th chunk of a span.
    pub fn read(&self, at: At, span: Span, i: u32) -> Result<SymbolicValue, Violation> {
        let value = self.memory[self.place_index(at, span, i)].value;
        value.ok_or_else(|| {
            at.violation(format!(
                "reads {:?} {}, which is undefined",
                span.buffer,
                span.first + i
            ))
        })
    }

    /// Writes the `i`-th chunk of a span.
    pub fn write(
        &mut self,
        at: At,
        span: Span,
        i: u32,
        value: SymbolicValue,
    ) -> Result<(), Violation> {
        let chunk = span.first + i;
        let (buffer, _) = self.schedule.place(span.buffer, chunk, self.in_place);
        let cut = self.schedule.cut(span.buffer);
        if buffer == Buffer::Input {
            return Err(at.violation("writes the input"));
        }
        let spec = &self.schedule.spec;
        let is_whole = || value.sum == SymbolicValue::everybody(spec.world_size, value.chunk);
        if spec.is_wide && buffer == Buffer::Output && !is_whole() {
            return Err(at.violation("rounds a partial result"));
        }
        // Chunks of a vector that cannot be divided evenly differ by an element, and blocks need
        // not be equal.
        let sized = matches!(cut, BufferCut::Vector(_)) || buffer == Buffer::Scratch;
        let fits = match self.schedule.spec.collective {
            // Their lengths are compared on arrival.
            _ if buffer == Buffer::Leaves => true,
            Collective::Barrier => true,
            // The engine keeps only equal blocks in scratch.
            Collective::AllToAll => sized,
            Collective::Gather => value.sum == SymbolicValue::input(chunk, 0).sum,
            _ => value.chunk == chunk,
        };
        if sized && !fits {
            return Err(at.violation(format!(
                "stores chunk {} in the place of chunk {chunk}, which may be smaller",
                value.chunk
            )));
        }
        let index = self.place_index(at, span, i);
        self.memory[index].value = Some(value);
        Ok(())
    }

    /// Returns this rank's publication under a chunk number.
    pub fn published(&mut self, slice: u32, chunk: u32) -> Option<&mut Option<Published>> {
        let count = self.published.len() / self.reached.len();
        self.published[slice as usize * count..][..count].get_mut(chunk as usize)
    }

    /// Returns the last phase awaited of a peer, plus 1.
    pub fn awaited(&mut self, slice: u32, peer: u32) -> &mut u16 {
        &mut self.awaited[(slice * self.schedule.spec.world_size + peer) as usize]
    }

    fn waits_of(&self, at: At) -> &[u32] {
        &self.waits[at.channel as usize][at.number as usize]
    }

    /// Marks the step as in flight, or no longer so.
    pub fn mark(&mut self, at: At, in_flight: bool) {
        let change = |count: u32| if in_flight { count + 1 } else { count - 1 };
        let action = self.step(at).action;
        let reads = action.reads().map(|span| (span, false));
        for (span, writes) in reads.into_iter().chain([(action.writes(), true)]) {
            let Some(span) = span else { continue };
            for i in 0..span.len {
                let index = self.place_index(at, span, i);
                let chunk = &mut self.memory[index];
                let count = match writes {
                    true => &mut chunk.writers,
                    false => &mut chunk.readers,
                };
                *count = change(*count);
            }
        }
    }

    /// Checks that the spans that a step reads and writes are the same or disjoint, not shifted.
    fn check_overlap(&self, at: At, action: &Action, into: Span) -> Result<(), Violation> {
        let places = |span: Span| {
            (0..span.len).map(move |i| {
                self.schedule
                    .place(span.buffer, span.first + i, self.in_place)
            })
        };
        let (Some(first), Some(last)) = (places(into).next(), places(into).next_back()) else {
            return Ok(());
        };
        for source in action.reads().into_iter().flatten() {
            let same = places(source).eq(places(into));
            let inside = |(buffer, chunk): BufferChunk| {
                buffer == first.0 && (first.1..=last.1).contains(&chunk)
            };
            if !same && places(source).any(inside) {
                return Err(at.violation("reads and writes overlapping spans"));
            }
        }
        Ok(())
    }

    fn stride(&self) -> usize {
        self.schedule.places()
    }

    fn index(&self, slice: u32, place: BufferChunk) -> usize {
        slice as usize * self.stride() + self.schedule.number(place)
    }

    /// Returns the index of a span's `i`-th chunk in this rank's memory.
    pub fn place_index(&self, at: At, span: Span, i: u32) -> usize {
        let place = self
            .schedule
            .place(span.buffer, span.first + i, self.in_place);
        self.index(at.slice, place)
    }

    fn step_index(&self, at: At) -> usize {
        let steps = self.schedule.channels[at.channel as usize].len();
        at.slice as usize * steps + at.number as usize
    }
}

/// Returns the engine's order: by round plus the slice's delay, then slice, then step.
fn order_of_issue(steps: &[Step], slices: Slices) -> Vec<(u32, u32)> {
    let numbers = 0..steps.len() as u32;
    let all = (0..slices.count).flat_map(|slice| numbers.clone().map(move |n| (slice, n)));
    let mut order: Vec<_> = all.collect();
    if slices.count > 1 {
        order.sort_by_key(|&(slice, number)| {
            let round = steps[number as usize].round;
            (round + slice * slices.distance, slice, number)
        });
    }
    order
}
