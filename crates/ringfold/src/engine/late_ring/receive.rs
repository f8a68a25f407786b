//! Receives the messages of a late-merge call. Everything in a header is a claim until it is
//! checked here.

use super::attempt::RingAttempt;
use super::state::{ArrivingMessage, LateRing, Posting, SliceChunk, data_stream};
use super::wire::{Label, MessageKind};
use crate::engine::context::{Context, scratch};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::transport::{Head, Header, Post, Posted, Sink, mismatch};

impl RingAttempt<'_> {
    /// Receives the messages of this call that have arrived; returns whether there were any.
    pub(super) fn take_messages(&mut self) -> Result<bool> {
        let mut progressed = false;
        for place in 0..self.ring.peers.len() {
            let peer = self.ring.peers[place];
            while !self.ring.is_arriving[peer] && self.take_message(peer)? {
                progressed = true;
            }
        }
        Ok(progressed)
    }

    /// Begins to receive the message at the head of `peer`'s stream, if there is one of this call.
    fn take_message(&mut self, peer: usize) -> Result<bool> {
        let stream = data_stream(peer);
        let header = match self.context.transport.head(stream)? {
            Head::Nothing => return Ok(false),
            Head::Message(header) => header,
            // Completed postings are processed first: they may be all that was due.
            Head::End(_) if !self.ring.done.is_empty() => return Ok(false),
            Head::End(_) if !self.ring.awaited().contains(&peer) => return Ok(false),
            Head::End(reason) => return Err(Error::peer_failed(peer, reason)),
        };
        let Some(label) = self.judge(peer, &header)? else {
            return Ok(false);
        };
        let part = SliceChunk {
            slice: header.slice,
            chunk: label.chunk as usize,
        };
        let due = match label.kind {
            MessageKind::Piece | MessageKind::Result => self.own(part).bytes(),
            MessageKind::Late | MessageKind::Skip => 0,
        };
        if header.bytes as usize != due {
            return Err(Error::corrupt(peer, "a chunk with the wrong length"));
        }
        self.ring.check_sender(peer, &label)?;
        let (arrival, into) = self.admit(part, peer, label)?;
        self.ring.flight_mut(part.slice).pending += 1;
        let posting = Posting::Arrival(part, peer, arrival);
        let posted = self.post(posting, |transport, ticket| {
            transport.post_recv(Post(stream, ticket, header), Sink::Store(into))
        })?;
        self.ring.is_arriving[peer] = posted == Posted::Pending;
        Ok(true)
    }

    /// Admits a message of `part`; returns its meaning and the destination of its bytes.
    fn admit(
        &mut self,
        part: SliceChunk,
        peer: usize,
        label: Label,
    ) -> Result<(ArrivingMessage, Region)> {
        let interval = label.interval;
        match label.kind {
            MessageKind::Piece => {
                let (station, _) = self.ring.station(part);
                let admitted = station.admit(interval);
                admitted.map_err(|what| Error::corrupt(peer, what))?;
                let position = station.position();
                self.heard(part.slice, position, true);
                let bytes = self.own(part).bytes();
                let Context {
                    pool, transport, ..
                } = &mut *self.context;
                let places = &mut self.state.places;
                let place = places.take(|bytes| scratch(pool, transport.as_mut(), bytes));
                let piece = ArrivingMessage::Piece(interval, place);
                Ok((piece, places.region(place, bytes)))
            }
            MessageKind::Late => Ok((ArrivingMessage::Late(interval), Region::EMPTY)),
            MessageKind::Result => {
                let flight = self.ring.flight_mut(part.slice);
                if flight.has_result[part.chunk] || flight.stations[part.chunk].has_own() {
                    return Err(Error::corrupt(peer, "an unexpected result"));
                }
                flight.has_result[part.chunk] = true;
                Ok((ArrivingMessage::Result, self.output(part)))
            }
            MessageKind::Skip => Err(Error::corrupt(peer, "a SKIP signal on the data channel")),
        }
    }

    /// Returns the label of a message of this call and of a slice in flight; `None` if the message
    /// is for later.
    fn judge(&self, peer: usize, header: &Header) -> Result<Option<Label>> {
        let (theirs, mine) = (&header.call, &self.operation.call);
        if theirs.sequence > mine.sequence {
            return Ok(None);
        }
        if theirs.sequence < mine.sequence {
            return Err(Error::corrupt(peer, "a message of a finished call"));
        }
        if theirs != mine {
            return Err(mismatch([self.ring.rank, peer], [mine, theirs]));
        }
        let label = Label::decode(header.index);
        if header.slice >= self.ring.slices || label.chunk as usize >= self.ring.ranks {
            return Err(Error::corrupt(peer, "an invalid chunk or slice number"));
        }
        if header.slice < self.ring.retired {
            return Err(Error::corrupt(peer, "a message of a finished slice"));
        }
        Ok((header.slice < self.ring.begun).then_some(label))
    }

    /// Handles a message that has arrived completely.
    pub(super) fn arrived(
        &mut self,
        part: SliceChunk,
        peer: usize,
        arrival: ArrivingMessage,
    ) -> Result<()> {
        self.context.lateness.peer_arrived(peer);
        self.ring.flight_mut(part.slice).pending -= 1;
        let (station, orders) = self.ring.station(part);
        match arrival {
            ArrivingMessage::Piece(interval, place) => station.landed(interval, place, orders),
            ArrivingMessage::Late(interval) => {
                let heeded = station.on_late(interval, orders);
                heeded.map_err(|what| Error::corrupt(peer, what))?;
                let (position, has_own) = (station.position(), station.has_own());
                self.carry_out(part)?;
                if !has_own {
                    self.heard(part.slice, position, false);
                }
                return Ok(());
            }
            ArrivingMessage::Result => return self.has_result(part),
        }
        self.carry_out(part)
    }

    /// Receives the `SKIP` signals that have arrived; returns whether there were any.
    pub(super) fn take_skips(&mut self) -> Result<bool> {
        let mut progressed = false;
        let stream = self.ring.skip_stream(self.state);
        while !self.ring.is_skip_arriving {
            let Head::Message(header) = self.context.transport.head(stream)? else {
                break;
            };
            let (theirs, mine) = (&header.call, &self.operation.call);
            if theirs.sequence > mine.sequence {
                break;
            }
            let label = Label::decode(header.index);
            let (slice, chunk) = (header.slice, label.chunk as usize);
            if label.kind != MessageKind::Skip || header.bytes != 0 || chunk >= self.ring.ranks {
                return Err(Error::corrupt(stream.peer, "an invalid signal"));
            }
            let is_ours = theirs == mine;
            if is_ours && slice >= self.ring.begun {
                break;
            }
            let skipped = is_ours.then_some(SliceChunk { slice, chunk });
            let posted = self.post(Posting::Skip(skipped), |transport, ticket| {
                transport.post_recv(Post(stream, ticket, header), Sink::Store(Region::EMPTY))
            })?;
            progressed = true;
            self.ring.is_skip_arriving = posted == Posted::Pending;
            if posted == Posted::Done {
                // The signal takes effect before anything else is sent.
                self.take_complete()?;
            }
        }
        Ok(progressed)
    }

    /// Handles the next rank's `SKIP`, unless its slice or call is over.
    pub(super) fn take_skip(&mut self, skipped: Option<SliceChunk>) -> Result<()> {
        let Some(part) = skipped.filter(|part| part.slice >= self.ring.retired) else {
            return Ok(());
        };
        let (station, orders) = self.ring.station(part);
        station.on_skip(orders);
        self.carry_out(part)
    }
}

impl LateRing {
    /// Checks that `peer` can be the sender of a message with this label.
    fn check_sender(&self, peer: usize, label: &Label) -> Result<()> {
        let chunk = label.chunk as usize;
        let sender = self.position(peer, chunk);
        let receiver = self.position(self.rank, chunk);
        let is_next = (peer + 1) % self.ranks == self.rank;
        let is_sane = match label.kind {
            MessageKind::Piece => label.interval.last <= sender && sender < receiver,
            MessageKind::Late => label.interval.last == sender && is_next,
            MessageKind::Result => is_next && self.gathers,
            MessageKind::Skip => false,
        };
        match is_sane {
            true => Ok(()),
            false => Err(Error::corrupt(
                peer,
                "a message that its sender must not send",
            )),
        }
    }
}
