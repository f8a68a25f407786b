//! A link without a device, whose peer lies: for the fuzz target `rdma_packets`.
//!
//! The two halves take the same steps as in [`super::link`], in an order that the data determine:
//! messages are posted, packets and writes arrive. A packet is derived from an expected one, so
//! that lies are near the truth, or consists of arbitrary bytes.

use super::incoming::{Arrived, Incoming, Landing};
use super::outgoing::{BEGUN_MAX, CREDITS, GRANTS_MAX, Grant, Outgoing, Send};
use super::packet::{CONTROL_BYTES_MAX, PACKET_BYTES_MAX, PAYLOAD_AT, Packet};
use crate::error::Result;
use crate::memory::{Owned, Region};
use crate::transport::{HEADER_BYTES, Header, Post, Sink, StreamId};
use crate::verbs::RemoteAddress;

/// Lengths of messages.
const LENGTHS: [usize; 4] = [0, 100, 5000, 30_000];
/// Maximum length of a grant.
const PIECE_BYTES: usize = 8192;
/// The peer and this rank.
const RANKS: [usize; 2] = [1, 0];
/// Maximum number of messages in progress: the caller's own limit.
const POSTED_MAX: usize = 20;
/// Length of a step in the data: its kind, two small numbers, and a packet.
const STEP_BYTES: usize = 3 + CONTROL_BYTES_MAX;
/// Destination of the peer's writes in packets; no device writes there.
const NOWHERE: RemoteAddress = RemoteAddress {
    address: 1 << 40,
    rkey: 7,
};

/// Executes the steps of `data` on a link until one fails, and checks that the halves stay
/// consistent and bounded.
///
/// # Panics
/// If the halves are inconsistent or unbounded.
pub fn take(data: &[u8]) {
    let memory = Owned::zeroed(LENGTHS[LENGTHS.len() - 1]);
    let mut link = LinkHalves {
        out: Outgoing::default(),
        inc: Incoming::default(),
        posted: [0; 2],
        memory: memory.region(),
    };
    for step in data.chunks_exact(STEP_BYTES) {
        let outcome = link.take(step);
        link.check();
        if outcome.is_err() {
            return;
        }
    }
}

struct LinkHalves {
    out: Outgoing,
    inc: Incoming,
    /// Number of posted sends and receives.
    posted: [u32; 2],
    memory: Region,
}

impl LinkHalves {
    fn take(&mut self, step: &[u8]) -> Result<()> {
        let (small, packet) = ([step[1], step[2]], &step[3..]);
        let is_lie = small.map(|number| number == u8::MAX);
        match step[0] % 16 {
            0..4 => self.send(small),
            4..7 => self.recv(small)?,
            7..9 => {
                let number = self.inc.sequence.wrapping_add(u32::from(is_lie[1]));
                let length = LENGTHS[usize::from(small[0]) % LENGTHS.len()].min(PIECE_BYTES);
                self.written(number, length + usize::from(is_lie[0]))?;
            }
            9 => return self.received(packet, PACKET_BYTES_MAX.min(packet.len())),
            _ => {
                let (packet, payload_bytes) = self.near(step[0] / 16, small);
                let mut bytes = [0; CONTROL_BYTES_MAX];
                // Sometimes claims that more messages were taken than sent.
                let consumed = self.out.sent.wrapping_add(u32::from(is_lie[1]));
                let length = packet.encode(consumed, &mut bytes);
                self.received(&bytes[..length], length + payload_bytes)?;
            }
        }
        self.pump()
    }

    fn header(&self, which: usize, length: u8) -> Header {
        let mut bytes = [0; HEADER_BYTES];
        // A count, so that the bytes decode as a call.
        bytes[8] = 4;
        let header = Header::claimed(&bytes, 0);
        Header {
            index: self.posted[which],
            bytes: LENGTHS[usize::from(length) % LENGTHS.len()] as u32,
            ..header.unwrap_or_else(|_| unreachable!("zeros are a call"))
        }
    }

    fn post(&mut self, which: usize, length: u8) -> (Post, Region) {
        let header = self.header(which, length);
        self.posted[which] += 1;
        let stream = StreamId {
            peer: RANKS[0],
            channel: 1,
        };
        let region = self.memory.part(0..header.bytes as usize);
        (Post(stream, header.index.into(), header), region)
    }

    fn send(&mut self, [length, _]: [u8; 2]) {
        if self.out.queue.len() < POSTED_MAX {
            let (post, payload) = self.post(0, length);
            self.out.queue.push_back(Send::new(post, payload));
        }
    }

    fn recv(&mut self, [length, _]: [u8; 2]) -> Result<()> {
        if self.inc.queue.len() == POSTED_MAX {
            return Ok(());
        }
        let (post, into) = self.post(1, length);
        let arrived = self.inc.post(post, Sink::Store(into), RANKS[0])?;
        match arrived {
            Some(arrived) => self.arrive(self.inc.queue.len() - 1, &arrived),
            None => Ok(()),
        }
    }

