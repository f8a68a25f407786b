//! The receiving half of a link: expected messages in order, messages that arrive for them or
//! before them, and grants to the peer.
//!
//! Everything from the peer is a claim: numbers, lengths and headers are compared with the expected
//! ones before they are used.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::memory::Window;
use super::outgoing::{BEGUN_MAX, CREDITS, GRANTS_MAX};
use super::packet::{PAYLOAD_AT, Packet, WHOLE_BYTES_MAX};
use crate::error::{Error, Result};
use crate::transport::{HEADER_BYTES, Head, Header, Post, Sink, Ticket};
use crate::verbs::RemoteAddress;

/// An expected message.
pub struct Recv {
    pub ticket: Ticket,
    pub header: Header,
    pub sink: Sink,
    /// Bytes granted to the peer; `absorbed` counts those that have arrived.
    pub granted: usize,
    pub absorbed: usize,
    /// Whether the peer has announced the message, and writes once granted.
    pub is_begun: bool,
    pub is_done: bool,
}

/// A message that has arrived or been announced.
pub struct Arrived {
    pub number: u32,
    pub header: [u8; HEADER_BYTES],
    /// Cell of the packet, if it contains the payload.
    pub cell: Option<u32>,
}

impl Arrived {
    /// Checks that a short message, in a packet of `packet_bytes`, has the length in its header.
    pub fn check_length(&self, packet_bytes: usize, peer: usize) -> Result<()> {
        if self.cell.is_none() {
            return Ok(());
        }
        let header = Header::claimed(&self.header, peer)?;
        if packet_bytes.checked_sub(PAYLOAD_AT) == Some(header.bytes as usize) {
            return Ok(());
        }
        let what = "message length differs from its header";
        Err(Error::corrupt(peer, what))
    }
}

/// A part of a message that the peer may write.
pub struct GrantedPart {
    pub number: u32,
    pub range: Range<usize>,
    pub to: Landing,
}

/// Destination of a part.
pub enum Landing {
    /// The piece with this number.
    Piece(u32),
    /// The message's destination, in a window that stays registered meanwhile.
    Window { _window: Arc<Window> },
}

#[derive(Default)]
pub struct Incoming {
    pub queue: VecDeque<Recv>,
    /// Number of the queue's first message.
    pub first: u32,
    /// Number of messages at the queue's front that need no more grants.
    pub satisfied: usize,
    pub arrived: VecDeque<Arrived>,
    pub granted: VecDeque<GrantedPart>,
    /// Number that the next write must have.
    pub sequence: u32,
    /// Number of short messages taken; `told` is the number known to the peer. Modulo 2^32.
    pub consumed: u32,
    pub told: u32,
    /// Whether the peer has said goodbye.
    pub is_over: bool,
}

impl Incoming {
    /// Returns the number of the message that is posted next.
    fn next(&self) -> u32 {
        self.first.wrapping_add(self.queue.len() as u32)
    }

    /// Posts a receive; returns its message if one has arrived or been announced.
    pub fn post(
        &mut self,
        Post(_, ticket, header): Post,
        sink: Sink,
        peer: usize,
    ) -> Result<Option<Arrived>> {
        let number = self.next();
        self.queue.push_back(Recv {
            ticket,
            header,
            sink,
            granted: 0,
            absorbed: 0,
            is_begun: false,
            is_done: false,
        });
        let Some(first) = self.arrived.front() else {
            return Ok(None);
        };
        if first.number != number {
            return Err(Error::corrupt(peer, "missing message"));
        }
        Ok(self.arrived.pop_front())
    }

    /// Returns an arrived message with its place in the queue. If no receive is posted for the
    /// message, keeps it and returns `None`.
    pub fn place(&mut self, arrived: Arrived, peer: usize) -> Result<Option<(usize, Arrived)>> {
        let place = arrived.number.wrapping_sub(self.first) as usize;
        if place < self.queue.len() {
            return Ok(Some((place, arrived)));
        }
        let newest = self.arrived.back().map(|newest| newest.number);
        let due = newest.map_or(self.next(), |newest| newest.wrapping_add(1));
        let is_flood = self.arrived.len() >= CREDITS as usize + BEGUN_MAX;
        if arrived.number != due || is_flood {
            return Err(Error::corrupt(peer, "message out of order"));
        }
        self.arrived.push_back(arrived);
        Ok(None)
    }

    /// Compares an arrived message with the one expected at `place`.
    pub fn compare(&self, place: usize, arrived: &Arrived, ranks: [usize; 2]) -> Result<()> {
        let [from, to] = ranks;
        let recv = &self.queue[place];
        recv.header.expect(&arrived.header, from, to)?;
        let is_short = recv.sink.bytes() <= WHOLE_BYTES_MAX;
        if recv.is_done || recv.is_begun || is_short != arrived.cell.is_some() {
            return Err(Error::corrupt(from, "duplicate message"));
        }
        Ok(())
    }

    /// Returns the place of the first receive of which more may be granted.
    pub fn wanting(&mut self) -> Option<usize> {
        while let Some(recv) = self.queue.get(self.satisfied) {
            let bytes = recv.sink.bytes();
            if bytes > WHOLE_BYTES_MAX && recv.granted < bytes {
                return (self.granted.len() < GRANTS_MAX).then_some(self.satisfied);
            }
            self.satisfied += 1;
        }
        None
    }

    /// Notes that the peer may write the next `bytes` of the receive at `place`; returns the packet
    /// that grants them.
    pub fn grant(&mut self, place: usize, bytes: usize, to: (RemoteAddress, Landing)) -> Packet {
        let recv = &mut self.queue[place];
        let range = recv.granted..recv.granted + bytes;
        recv.granted = range.end;
        let number = self.first.wrapping_add(place as u32);
        let header = recv.header.encode(0);
        let (place, to) = to;
        self.granted.push_back(GrantedPart { number, range, to });
        Packet::Grant {
            number,
            header,
            bytes: bytes as u32,
            place,
        }
    }

    /// Returns the part that the peer has written with this number, and the place of its receive.
    /// `unsent` grants are not sent yet.
    pub fn written(
        &mut self,
        number: u32,
        bytes: usize,
        unsent: usize,
        peer: usize,
    ) -> Result<(usize, GrantedPart)> {
        let is_sent = self.granted.len() > unsent && number == self.sequence;
        let part = match self.granted.pop_front() {
            Some(part) if is_sent && bytes <= part.range.len() => part,
            _ => return Err(Error::corrupt(peer, "unexpected write")),
        };
        self.sequence = number.wrapping_add(1);
        let place = part.number.wrapping_sub(self.first) as usize;
        self.queue[place].absorbed += part.range.len();
        Ok((place, part))
    }

    /// Returns the first message without a posted receive.
    pub fn head(&self, peer: usize) -> Result<Head> {
        Ok(match self.arrived.front() {
            Some(arrived) => Head::Message(Header::claimed(&arrived.header, peer)?),
            None if self.is_over => Head::End("it left (closed its communicator)"),
            None => Head::Nothing,
        })
    }

    /// Marks the receive at `place` as complete; returns its ticket.
    pub fn finish(&mut self, place: usize) -> Ticket {
        let recv = &mut self.queue[place];
        recv.is_done = true;
        let ticket = recv.ticket;
        while self.queue.front().is_some_and(|recv| recv.is_done) {
            self.queue.pop_front();
            self.first = self.first.wrapping_add(1);
            self.satisfied = self.satisfied.saturating_sub(1);
        }
        ticket
    }
}
