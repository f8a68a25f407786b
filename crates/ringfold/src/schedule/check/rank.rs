//! One rank in the symbolic execution: its memory, what it has in flight, and how far it came.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::past::Past;
use super::proof::{Slices, Violation};
use super::value::Value;
use crate::schedule::action::{Action, Buffer, Span, Step};
use crate::schedule::dependence::{Place, dependencies};
use crate::schedule::spec::{Cut, Schedule, Spec};
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
    value: Option<Value>,
    /// Steps in flight that read it.
    readers: u32,
    /// Steps in flight that write it.
    writers: u32,
    /// The channel that touches it, plus 1.
    channel: u32,
}

/// A chunk as its rank published it.
#[derive(Clone, Copy)]
pub(super) struct Published {
    pub value: Option<Value>,
    pub phase: u8,
    pub touched: Touched,
}

/// What peers have done with a published chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Touched {
    /// Nothing.
    Not,
    /// Read by this rank, and by no other.
    ReadBy(u32),
    /// Several have read it.
    ReadByMany,
    /// This one has read it, and overwritten it in this phase.
    GivenBack(u32, u8),
}

/// One channel's steps for all slices in the order of issue, and how far it came.
pub(super) struct Channel {
    /// Slice and number of each step.
    order: Vec<(u32, u32)>,
    pub next: usize,
    /// What lies behind the next step: all that was waited for so far.
    pub past: Past,
    /// Of each asynchronous step, by slice and number: what lies behind its message, if it was
    /// delivered.
    delivered: Vec<Option<Past>>,
    /// Whether it waits in the list of channels to try.
    pub queued: bool,
}

/// One rank.
pub(super) struct Rank<'a> {
    pub schedule: &'a Schedule,
    pub waits: Vec<Vec<Vec<u32>>>,
    in_place: bool,
    memory: Vec<Chunk>,
    pub channels: Vec<Channel>,
    /// By slice and chunk number.
    published: Vec<Option<Published>>,
    /// By slice: the last phase published, plus 1.
    pub reached: Vec<u16>,
    /// What each publication passes on, by slice and phase.
    pub passed_on: BTreeMap<(u32, u8), Past>,
    /// By slice and peer: the last phase awaited, plus 1.
    awaited: Vec<u16>,
}

