//! A stream of messages over one queue pair.
//!
//! # Bounds
//!
//! Nothing is sent without a receive at the other end, so no device ever waits for one: a pair
//! holds receives for [`CREDITS`] short messages, [`BEGUN_MAX`] announcements, [`GRANTS_MAX`] grants
//! and as many writes with a number, two notes of credit and a goodbye. A note of credit is sent
//! when half of the credits are owed, so the third one needs messages that the peer could send only
//! after it had read the first.
//!
//! The queue of requests is bounded here: what does not fit waits for a completion.

use std::collections::VecDeque;

use super::incoming::{Arrived, Incoming, LEFT, Part};
use super::memory::place_of;
use super::outgoing::{BEGUN_MAX, CREDITS, GRANTS_MAX, Grant, Outgoing, Send};
use super::packet::{CONTROL_BYTES_MAX, PACKET_BYTES_MAX, PAYLOAD_AT, Packet, WHOLE_BYTES_MAX};
use super::rail::Rail;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::transport::{PIECE_ALIGN_BYTES, Post, Sink, Ticket};
use crate::verbs::{Access, Piece, Place, QueuePair};

/// Requests of a link that the device may have at once.
pub const SEND_DEPTH: usize = 64;
/// Receives that are posted all the time.
pub const RECEIVE_DEPTH: usize = CREDITS as usize + BEGUN_MAX + 2 * GRANTS_MAX + 2 + 1;
/// The most bytes of one write: devices carry 1 GiB at least.
const WRITE_BYTES_MAX: usize = 1 << 30;

/// A request that the device has, in the order in which they end.
enum Flight {
    /// A packet that went with the request.
    Inline,
    /// A packet in this cell.
    Packet(u32),
    /// A write from the payload of the message with this number.
    Payload(u32),
    /// A write from this piece.
    Piece(u32),
}

/// One stream.
pub struct Link {
    // Ends before the memory that peers write to.
    pub pair: QueuePair,
    /// The number of its device's part.
    pub rail: usize,
    /// Its place among the links, in the numbers of requests.
    place: u64,
    peer: usize,
    rank: usize,
    flights: VecDeque<Flight>,
    /// Grants, credits and the goodbye, which wait for room.
    outbox: VecDeque<Packet>,
    out: Outgoing,
    inc: Incoming,
    /// Whether it lacks pieces or cells, which other links may give back.
    pub is_starved: bool,
}

impl Link {
    /// The link of `rank` with `peer` over `pair`; its receives are posted.
    pub fn new(
        pair: QueuePair,
        (rail, place): (usize, usize),
        [peer, rank]: [usize; 2],
        resources: &mut Rail,
    ) -> Result<Link> {
        let link = Link {
            pair,
            rail,
            place: place as u64,
            peer,
            rank,
            flights: VecDeque::with_capacity(SEND_DEPTH),
            outbox: VecDeque::new(),
            out: Outgoing::default(),
            inc: Incoming::default(),
            is_starved: false,
        };
        for _ in 0..RECEIVE_DEPTH {
            let cell = resources.packets.take();
            let cell = cell.unwrap_or_else(|| unreachable!("made for all links' receives"));
            link.post_receive(cell, resources)?;
        }
        Ok(link)
    }

    /// Queues a message.
    pub fn send(&mut self, post: Post, payload: Region) {
        self.out.queue.push_back(Send::new(post, payload));
    }

    /// Queues a receive, and takes what has come for it.
    pub fn recv(
        &mut self,
        post: Post,
        sink: Sink,
        rail: &mut Rail,
        done: &mut Vec<Ticket>,
    ) -> Result<()> {
        let arrived = self.inc.post(post, sink, self.peer)?;
        match arrived {
            Some(arrived) => self.take(self.inc.queue.len() - 1, arrived, rail, done),
            None if self.inc.is_over => Err(Error::peer_failed(self.peer, LEFT)),
            None => Ok(()),
        }
    }

    /// What no receive is posted for.
    pub fn incoming(&self) -> &Incoming {
        &self.inc
    }

