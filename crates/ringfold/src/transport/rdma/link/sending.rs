//! Messages to the peer, in order, and writes as the peer has granted them.

use super::super::outgoing::{BEGUN_MAX, Grant};
use super::super::packet::Packet;
use super::super::rail::Rail;
use super::{RdmaLink, SEND, SEND_DEPTH, WorkRequest};
use crate::error::Result;
use crate::memory::Region;
use crate::transport::Ticket;
use crate::verbs::{MemoryAccess, Piece, RemoteAddress};

impl RdmaLink {
    /// Introduces messages in order, as far as there is room.
    pub(super) fn introduce(&mut self, rail: &mut Rail, done: &mut Vec<Ticket>) -> Result<()> {
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

    /// Writes granted parts in order, as far as there is room.
    pub(super) fn write(&mut self, rail: &mut Rail, done: &mut Vec<Ticket>) -> Result<()> {
        while let Some(grant) = self.out.grants.front().copied() {
            let place = grant.number.wrapping_sub(self.out.first) as usize;
            if place >= self.out.introduced {
                break;
            }
            self.out.compare(place, &grant, [self.peer, self.rank])?;
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

    /// Writes the next bytes of the message at `place` that `grant` covers; returns their number,
    /// or `None` if there is no room.
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
        let (piece, flight, count) = match rail.window(part, MemoryAccess::Read) {
            Some((window, count)) => {
                send.flying += 1;
                let (region, lkey) = (part.part(0..count), window.lkey());
                let flight = WorkRequest::Payload {
                    number: grant.number,
                    _window: window,
                };
                (Piece { region, lkey }, flight, count)
            }
            None => {
                let Some(cell) = rail.out_pieces.take() else {
                    self.is_starved = true;
                    return Ok(None);
                };
                let count = left.min(rail.out_pieces.region(cell).bytes());
                let piece = rail.out_pieces.piece(cell, count);
                piece.region.copy_from(part.part(0..count));
                (piece, WorkRequest::Piece(cell), count)
            }
        };
        send.written += count;
        let to = RemoteAddress {
            address: grant.place.address.wrapping_add(grant.written as u64),
            ..grant.place
        };
        let number = (count == left).then_some(self.out.sequence);
        self.pair
            .post_write(self.place << 32 | u64::from(SEND), piece, to, number)?;
        if number.is_some() {
            self.out.sequence = self.out.sequence.wrapping_add(1);
        }
        self.flights.push_back(flight);
        Ok(Some(count))
    }
}