    /// Returns a packet similar to an expected one, and the length of its payload.
    fn near(&self, kind: u8, [place, shift]: [u8; 2]) -> (Packet, usize) {
        // One place beyond the last is a lie, or early.
        let within = |length: usize| usize::from(place) % (length + 1);
        let (out, inc) = (within(self.out.queue.len()), within(self.inc.queue.len()));
        let (sent, due) = (self.out.queue.get(out), self.inc.queue.get(inc));
        let due = due.map_or(self.header(1, shift), |recv| recv.header);
        let sent = sent.map_or(self.header(0, shift), |send| send.header);
        let payload_bytes = match due.bytes as usize {
            bytes if bytes <= PACKET_BYTES_MAX - PAYLOAD_AT => bytes,
            _ => 0,
        };
        let number = self.inc.first.wrapping_add(inc as u32);
        let header = due.encode(0);
        match kind % 5 {
            0 => (Packet::Whole { number, header }, payload_bytes),
            1 => (Packet::Begin { number, header }, 0),
            2 | 3 => {
                let grant = Packet::Grant {
                    number: self.out.first.wrapping_add(out as u32),
                    header: sent.encode(0),
                    bytes: sent.bytes >> (shift % 4),
                    place: NOWHERE,
                };
                (grant, 0)
            }
            _ => (Packet::Credit, 0),
        }
    }

    fn received(&mut self, packet: &[u8], bytes: usize) -> Result<()> {
        let Some((said, consumed)) = Packet::decode(packet) else {
            return Ok(());
        };
        self.out.note_consumed(consumed, RANKS[0])?;
        let (number, header, cell) = match said {
            Packet::Whole { number, header } => (number, header, Some(0)),
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
                return self.out.note_grant(grant, RANKS[0]);
            }
            Packet::Credit | Packet::Bye => return Ok(()),
        };
        let arrived = Arrived {
            number,
            header,
            cell,
        };
        arrived.check_length(bytes, RANKS[0])?;
        match self.inc.place(arrived, RANKS[0])? {
            Some((place, arrived)) => self.arrive(place, &arrived),
            None => Ok(()),
        }
    }

    fn arrive(&mut self, place: usize, arrived: &Arrived) -> Result<()> {
        self.inc.compare(place, arrived, RANKS)?;
        if arrived.cell.is_none() {
            self.inc.queue[place].is_begun = true;
            return Ok(());
        }
        self.inc.finish(place);
        self.inc.consumed = self.inc.consumed.wrapping_add(1);
        Ok(())
    }

    fn written(&mut self, number: u32, bytes: usize) -> Result<()> {
        let (place, part) = self.inc.written(number, bytes, 0, RANKS[0])?;
        assert!(
            bytes <= part.range.len(),
            "a write of more than was granted"
        );
        let recv = &self.inc.queue[place];
        assert!(part.range.end <= recv.sink.bytes(), "a write past the end");
        if recv.absorbed == recv.sink.bytes() {
            self.inc.finish(place);
        }
        Ok(())
    }

    /// Grants, introduces and writes as much as possible, as if there were always room.
    fn pump(&mut self) -> Result<()> {
        while let Some(place) = self.inc.wanting() {
            let recv = &self.inc.queue[place];
            let bytes = (recv.sink.bytes() - recv.granted).min(PIECE_BYTES);
            self.inc.grant(place, bytes, (NOWHERE, Landing::Piece(0)));
        }
        while self.out.introduced < self.out.queue.len() {
            let place = self.out.introduced;
            let number = self.out.first.wrapping_add(place as u32);
            let is_granted = self.out.is_granted(place);
            let send = &mut self.out.queue[place];
            if send.is_whole() {
                if self.out.sent.wrapping_sub(self.out.consumed) == CREDITS {
                    break;
                }
                send.written = send.payload.bytes();
                self.out.sent = self.out.sent.wrapping_add(1);
                self.out.introduced += 1;
                self.out.settle(number);
                continue;
            }
            if !is_granted {
                if self.out.begun == BEGUN_MAX {
                    break;
                }
                send.is_begun = true;
                self.out.begun += 1;
            }
            self.out.introduced += 1;
        }
        while let Some(grant) = self.out.grants.front().copied() {
            let place = grant.number.wrapping_sub(self.out.first) as usize;
            if place >= self.out.introduced {
                break;
            }
            self.out.compare(place, &grant, RANKS)?;
            self.out.queue[place].written += grant.bytes;
            self.out.grants.pop_front();
            self.out.settle(grant.number);
        }
        Ok(())
    }

    /// Checks the invariants that no peer may break.
    fn check(&self) {
        let LinkHalves { out, inc, .. } = self;
        assert!(inc.arrived.len() <= CREDITS as usize + BEGUN_MAX);
        assert!(inc.granted.len() <= GRANTS_MAX && out.grants.len() <= GRANTS_MAX);
        assert!(inc.satisfied <= inc.queue.len() && out.introduced <= out.queue.len());
        assert!(out.sent.wrapping_sub(out.consumed) <= CREDITS);
        let begun = out.queue.iter().filter(|send| send.is_begun).count();
        assert_eq!(begun, out.begun, "announced messages without a grant");
        for recv in &inc.queue {
            assert!(recv.absorbed <= recv.granted && recv.granted <= recv.sink.bytes());
        }
        for send in &out.queue {
            assert!(send.written <= send.payload.bytes());
        }
    }
}