impl<'a> Rank<'a> {
    pub fn new(
        schedule: &'a Schedule,
        in_place: bool,
        slices: Slices,
        has_clock: bool,
    ) -> Rank<'a> {
        let Spec {
            rank, world_size, ..
        } = schedule.spec;
        let barrier = schedule.spec.collective == Collective::Barrier;
        let channel = |steps: &Vec<Step>| Channel {
            order: order_of_issue(steps, slices),
            next: 0,
            past: Past::new(rank, if has_clock { world_size } else { 0 }),
            delivered: vec![None; steps.len() * slices.count as usize],
            queued: false,
        };
        let (input, output) = (schedule.input.chunks(), schedule.output.chunks());
        let slots = match schedule.apart {
            true => input + output,
            false => input.max(output),
        } as usize;
        let mut rank = Rank {
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
                    rank.memory[index].value = Some(Value::input(schedule.spec.rank, chunk));
                }
            }
        }
        rank
    }

    /// The content of a chunk.
    pub fn value(&self, slice: u32, place: Place) -> Option<Value> {
        self.memory[self.index(slice, place)].value
    }

    /// The step that a channel issues next, if it is not done.
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

    /// Whether everything that the step depends on is complete.
    pub fn waits_are_over(&self, at: At) -> bool {
        let delivered = |&number: &u32| {
            let earlier = At { number, ..at };
            self.channels[at.channel as usize].delivered[self.step_index(earlier)].is_some()
        };
        self.waits_of(at).iter().all(delivered)
    }

    /// What the step waited for is no longer in flight.
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

    /// The message of a step was delivered, with this behind it.
    pub fn deliver(&mut self, at: At, past: Past) {
        let index = self.step_index(at);
        self.channels[at.channel as usize].delivered[index] = Some(past);
    }

    /// What lies behind everything that this rank has.
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

    /// A copy or reduction next to messages is in flight until a step that depends on it is issued:
    /// no other step relies on its completion.
    pub fn put_in_flight(&mut self, at: At) {
        if self.schedule.spec.access == Access::Messages {
            self.mark(at, true);
            let past = self.channels[at.channel as usize].past.clone();
            self.deliver(at, past);
        }
    }

    /// Refuses a step that touches what is in flight, or another channel's chunks.
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
    pub fn read(&self, at: At, span: Span, i: u32) -> Result<Value, Violation> {
        let value = self.memory[self.place_index(at, span, i)].value;
        value.ok_or_else(|| {
            at.violation(format!(
                "reads {:?} {}, which holds nothing yet",
                span.buffer,
                span.first + i
            ))
        })
    }

    /// Writes the `i`-th chunk of a span.
    pub fn write(&mut self, at: At, span: Span, i: u32, value: Value) -> Result<(), Violation> {
        let chunk = span.first + i;
        let (buffer, _) = self.schedule.place(span.buffer, chunk, self.in_place);
        let cut = self.schedule.cut(span.buffer);
        if buffer == Buffer::Input {
            return Err(at.violation("writes the input"));
        }
        // Chunks of a vector differ by an element if it cannot be divided evenly, and blocks need
        // not be equal.
        let sized = matches!(cut, Cut::Vector(_)) || buffer == Buffer::Scratch;
        let fits = match self.schedule.spec.collective {
            Collective::Barrier => true,
            // The engine keeps in scratch only blocks that are equal.
            Collective::AllToAll => sized,
            Collective::Gather => value.sum == Value::input(chunk, 0).sum,
            _ => value.chunk == chunk,
        };
        if sized && !fits {
            return Err(at.violation(format!(
                "puts chunk {} in the place of chunk {chunk}, which may be smaller",
                value.chunk
            )));
        }
        let index = self.place_index(at, span, i);
        self.memory[index].value = Some(value);
        Ok(())
    }

    /// What this rank published under a chunk number, of `Output` or of the others.
    pub fn published(
        &mut self,
        slice: u32,
        buffer: Buffer,
        chunk: u32,
    ) -> Option<&mut Option<Published>> {
        // Chunks of the output stand behind those of the input, if they are apart.
        let chunk = match (self.schedule.apart, buffer) {
            (true, Buffer::Output) => self.schedule.input.chunks() + chunk,
            (true, _) if chunk >= self.schedule.input.chunks() => return None,
            _ => chunk,
        };
        let count = self.published.len() / self.reached.len();
        self.published[slice as usize * count..][..count].get_mut(chunk as usize)
    }

    /// The last phase awaited of a peer, plus 1.
    pub fn awaited(&mut self, slice: u32, peer: u32) -> &mut u16 {
        &mut self.awaited[(slice * self.schedule.spec.world_size + peer) as usize]
    }

    fn waits_of(&self, at: At) -> &[u32] {
        &self.waits[at.channel as usize][at.number as usize]
    }

    /// From now on the step is in flight, or no longer.
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

    /// What is read and written by one step must be the same chunks or different ones, not shifted.
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
            let inside =
                |(buffer, chunk): Place| buffer == first.0 && (first.1..=last.1).contains(&chunk);
            if !same && places(source).any(inside) {
                return Err(at.violation("reads and writes overlapping spans"));
            }
        }
        Ok(())
    }

    fn stride(&self) -> usize {
        self.schedule.places()
    }

    fn index(&self, slice: u32, place: Place) -> usize {
        slice as usize * self.stride() + self.schedule.number(place)
    }

    /// The number of a span's `i`-th chunk among those of this rank's memory.
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

/// The engine's order: by round plus the slice's delay, then slice, then step.
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