    /// Whether the device has requests of this link.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty() || !self.outbox.is_empty()
    }

    pub fn peer(&self) -> usize {
        self.peer
    }

    /// Nothing is waited for any more.
    pub fn forget(&mut self) {
        self.flights.clear();
        self.outbox.clear();
    }

    /// Ends the connection and gives all memory back: the device neither reads nor writes it when
    /// this returns.
    pub fn end(&mut self) {
        self.pair.end();
        self.forget();
        self.out.queue.clear();
        self.inc.queue.clear();
    }

    /// Says goodbye, behind everything else.
    pub fn leave(&mut self, rail: &mut Rail) -> Result<()> {
        self.outbox.push_back(Packet::Bye);
        self.flush(rail)
    }

    /// The device has done its oldest request.
    pub fn sent(&mut self, rail: &mut Rail, done: &mut Vec<Ticket>) {
        match self.flights.pop_front() {
            Some(Flight::Packet(cell)) => rail.packets.give(cell),
            Some(Flight::Piece(cell)) => rail.out_pieces.give(cell),
            Some(Flight::Payload(number)) => {
                let place = number.wrapping_sub(self.out.first) as usize;
                if let Some(send) = self.out.queue.get_mut(place) {
                    send.flying -= 1;
                }
                done.extend(self.out.settle(number));
            }
            Some(Flight::Inline) | None => {}
        }
    }

    /// A packet of so many bytes has come in `cell`, or the write with this number.
    pub fn received(
        &mut self,
        (cell, bytes): (u32, usize),
        number: Option<u32>,
        rail: &mut Rail,
        done: &mut Vec<Ticket>,
    ) -> Result<()> {
        if let Some(number) = number {
            self.written(number, bytes, rail, done)?;
            return self.post_receive(cell, rail);
        }
        let packet = rail
            .packets
            .region(cell)
            .part(0..bytes.min(PACKET_BYTES_MAX));
        let mut copied = [0; CONTROL_BYTES_MAX];
        let begin = packet.part(0..packet.bytes().min(CONTROL_BYTES_MAX));
        begin.read(&mut copied[..begin.bytes()]);
        let (said, consumed) = Packet::decode(&copied[..begin.bytes()])
            .ok_or_else(|| Error::corrupt(self.peer, "a packet that means nothing"))?;
        self.out.note_consumed(consumed, self.peer)?;
        let (number, header, held) = match said {
            Packet::Whole { number, header } => (number, header, Some(cell)),
            Packet::Begin { number, header } => (number, header, None),
            Packet::Grant {
                number,
                header,
                bytes,
                place,
            } => {
                let grant = Grant {
                    number,
                    header,
                    bytes: bytes as usize,
                    place,
                    written: 0,
                };
                self.out.note_grant(grant, self.peer)?;
                return self.post_receive(cell, rail);
            }
            Packet::Credit => return self.post_receive(cell, rail),
            Packet::Bye => {
                self.inc.is_over = true;
                return match self.inc.queue.is_empty() {
                    true => self.post_receive(cell, rail),
                    false => Err(Error::peer_failed(self.peer, LEFT)),
                };
            }
        };
        let arrived = Arrived {
            number,
            header,
            cell: held,
        };
        if held.is_some() {
            self.check_length(&arrived, bytes)?;
        } else {
            self.post_receive(cell, rail)?;
        }
        match self.inc.place(arrived, self.peer)? {
            Some((place, arrived)) => self.take(place, arrived, rail, done),
            None => Ok(()),
        }
    }

    /// Checks that a short message is as long as its header says.
    fn check_length(&self, arrived: &Arrived, bytes: usize) -> Result<()> {
        let header = crate::transport::Header::claimed(&arrived.header, self.peer)?;
        if bytes.checked_sub(PAYLOAD_AT) == Some(header.bytes as usize) {
            return Ok(());
        }
        let what = "a message of another length than its header says";
        Err(Error::corrupt(self.peer, what))
    }

    /// Takes what has come for the receive at `place`.
    fn take(
        &mut self,
        place: usize,
        arrived: Arrived,
        rail: &mut Rail,
        done: &mut Vec<Ticket>,
    ) -> Result<()> {
        self.inc.compare(place, &arrived, [self.peer, self.rank])?;
        let recv = &mut self.inc.queue[place];
        let Some(cell) = arrived.cell else {
            recv.is_begun = true;
            return Ok(());
        };
        let bytes = recv.sink.bytes();
        if bytes > 0 {
            let payload = rail
                .packets
                .region(cell)
                .part(PAYLOAD_AT..PAYLOAD_AT + bytes);
            recv.sink.absorb(0, payload);
        }
        done.push(self.inc.finish(place));
        self.inc.consumed = self.inc.consumed.wrapping_add(1);
        self.post_receive(cell, rail)
    }

    /// The peer has written a part of a message.
    fn written(
        &mut self,
        number: u32,
        bytes: usize,
        rail: &mut Rail,
        done: &mut Vec<Ticket>,
    ) -> Result<()> {
        let part = match self.inc.granted.front() {
            Some(part) if number == self.inc.sequence && bytes <= part.range.len() => part,
            _ => return Err(Error::corrupt(self.peer, "a write that was not due")),
        };
        let place = part.number.wrapping_sub(self.inc.first) as usize;
        let recv = &mut self.inc.queue[place];
        let (range, cell) = (part.range.clone(), part.cell);
        recv.absorbed += range.len();
        let is_whole = recv.absorbed == recv.sink.bytes();
        if let Some(cell) = cell {
            let piece = rail.in_pieces.region(cell).part(0..range.len());
            recv.sink.absorb(range.start, piece);
            rail.in_pieces.give(cell);
        }
        self.inc.sequence = number.wrapping_add(1);
        self.inc.granted.pop_front();
        if is_whole {
            done.push(self.inc.finish(place));
        }
        Ok(())
    }

    /// Does all that can be done now.
    pub fn pump(&mut self, rail: &mut Rail, done: &mut Vec<Ticket>) -> Result<()> {
        self.is_starved = false;
        self.grant(rail)?;
        let owed = self.inc.consumed.wrapping_sub(self.inc.told);
        let is_said = self.outbox.iter().any(|packet| *packet == Packet::Credit);
        if owed >= CREDITS / 2 && !is_said {
            self.outbox.push_back(Packet::Credit);
        }
        self.flush(rail)?;
        self.introduce(rail, done)?;
        self.write(rail, done)
    }

    /// Grants what is expected, in order, as far as there is room.
    fn grant(&mut self, rail: &mut Rail) -> Result<()> {
        while let Some(recv) = self.inc.queue.get_mut(self.inc.satisfied) {
            let bytes = recv.sink.bytes();
            if bytes <= WHOLE_BYTES_MAX || recv.granted == bytes {
                self.inc.satisfied += 1;
                continue;
            }
            if self.inc.granted.len() == GRANTS_MAX {
                return Ok(());
            }
            let Some((place, cell, length)) = landing(recv, rail)? else {
                self.is_starved = true;
                return Ok(());
            };
            let range = recv.granted..recv.granted + length;
            recv.granted = range.end;
            let number = self.inc.first.wrapping_add(self.inc.satisfied as u32);
            self.outbox.push_back(Packet::Grant {
                number,
                header: recv.header.encode(0),
                bytes: length as u32,
                place,
            });
            self.inc.granted.push_back(Part {
                number,
                range,
                cell,
            });
        }
        Ok(())
    }

    /// Sends what waits for room.
    pub fn flush(&mut self, rail: &mut Rail) -> Result<()> {
        while let Some(packet) = self.outbox.front().copied() {
            if !self.post_packet(packet, Region::EMPTY, rail)? {
                break;
            }
            self.outbox.pop_front();
        }
        Ok(())
    }

    /// Introduces messages as far as there is room.
    fn introduce(&mut self, rail: &mut Rail, done: &mut Vec<Ticket>) -> Result<()> {
        while let Some(send) = self.out.queue.get(self.out.introduced) {
            let place = self.out.introduced;
            let number = self.out.first.wrapping_add(place as u32);
            let header = send.header.encode(0);
            if send.is_whole() {
                let payload = send.payload;
                let is_sent = self.out.has_credit()
                    && self.post_packet(Packet::Whole { number, header }, payload, rail)?;
                if !is_sent {
                    break;
                }
                self.out.sent = self.out.sent.wrapping_add(1);
                self.out.introduced += 1;
                self.out.queue[place].written = payload.bytes();
                done.extend(self.out.settle(number));
                continue;
            }
            if !self.out.is_granted(place) {
                let is_sent = self.out.begun < BEGUN_MAX
                    && self.post_packet(Packet::Begin { number, header }, Region::EMPTY, rail)?;
                if !is_sent {
                    break;
                }
                self.out.begun += 1;
                self.out.queue[place].is_begun = true;
            }
            self.out.introduced += 1;
        }
        Ok(())
    }

    /// Writes what is granted, in order, as far as there is room.
    fn write(&mut self, rail: &mut Rail, done: &mut Vec<Ticket>) -> Result<()> {
        while let Some(grant) = self.out.grants.front().copied() {
            let place = grant.number.wrapping_sub(self.out.first) as usize;
            if place >= self.out.introduced {
                break;
            }
            self.compare(place, &grant)?;
            let Some(count) = self.write_part(place, &grant, rail)? else {
                break;
            };
            let written = grant.written + count;
            match self.out.grants.front_mut() {
                Some(first) if written < grant.bytes => first.written = written,
                _ => {
                    self.out.grants.pop_front();
                }
            }
            done.extend(self.out.settle(grant.number));
        }
        Ok(())
    }

    /// Compares a grant with the message at `place`.
    fn compare(&self, place: usize, grant: &Grant) -> Result<()> {
        let send = &self.out.queue[place];
        send.header.expect(&grant.header, self.peer, self.rank)?;
        let left = send.payload.bytes() - send.written;
        if send.is_whole() || send.is_done || grant.bytes - grant.written > left {
            return Err(Error::corrupt(self.peer, "a grant of more than is sent"));
        }
        Ok(())
    }

    /// Writes the next bytes that `grant` takes of the message at `place`; how many, or nothing if
    /// there is no room.
    fn write_part(
        &mut self,
        place: usize,
        grant: &Grant,
        rail: &mut Rail,
    ) -> Result<Option<usize>> {
        if self.flights.len() == SEND_DEPTH {
            return Ok(None);
        }
        let left = grant.bytes - grant.written;
        let send = &mut self.out.queue[place];
        let part = send.payload.part(send.written..send.written + left);
        if send.registered.is_none() && rail.known(part).is_none() {
            send.registered = rail.register(send.payload, Access::Read)?;
        }
        let registered = rail.known(part).or(send.registered.as_ref());
        let (piece, flight, count) = match registered {
            Some(registered) => {
                send.flying += 1;
                let lkey = registered.lkey();
                let piece = Piece { region: part, lkey };
                (piece, Flight::Payload(grant.number), left)
            }
            None => {
                let Some(cell) = rail.out_pieces.take() else {
                    self.is_starved = true;
                    return Ok(None);
                };
                let count = left.min(rail.out_pieces.region(cell).bytes());
                let piece = rail.out_pieces.piece(cell, count);
                piece.region.copy_from(part.part(0..count));
                (piece, Flight::Piece(cell), count)
            }
        };
        send.written += count;
        let to = Place {
            address: grant.place.address.wrapping_add(grant.written as u64),
            ..grant.place
        };
        let number = (count == left).then_some(self.out.sequence);
        self.pair.post_write(self.place << 32, piece, to, number)?;
        if number.is_some() {
            self.out.sequence = self.out.sequence.wrapping_add(1);
        }
        self.flights.push_back(flight);
        Ok(Some(count))
    }

    /// Sends a packet with its payload; false if there is no room now.
    fn post_packet(&mut self, packet: Packet, payload: Region, rail: &mut Rail) -> Result<bool> {
        if self.flights.len() == SEND_DEPTH {
            return Ok(false);
        }
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let length = packet.encode(self.inc.consumed, &mut bytes);
        let id = self.place << 32;
        if length + payload.bytes() <= self.pair.inline_bytes() {
            rail.scratch
                .region()
                .part(0..length)
                .write(&bytes[..length]);
            let payload = Piece {
                region: payload,
                lkey: 0,
            };
            let pieces = [rail.scratch_piece(length), payload];
            self.pair.post_send(id, &pieces, true)?;
            self.flights.push_back(Flight::Inline);
        } else {
            let Some(cell) = rail.packets.take() else {
                self.is_starved = true;
                return Ok(false);
            };
            let piece = rail.packets.piece(cell, length + payload.bytes());
            piece.region.part(0..length).write(&bytes[..length]);
            piece
                .region
                .part(length..piece.region.bytes())
                .copy_from(payload);
            self.pair.post_send(id, &[piece], false)?;
            self.flights.push_back(Flight::Packet(cell));
        }
        self.inc.told = self.inc.consumed;
        Ok(true)
    }

    /// Gives a cell to the device for the next packet.
    fn post_receive(&self, cell: u32, rail: &Rail) -> Result<()> {
        let room = rail.packets.piece(cell, PACKET_BYTES_MAX);
        self.pair
            .post_receive(self.place << 32 | u64::from(cell), Some(room))
    }
}

