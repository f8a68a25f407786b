//! What comes to a late-merge call, and what is made of it. Everything in a header is a claim until
//! it is checked here.

use super::state::{DATA_CHANNEL, LateRing, Posting, input};
use super::station::Station;
use super::wire::{Kind, Label};
use crate::engine::context::Context;
use crate::engine::operation::Operation;
use crate::engine::tickets;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::transport::{Head, Header, Post, Posted, Sink, Stream, mismatch};

/// What is to be done about the message at the head of a stream.
enum Verdict {
    /// It is for later.
    Leave,
    /// It is of this call, and says this.
    Take(Label),
}

impl LateRing {
    /// Takes what has come of this call; whether that was anything.
    pub(super) fn take_messages(
        &mut self,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<bool> {
        let mut progressed = false;
        for place in 0..self.peers.len() {
            let peer = self.peers[place];
            while !self.is_arriving[peer] && self.take_message(peer, operation, context)? {
                progressed = true;
            }
        }
        Ok(progressed)
    }

    /// Begins to receive the message at the head of `peer`'s stream, if there is one of this call.
    fn take_message(
        &mut self,
        peer: usize,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<bool> {
        let stream = Stream {
            peer,
            channel: DATA_CHANNEL,
        };
        let header = match context.transport.head(stream)? {
            Head::Nothing => return Ok(false),
            Head::Message(header) => header,
            Head::End(_) if !self.waiting_for().contains(&peer) => return Ok(false),
            Head::End(reason) => {
                return Err(Error::peer_failed(peer, reason));
            }
        };
        let Verdict::Take(label) = self.judge(peer, &header, operation)? else {
            return Ok(false);
        };
        let slice = header.slice;
        let bytes = operation.region(input(label.chunk as usize), slice).bytes();
        let has_data = matches!(label.kind, Kind::Piece | Kind::Result);
        if header.bytes as usize != if has_data { bytes } else { 0 } {
            return Err(Error::corrupt(peer, "a chunk of another length"));
        }
        self.check_sender(peer, &label)?;
        let (posting, into) = self.admit(slice, peer, label, operation, context)?;
        let number = self.post(posting);
        let ticket = tickets::ticket(operation.id, number.into());
        let sink = Sink::Store(into);
        let posted = context
            .transport
            .post_recv(Post(stream, ticket, header), sink)?;
        self.is_arriving[peer] = posted == Posted::Pending;
        self.note(posted, slice, number);
        Ok(true)
    }

    /// What is posted for a message that says `label`, and where its bytes go.
    fn admit(
        &mut self,
        slice: u32,
        peer: usize,
        label: Label,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<(Posting, Region)> {
        let (chunk, interval) = (label.chunk as usize, label.interval);
        match label.kind {
            Kind::Piece => {
                let station = &mut self.flight_mut(slice).stations[chunk];
                station
                    .admit(interval)
                    .map_err(|what| Error::corrupt(peer, what))?;
                let position = station.position();
                self.heard(slice, position, true, operation, context);
                let bytes = operation.region(input(chunk), slice).bytes();
                let pool = context.pool.clone();
                let places = &mut context.late_merge().places;
                let place = places.take(&pool);
                let into = places.region(place, bytes);
                let piece = Posting::Piece {
                    slice,
                    chunk,
                    peer,
                    interval,
                    place,
                };
                Ok((piece, into))
            }
            Kind::Late => {
                let late = Posting::Late {
                    slice,
                    chunk,
                    peer,
                    interval,
                };
                Ok((late, Region::EMPTY))
            }
            Kind::Result => {
                let flight = self.flight_mut(slice);
                if flight.has_result[chunk] || flight.stations[chunk].has_own() {
                    return Err(Error::corrupt(peer, "a result that cannot be there"));
                }
                flight.has_result[chunk] = true;
                let into = self.output(operation, chunk, slice);
                Ok((Posting::Result { slice, chunk, peer }, into))
            }
            Kind::Skip => Err(Error::corrupt(peer, "a signal among pieces")),
        }
    }

    /// Whether a message is of this call and of a slice under way.
    fn judge(&self, peer: usize, header: &Header, operation: &Operation) -> Result<Verdict> {
        let (theirs, mine) = (&header.call, &operation.call);
        if theirs.sequence > mine.sequence {
            return Ok(Verdict::Leave);
        }
        if theirs.sequence < mine.sequence {
            return Err(Error::corrupt(peer, "a message of a call that is over"));
        }
        if theirs != mine {
            return Err(mismatch([self.rank, peer], [mine, theirs]));
        }
        let label = Label::decode(header.index);
        if header.slice >= self.slices || label.chunk as usize >= self.ranks {
            return Err(Error::corrupt(peer, "a chunk or slice that does not exist"));
        }
        if header.slice >= self.begun {
            return Ok(Verdict::Leave);
        }
        if header.slice < self.retired {
            return Err(Error::corrupt(peer, "a message of a slice that is over"));
        }
        Ok(Verdict::Take(label))
    }

    /// Checks that a message could come from this rank.
    fn check_sender(&self, peer: usize, label: &Label) -> Result<()> {
        let chunk = label.chunk as usize;
        let sender = self.position(peer, chunk);
        let receiver = self.position(self.rank, chunk);
        let is_next = (peer + 1) % self.ranks == self.rank;
        let is_sane = match label.kind {
            Kind::Piece => label.interval.last <= sender && sender < receiver,
            Kind::Late => label.interval.last == sender && is_next,
            Kind::Result => is_next && self.gathers,
            Kind::Skip => false,
        };
        if is_sane {
            Ok(())
        } else {
            Err(Error::corrupt(
                peer,
                "a message that is not this rank's to send",
            ))
        }
    }

    /// A message that was begun is here whole.
    pub(super) fn arrived(
        &mut self,
        posting: Posting,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        let (slice, chunk, peer) = match posting {
            Posting::Piece {
                slice, chunk, peer, ..
            }
            | Posting::Late {
                slice, chunk, peer, ..
            }
            | Posting::Result { slice, chunk, peer } => (slice, chunk, peer),
            _ => return Ok(()),
        };
        context.lateness.peer_arrived(peer);
        self.flight_mut(slice).finish_one();
        match posting {
            Posting::Piece {
                interval, place, ..
            } => self.station(slice, chunk, |station, orders| {
                station.landed(interval, place, orders);
            }),
            Posting::Late { interval, .. } => {
                let late = |station: &mut Station, orders: &mut _| {
                    let heeded = station.on_late(interval, orders);
                    heeded.map(|()| (station.position(), station.has_own()))
                };
                let (position, has_own) = self
                    .station(slice, chunk, late)
                    .map_err(|what| Error::corrupt(peer, what))?;
                if !has_own {
                    self.carry_out(slice, chunk, operation, context)?;
                    self.heard(slice, position, false, operation, context);
                }
            }
            _ => return self.has_result(slice, chunk, operation, context),
        }
        self.carry_out(slice, chunk, operation, context)
    }

    /// Takes the signals that have come; whether there were any.
    pub(super) fn take_skips(
        &mut self,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<bool> {
        let mut progressed = false;
        let stream = self.skip_stream(context.late_merge());
        while !self.is_skip_arriving {
            let Head::Message(header) = context.transport.head(stream)? else {
                break;
            };
            let (theirs, mine) = (&header.call, &operation.call);
            if theirs.sequence > mine.sequence {
                break;
            }
            let label = Label::decode(header.index);
            let is_sane = label.kind == Kind::Skip && header.bytes == 0;
            if !is_sane || (label.chunk as usize) >= self.ranks {
                return Err(Error::corrupt(stream.peer, "a signal that means nothing"));
            }
            let is_ours = theirs == mine;
            if is_ours && header.slice >= self.begun {
                break;
            }
            let skipped = is_ours.then_some((header.slice, label.chunk as usize));
            let number = self.post(Posting::Skip(skipped));
            let ticket = tickets::ticket(operation.id, number.into());
            let sink = Sink::Store(Region::EMPTY);
            let posted = context
                .transport
                .post_recv(Post(stream, ticket, header), sink)?;
            progressed = true;
            self.is_skip_arriving = posted == Posted::Pending;
            if posted == Posted::Done {
                self.done.push_back(number);
                // Before anything else leaves.
                self.take_complete(operation, context)?;
            }
        }
        Ok(progressed)
    }

    /// The next rank has split, unless the slice or call that it is about is over.
    pub(super) fn take_skip(
        &mut self,
        skipped: Option<(u32, usize)>,
        operation: &Operation,
        context: &mut Context,
    ) -> Result<()> {
        let Some((slice, chunk)) = skipped.filter(|(slice, _)| *slice >= self.retired) else {
            return Ok(());
        };
        self.station(slice, chunk, |station, orders| station.on_skip(orders));
        self.carry_out(slice, chunk, operation, context)
    }
}
