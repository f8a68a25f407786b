//! Carrying out what stations order: what is sent, combined and signalled, and what follows when it
//! is done.

use super::places::Place;
use super::state::{DATA_CHANNEL, LateRing, Posting, Watch, input, later};
use super::station::{Interval, Order};
use super::wire::{Kind, Label};
use crate::engine::context::Context;
use crate::engine::operation::Operation;
use crate::engine::tickets;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::schedule;
use crate::transport::{Header, Post, Posted, Stream, Work, WorkKind};

impl LateRing {
    /// Carries out what the station of `chunk` has ordered.
    pub(super) fn carry_out(
        &mut self,
        slice: u32,
        chunk: usize,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        let mut at = 0;
        while let Some(order) = self.orders.get(at).copied() {
            at += 1;
            let position = self.flight(slice).stations[chunk].position();
            match order {
                Order::SendOwn { to } => {
                    let payload = operation.region(input(chunk), slice);
                    let interval = Interval::one(position);
                    let label = label(Kind::Piece, chunk, interval);
                    self.send(slice, to, label, (payload, None), operation, context)?;
                }
                Order::SendSum { to, interval } => {
                    let place = self.flight(slice).stations[chunk].held()[0].1;
                    self.send_place(slice, to, (chunk, interval, place), operation, context)?;
                }
                Order::Pass {
                    to,
                    interval,
                    place,
                } => self.send_place(slice, to, (chunk, interval, place), operation, context)?,
                Order::TellLate { interval } => {
                    let label = label(Kind::Late, chunk, interval);
                    let nothing = (Region::EMPTY, None);
                    self.send(slice, position + 1, label, nothing, operation, context)?;
                }
                Order::TellSkip => self.tell_skip(slice, chunk, operation, context)?,
                Order::Combine => self.combine(slice, chunk, operation, context)?,
            }
        }
        self.orders.clear();
        let flight = self.flight_mut(slice);
        if flight.stations[chunk].has_left() && !flight.has_left[chunk] {
            flight.has_left[chunk] = true;
            flight.open -= 1;
        }
        Ok(())
    }

    fn send_place(
        &mut self,
        slice: u32,
        to: u32,
        (chunk, interval, place): (usize, Interval, Place),
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        let bytes = operation.region(input(chunk), slice).bytes();
        let payload = context.late_merge().places.region(place, bytes);
        let label = label(Kind::Piece, chunk, interval);
        self.send(slice, to, label, (payload, Some(place)), operation, context)
    }

    /// Sends to the rank at position `to` of the label's chunk; `place` is free when that is done.
    fn send(
        &mut self,
        slice: u32,
        to: u32,
        label: Label,
        (payload, place): (Region, Option<Place>),
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        let peer = self.rank_at(to, label.chunk as usize);
        let header = header(operation, slice, label, payload)?;
        let number = self.post(Posting::Send { slice, peer, place });
        let stream = Stream {
            peer,
            channel: DATA_CHANNEL,
        };
        let ticket = tickets::ticket(operation.id, number.into());
        let posted = context
            .transport
            .post_send(Post(stream, ticket, header), payload)?;
        self.note(posted, slice, number);
        Ok(())
    }

    fn tell_skip(
        &mut self,
        slice: u32,
        chunk: usize,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        let label = label(Kind::Skip, chunk, Interval::one(0));
        let header = header(operation, slice, label, Region::EMPTY)?;
        let stream = Stream {
            peer: (self.rank + self.ranks - 1) % self.ranks,
            channel: context.late_merge().signal_channel,
        };
        self.signals = self.signals.wrapping_add(1);
        let ticket = tickets::unattended(self.signals.into());
        context
            .transport
            .post_send(Post(stream, ticket, header), Region::EMPTY)?;
        Ok(())
    }

    /// Combines what the station holds with this rank's contribution: at the owner into the output,
    /// else into the place of the first piece.
    fn combine(
        &mut self,
        slice: u32,
        chunk: usize,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        let own = operation.region(input(chunk), slice);
        let station = &self.flight(slice).stations[chunk];
        let mut operands = std::mem::take(&mut context.kept.operands);
        operands.clear();
        let places = &context.late_merge().places;
        let held = station.held().iter();
        operands.extend(held.map(|(_, place)| places.region(*place, own.bytes())));
        operands.push(own);
        let into = if station.is_owner() {
            self.output(operation, chunk, slice)
        } else {
            operands[0]
        };
        context.parallel.fold(operation.kernel(), into, &operands);
        context.kept.operands = operands;
        let watch_ps = context.late_merge().estimates.watch_ps(own.bytes());
        let watches = context.late_merge().policy.signals.watches();
        let begin = context.now;
        self.flight_mut(slice).watches.push(Watch {
            chunk,
            begin,
            until: watch_ps.filter(|_| watches).map(|ps| later(begin, ps)),
            was_late: false,
        });
        let number = self.post(Posting::Combine { slice, chunk });
        let work = Work {
            kind: WorkKind::Reduce,
            dtype: operation.call.dtype,
            bytes: own.bytes(),
        };
        let ticket = tickets::ticket(operation.id, number.into());
        let posted = context.transport.post_work(ticket, work)?;
        self.note(posted, slice, number);
        Ok(())
    }