/// Where the next bytes of a long message go, and how many: to their place, if that is registered,
/// or to a piece. The last half of the pieces is for messages whose sender is ready, so that these
/// never wait for those whose sender is not.
fn landing(
    recv: &mut super::incoming::Recv,
    rail: &mut Rail,
) -> Result<Option<(Place, Option<u32>, usize)>> {
    let left = recv.granted..recv.sink.bytes();
    if let Some(into) = recv.sink.landing() {
        if recv.registered.is_none() && rail.known(into).is_none() {
            recv.registered = rail.register(into, Access::PeersWrite)?;
        }
        if let Some(registered) = rail.known(into).or(recv.registered.as_ref()) {
            let length = left.len().min(WRITE_BYTES_MAX);
            let part = into.part(left.start..left.start + length);
            return Ok(Some((place_of(registered, part), None, length)));
        }
    }
    let is_spare = rail.in_pieces.free_count() > rail.in_pieces.count() / 2;
    if !recv.is_begun && !is_spare {
        return Ok(None);
    }
    let Some(cell) = rail.in_pieces.take() else {
        return Ok(None);
    };
    let length = left.len().min(rail.in_pieces.region(cell).bytes());
    debug_assert!(length == left.len() || length.is_multiple_of(PIECE_ALIGN_BYTES));
    Ok(Some((rail.in_pieces.place(cell), Some(cell), length)))
}
