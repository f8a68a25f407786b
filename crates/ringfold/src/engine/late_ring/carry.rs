//! Carries out the orders of stations: sends, reductions and signals, and the next steps when these
//! are complete.

use super::attempt::RingAttempt;
use super::places::PlaceNumber;
use super::state::{Posting, ReductionWatch, SliceChunk, data_stream, later};
use super::station::{Interval, StationOrder};
use super::wire::{Label, MessageKind};
use crate::engine::tickets;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::transport::{EngineWork, Header, Post, StreamId, WorkKind};

impl RingAttempt<'_> {
    /// Carries out the orders of `part`'s station.
    pub(super) fn carry_out(&mut self, part: SliceChunk) -> Result<()> {
        let mut at = 0;
        while let Some(order) = self.ring.orders.get(at).copied() {
            at += 1;
            let (station, _) = self.ring.station(part);
            let position = station.position();
            let (to, kind, interval, place) = match order {
                StationOrder::SendOwn { to } => {
                    (to, MessageKind::Piece, Interval::one(position), None)
                }
                StationOrder::SendSum { to, interval } => {
                    (to, MessageKind::Piece, interval, Some(station.held()[0].1))
                }
                StationOrder::Pass {
                    to,
                    interval,
                    place,
                } => (to, MessageKind::Piece, interval, Some(place)),
                StationOrder::TellLate { interval } => {
                    (position + 1, MessageKind::Late, interval, None)
                }
                StationOrder::TellSkip => {
                    self.tell_skip(part)?;
                    continue;
                }
                StationOrder::Combine => {
                    self.combine(part)?;
                    continue;
                }
            };
            self.send(part, to, (kind, interval), place)?;
        }
        self.ring.orders.clear();
        let flight = self.ring.flight_mut(part.slice);
        if flight.stations[part.chunk].has_left() && !flight.has_left[part.chunk] {
            flight.has_left[part.chunk] = true;
            flight.open -= 1;
        }
        Ok(())
    }

    /// Sends a message of `part` to the rank at position `to`. A piece is the content of `place`,
    /// which is released when the send is complete, or, without a place, this rank's contribution.
    fn send(
        &mut self,
        part: SliceChunk,
        to: u32,
        (kind, interval): (MessageKind, Interval),
        place: Option<PlaceNumber>,
    ) -> Result<()> {
        let own = self.own(part);
        let payload = match (kind, place) {
            (MessageKind::Piece, None) => own,
            (MessageKind::Piece, Some(place)) => self.state.places.region(place, own.bytes()),
            (MessageKind::Result, _) => self.output(part),
            (MessageKind::Late | MessageKind::Skip, _) => Region::EMPTY,
        };
        let peer = self.ring.rank_at(to, part.chunk);
        let header = self.header(part, (kind, interval), payload)?;
        self.ring.flight_mut(part.slice).pending += 1;
        let posting = Posting::Send(part.slice, peer, place);
        self.post(posting, |transport, ticket| {
            transport.post_send(Post(data_stream(peer), ticket, header), payload)
        })?;
        Ok(())
    }

    fn tell_skip(&mut self, part: SliceChunk) -> Result<()> {
        let header = self.header(part, (MessageKind::Skip, Interval::one(0)), Region::EMPTY)?;
        let stream = StreamId {
            peer: (self.ring.rank + self.ring.ranks - 1) % self.ring.ranks,
            channel: self.state.signal_channel,
        };
        self.ring.signals = self.ring.signals.wrapping_add(1);
        let post = Post(
            stream,
            tickets::unattended(self.ring.signals.into()),
            header,
        );
        self.context.transport.post_send(post, Region::EMPTY)?;
        Ok(())
    }

    /// Returns the header of a message of `part`.
    fn header(
        &self,
        part: SliceChunk,
        (kind, interval): (MessageKind, Interval),
        payload: Region,
    ) -> Result<Header> {
        let bytes = u32::try_from(payload.bytes()).map_err(|_| {
            Error::Unsupported("a chunk of 4 GiB or more; lower the slice size".into())
        })?;
        let label = Label {
            kind,
            chunk: part.chunk as u32,
            interval,
        };
        Ok(Header {
            call: self.operation.call,
            slice: part.slice,
            index: label.encode(),
            bytes,
        })
    }

    /// Combines the station's pieces with this rank's contribution: at the owner into the output,
    /// else into the place of the first piece.
    fn combine(&mut self, part: SliceChunk) -> Result<()> {
        let own = self.own(part);
        let mut operands = std::mem::take(&mut self.context.operands);
        operands.clear();
        let places = &self.state.places;
        let (station, _) = self.ring.station(part);
        let held = station.held().iter();
        operands.extend(held.map(|(_, place)| places.region(*place, own.bytes())));
        operands.push(own);
        let into = match station.is_owner() {
            true => self.output(part),
            false => operands[0],
        };
        let kernel = self.operation.kernel();
        self.context.parallel.fold(kernel, into, &operands);
        self.context.operands = operands;
        let (begin, state) = (self.context.now, &*self.state);
        let watch_ps = state.estimates.watch_ps(own.bytes());
        let watches = state.policy.signals.watches();
        let flight = self.ring.flight_mut(part.slice);
        flight.watches.push(ReductionWatch {
            chunk: part.chunk,
            begin,
            until: watch_ps.filter(|_| watches).map(|ps| later(begin, ps)),
            was_late: false,
        });
        flight.pending += 1;
        let work = EngineWork {
            kind: WorkKind::Reduce,
            dtype: self.operation.call.dtype,
            bytes: own.bytes(),
        };
        self.post(Posting::Combine(part), |transport, ticket| {
            transport.post_work(ticket, work)
        })?;
        Ok(())
    }

    /// Continues with all completed postings; returns whether there were any.
    pub(super) fn take_complete(&mut self) -> Result<bool> {
        let mut progressed = false;
        while let Some(number) = self.ring.done.pop_front() {
            progressed = true;
            let posting = self.ring.postings[number as usize].take();
            self.ring.free.push(number);
            match posting.expect("completed tickets were posted") {
                Posting::Send(slice, peer, place) => {
                    self.context.lateness.send_completed(peer);
                    self.ring.flight_mut(slice).pending -= 1;
                    if let Some(place) = place {
                        self.state.places.give_back(place);
                    }
                }
                Posting::Combine(part) => self.combined(part)?,
                Posting::Arrival(part, peer, arrival) => self.arrived(part, peer, arrival)?,
                Posting::Skip(skipped) => self.take_skip(skipped)?,
            }
        }
        Ok(progressed)
    }

    fn combined(&mut self, part: SliceChunk) -> Result<()> {
        let bytes = self.own(part).bytes();
        let flight = self.ring.flight_mut(part.slice);
        flight.pending -= 1;
        let is_it = |watch: &ReductionWatch| watch.chunk == part.chunk;
        let watch = flight.watches.iter().position(is_it);
        let watch = watch.map(|place| flight.watches.swap_remove(place));
        let (now, state) = (self.context.now, &mut *self.state);
        let (station, orders) = self.ring.station(part);
        let is_owner = station.is_owner();
        for (_, place) in &station.held()[usize::from(!is_owner)..] {
            state.places.give_back(*place);
        }
        if let Some(ReductionWatch {
            begin, was_late, ..
        }) = watch
        {
            state.estimates.reduced(bytes, begin, now, was_late);
        }
        station.combined(orders);
        self.carry_out(part)?;
        if is_owner && self.ring.gathers {
            self.ring.flight_mut(part.slice).has_result[part.chunk] = true;
            self.has_result(part)?;
        }
        Ok(())
    }

    /// Sends the result of `part`, which is complete here, to the next rank, unless that rank is
    /// its owner.
    pub(super) fn has_result(&mut self, part: SliceChunk) -> Result<()> {
        self.ring.flight_mut(part.slice).results_due -= 1;
        let next = (self.ring.rank + 1) % self.ring.ranks;
        if next == part.chunk {
            return Ok(());
        }
        let to = self.ring.position(next, part.chunk);
        self.send(part, to, (MessageKind::Result, Interval::one(0)), None)
    }
}
