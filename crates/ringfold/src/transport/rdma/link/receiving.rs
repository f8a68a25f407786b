//! Arriving packets and writes, and grants to the peer.

use super::super::incoming::{Arrived, Landing, Recv};
use super::super::outgoing::Grant;
use super::super::packet::{CONTROL_BYTES_MAX, PACKET_BYTES_MAX, PAYLOAD_AT, Packet};
use super::super::rail::Rail;
use super::RdmaLink;
use crate::error::{Error, LEFT, Result};
use crate::transport::Ticket;
use crate::verbs::{MemoryAccess, RemoteAddress};

/// Maximum length of one write: devices support at least 1 GiB.
const WRITE_BYTES_MAX: usize = 1 << 30;

impl RdmaLink {
    /// Handles a packet of `bytes` in `cell`, or the write with this `number`.
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
            .ok_or_else(|| Error::corrupt(self.peer, "invalid packet"))?;
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
        arrived.check_length(bytes, self.peer)?;
        if held.is_none() {
            self.post_receive(cell, rail)?;
        }
        match self.inc.place(arrived, self.peer)? {
            Some((place, arrived)) => self.take(place, arrived, rail, done),
            None => Ok(()),
        }
    }

    /// Takes an arrived or announced message for the receive at `place`.
    pub(super) fn take(
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

    /// Handles a part of a message that the peer has written.
    fn written(
        &mut self,
        number: u32,
        bytes: usize,
        rail: &mut Rail,
        done: &mut Vec<Ticket>,
    ) -> Result<()> {
        let is_grant = |packet: &&Packet| matches!(packet, Packet::Grant { .. });
        let unsent = self.outbox.iter().filter(is_grant).count();
        let (place, part) = self.inc.written(number, bytes, unsent, self.peer)?;
        let recv = &mut self.inc.queue[place];
        let is_whole = recv.absorbed == recv.sink.bytes();
        if let Landing::Piece(cell) = part.to {
            let piece = rail.in_pieces.region(cell).part(0..part.range.len());
            recv.sink.absorb(part.range.start, piece);
            rail.in_pieces.give(cell);
        }
        if is_whole {
            done.push(self.inc.finish(place));
        }
        Ok(())
    }

    /// Grants parts of expected messages, in order, as far as there is room.
    pub(super) fn grant(&mut self, rail: &mut Rail) {
        while let Some(place) = self.inc.wanting() {
            let Some((to, bytes)) = landing(&self.inc.queue[place], rail) else {
                self.is_starved = true;
                return;
            };
            let packet = self.inc.grant(place, bytes, to);
            self.outbox.push_back(packet);
        }
    }
}

/// Returns the destination and the length of a long message's next part: the sink's memory, if a
/// device reaches it, or a piece. The last half of the pieces is for messages whose sender is
/// ready, so that these never wait for messages whose sender is not.
fn landing(recv: &Recv, rail: &mut Rail) -> Option<((RemoteAddress, Landing), usize)> {
    let left = recv.granted..recv.sink.bytes();
    if let Some(into) = recv.sink.landing() {
        let part = into.part(left.clone());
        if let Some((window, bytes)) = rail.window(part, MemoryAccess::PeersWrite) {
            let place = window.place(part);
            let to = Landing::Window { _window: window };
            return Some(((place, to), bytes.min(WRITE_BYTES_MAX)));
        }
    }
    let is_spare = rail.in_pieces.free_count() > rail.in_pieces.count() / 2;
    if !recv.is_begun && !is_spare {
        return None;
    }
    let cell = rail.in_pieces.take()?;
    let length = left.len().min(rail.in_pieces.region(cell).bytes());
    Some(((rail.in_pieces.place(cell), Landing::Piece(cell)), length))
}