    /// Where the result of `chunk` belongs.
    pub(super) fn output(&self, operation: &Operation, chunk: usize, slice: u32) -> Region {
        // A scattered result is one block.
        let first = if self.gathers { chunk as u32 } else { 0 };
        operation.region(schedule::output(first, 1), slice)
    }

    pub(super) fn post(&mut self, posting: Posting) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.postings.push(None);
            (self.postings.len() - 1) as u32
        });
        self.postings[number as usize] = Some(posting);
        number
    }

    /// Notes what became of something posted for `slice`.
    pub(super) fn note(&mut self, posted: Posted, slice: u32, number: u32) {
        self.flight_mut(slice).pending += 1;
        if posted == Posted::Done {
            self.done.push_back(number);
        }
    }

    /// Goes on with what is complete.
    pub(super) fn take_complete(
        &mut self,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<bool> {
        let mut progressed = false;
        while let Some(number) = self.done.pop_front() {
            progressed = true;
            let posting = self.postings[number as usize].take();
            self.free.push(number);
            let posting = posting.expect("what is complete was posted");
            self.finish(posting, operation, context)?;
        }
        Ok(progressed)
    }

    fn finish(
        &mut self,
        posting: Posting,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        match posting {
            Posting::Send { slice, peer, place } => {
                context.lateness.send_completed(peer);
                self.flight_mut(slice).finish_one();
                if let Some(place) = place {
                    context.late_merge().places.give_back(place);
                }
                Ok(())
            }
            Posting::Combine { slice, chunk } => {
                self.flight_mut(slice).finish_one();
                self.combined(slice, chunk, operation, context)
            }
            Posting::Skip(skipped) => self.take_skip(skipped, operation, context),
            arrived => self.arrived(arrived, operation, context),
        }
    }

    fn combined(
        &mut self,
        slice: u32,
        chunk: usize,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        let bytes = operation.region(input(chunk), slice).bytes();
        let flight = self.flight_mut(slice);
        let watch = flight.watches.iter().position(|watch| watch.chunk == chunk);
        let watch = watch.map(|place| flight.watches.swap_remove(place));
        let station = &flight.stations[chunk];
        let is_owner = station.is_owner();
        let kept = usize::from(!is_owner);
        let (now, state) = (context.now, context.late_merge());
        for (_, place) in &station.held()[kept..] {
            state.places.give_back(*place);
        }
        if let Some(watch) = watch {
            let Watch {
                begin, was_late, ..
            } = watch;
            state.estimates.reduced(bytes, begin, now, was_late);
        }
        self.station(slice, chunk, |station, orders| station.combined(orders));
        self.carry_out(slice, chunk, operation, context)?;
        if is_owner && self.gathers {
            self.flight_mut(slice).has_result[chunk] = true;
            self.has_result(slice, chunk, operation, context)?;
        }
        Ok(())
    }

    /// The result of `chunk` is here: it goes on to the next rank, unless that is its owner.
    pub(super) fn has_result(
        &mut self,
        slice: u32,
        chunk: usize,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        self.flight_mut(slice).results_due -= 1;
        let next = (self.rank + 1) % self.ranks;
        if next == chunk {
            return Ok(());
        }
        let to = self.position(next, chunk);
        let label = label(Kind::Result, chunk, Interval::one(0));
        let payload = (self.output(operation, chunk, slice), None);
        self.send(slice, to, label, payload, operation, context)
    }
}

fn label(kind: Kind, chunk: usize, interval: Interval) -> Label {
    Label {
        kind,
        chunk: chunk as u32,
        interval,
    }
}

fn header(operation: &Operation, slice: u32, label: Label, payload: Region) -> Result<Header> {
    let bytes = u32::try_from(payload.bytes())
        .map_err(|_| Error::Unsupported("a chunk of 4 GiB or more; lower the slice size".into()))?;
    Ok(Header {
        call: operation.call,
        slice,
        index: label.encode(),
        bytes,
    })
}
