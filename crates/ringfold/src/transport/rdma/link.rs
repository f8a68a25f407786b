//! A stream of messages over one queue pair.
//!
//! # Bounds
//!
//! Nothing is sent without a receive at the peer, so no device ever waits for one. A pair holds
//! receives for [`CREDITS`] short messages, [`BEGUN_MAX`] announcements, [`GRANTS_MAX`] grants and
//! as many writes with a number, two credit packets and a goodbye. A credit packet is sent when
//! half of the credits are unreported, so a third packet needs messages that the peer could send
//! only after it had read the first.
//!
//! This module bounds the queue of requests: one that does not fit waits for a completion.

mod receiving;
mod sending;

use std::collections::VecDeque;
use std::sync::Arc;

use super::incoming::Incoming;
use super::memory::Window;
use super::outgoing::{BEGUN_MAX, CREDITS, GRANTS_MAX, Outgoing, Send};
use super::packet::{CONTROL_BYTES_MAX, PACKET_BYTES_MAX, Packet};
use super::rail::Rail;
use crate::error::{Error, LEFT, Result};
use crate::memory::Region;
use crate::transport::{Post, Sink, Ticket};
use crate::verbs::{Piece, QueuePair};

/// Maximum number of a link's requests at the device.
pub const SEND_DEPTH: usize = 64;
/// Maximum number of consecutive inline packets that are not signaled.
const UNSEEN_MAX: usize = SEND_DEPTH / 4;
/// Number of receives that each link keeps posted.
pub const RECEIVE_DEPTH: usize = CREDITS as usize + BEGUN_MAX + 2 * GRANTS_MAX + 2 + 1;

/// A request at the device. Requests complete in order.
enum WorkRequest {
    /// A packet inline in the request. An unsignaled one completes unseen, with the next signaled
    /// request.
    Inline { is_signaled: bool },
    /// A packet in this cell.
    Packet(u32),
    /// A write from the payload of the message with this number, in a window that stays registered
    /// meanwhile.
    Payload { number: u32, _window: Arc<Window> },
    /// A write from this piece.
    Piece(u32),
}

/// Whether a request has no completion of its own.
fn is_unseen(flight: &WorkRequest) -> bool {
    matches!(flight, WorkRequest::Inline { is_signaled: false })
}

/// Mark of sends in request ids, in place of a receive's cell.
const SEND: u32 = u32::MAX;

/// One stream over its queue pair.
pub struct RdmaLink {
    // Dropped before the memory that peers write to.
    pub pair: QueuePair,
    /// Number of the device's rail.
    pub rail: usize,
    /// Index of the link, as in request ids.
    place: u64,
    peer: usize,
    rank: usize,
    flights: VecDeque<WorkRequest>,
    /// Grants, credits and the goodbye that wait for room.
    outbox: VecDeque<Packet>,
    out: Outgoing,
    inc: Incoming,
    /// Description of the first failure of a request, if any.
    broken: Option<String>,
    /// Whether the link lacks pieces or cells, which other links may return.
    pub is_starved: bool,
}

impl RdmaLink {
    /// Creates the link of `rank` with `peer` over `pair`, and posts its receives.
    pub fn new(
        pair: QueuePair,
        (rail, place): (usize, usize),
        [peer, rank]: [usize; 2],
        resources: &mut Rail,
    ) -> Result<RdmaLink> {
        let link = RdmaLink {
            pair,
            rail,
            place: place as u64,
            peer,
            rank,
            flights: VecDeque::with_capacity(SEND_DEPTH),
            outbox: VecDeque::new(),
            out: Outgoing::default(),
            inc: Incoming::default(),
            broken: None,
            is_starved: false,
        };
        for _ in 0..RECEIVE_DEPTH {
            let cell = resources.packets.take();
            let cell = cell.unwrap_or_else(|| unreachable!("cells for all links' receives"));
            link.post_receive(cell, resources)?;
        }
        Ok(link)
    }

    /// Queues a message.
    pub fn send(&mut self, post: Post, payload: Region) -> Result<()> {
        if let Some(reason) = &self.broken {
            return Err(self.lost(reason));
        }
        self.out.queue.push_back(Send::new(post, payload));
        Ok(())
    }

    /// Queues a receive, and takes a message that has arrived for it.
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

    /// Returns the receiving half.
    pub fn incoming(&self) -> &Incoming {
        &self.inc
    }

    /// Whether requests of this link are at the device or waiting.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty() || !self.outbox.is_empty()
    }

    /// Handles a failed request. A device that fails a send also fails the receives, and these
    /// complete after everything that the peer has sent. So the receives decide: a peer that has
    /// left, and that all messages have reached, needs neither grants nor credits.
    pub fn failed(&mut self, what: u32, reason: String, rail: &mut Rail) -> Result<()> {
        let reason = self.broken.get_or_insert(reason).clone();
        if what == SEND {
            return Ok(());
        }
        if !self.inc.is_over || !self.out.queue.is_empty() {
            return Err(self.lost(&reason));
        }
        for flight in self.flights.drain(..) {
            match flight {
                WorkRequest::Packet(cell) => rail.packets.give(cell),
                WorkRequest::Piece(cell) => rail.out_pieces.give(cell),
                WorkRequest::Inline { .. } | WorkRequest::Payload { .. } => {}
            }
        }
        self.outbox.clear();
        Ok(())
    }

    /// Returns the error of a broken connection: the peer's departure if it has left, or `reason`.
    fn lost(&self, reason: &str) -> Error {
        let reason = if self.inc.is_over { LEFT } else { reason };
        Error::peer_failed(self.peer, reason)
    }

    /// Forgets all requests and packets, so that no completion is waited for.
    pub fn forget(&mut self) {
        self.flights.clear();
        self.outbox.clear();
    }

    /// Ends the connection and releases all memory, which the device neither reads nor writes when
    /// this returns.
    pub fn end(&mut self) {
        if !(self.out.queue.is_empty() && self.inc.queue.is_empty()) {
            self.log_what_is_left();
        }
        self.pair.end();
        self.forget();
        self.out.queue.clear();
        self.out.grants.clear();
        self.inc.queue.clear();
        self.inc.granted.clear();
    }

    /// Logs why messages wait, to explain a call that did not complete.
    #[cold]
    fn log_what_is_left(&self) {
        let RdmaLink { out, inc, .. } = self;
        let signaled = self.flights.iter().filter(|flight| !is_unseen(flight));
        log::info!(
            target: "ringfold::transport",
            "the connection with rank {} over RDMA ends while {} sends wait (the first is number \
             {}, {} introduced, {} of them without a grant; {} grants; {} of {} short ones taken; \
             {} requests at the device, {} signaled; {} packets unsent) and {} receives (from \
             number {}, {} of them granted; {} writes due from number {}; {} early messages; {} \
             short ones taken, {} of them told){}",
            self.peer,
            out.queue.len(),
            out.first,
            out.introduced,
            out.begun,
            out.grants.len(),
            out.consumed,
            out.sent,
            self.flights.len(),
            signaled.count(),
            self.outbox.len(),
            inc.queue.len(),
            inc.first,
            inc.satisfied,
            inc.granted.len(),
            inc.sequence,
            inc.arrived.len(),
            inc.consumed,
            inc.told,
            if self.is_starved { "; short of pieces or cells" } else { "" },
        );
    }

    /// Says goodbye, behind everything else, to a peer that has not left.
    pub fn leave(&mut self, rail: &mut Rail) -> Result<()> {
        if self.inc.is_over {
            self.forget();
            return Ok(());
        }
        self.outbox.push_back(Packet::Bye);
        self.flush(rail)
    }

    /// Handles the completion of the oldest signaled request, and of those before.
    pub fn sent(&mut self, rail: &mut Rail, done: &mut Vec<Ticket>) {
        while self.flights.front().is_some_and(is_unseen) {
            self.flights.pop_front();
        }
        match self.flights.pop_front() {
            Some(WorkRequest::Packet(cell)) => rail.packets.give(cell),
            Some(WorkRequest::Piece(cell)) => rail.out_pieces.give(cell),
            Some(WorkRequest::Payload { number, .. }) => {
                let place = number.wrapping_sub(self.out.first) as usize;
                if let Some(send) = self.out.queue.get_mut(place) {
                    send.flying -= 1;
                }
                done.extend(self.out.settle(number));
            }
            Some(WorkRequest::Inline { .. }) | None => {}
        }
    }

    /// Makes all progress that is possible now.
    pub fn pump(&mut self, rail: &mut Rail, done: &mut Vec<Ticket>) -> Result<()> {
        self.is_starved = false;
        if self.inc.is_over {
            // The peer reads no more grants and credits.
            self.outbox.clear();
        } else {
            self.grant(rail);
            let owed = self.inc.consumed.wrapping_sub(self.inc.told);
            let is_said = self.outbox.iter().any(|packet| *packet == Packet::Credit);
            if owed >= CREDITS / 2 && !is_said {
                self.outbox.push_back(Packet::Credit);
            }
        }
        self.flush(rail)?;
        self.introduce(rail, done)?;
        self.write(rail, done)?;
        match &self.broken {
            Some(reason) if self.inc.is_over && !self.out.queue.is_empty() => {
                Err(self.lost(reason))
            }
            _ => Ok(()),
        }
    }

    /// Sends the packets that wait for room.
    pub fn flush(&mut self, rail: &mut Rail) -> Result<()> {
        while let Some(packet) = self.outbox.front().copied() {
            if !self.post_packet(packet, Region::EMPTY, rail)? {
                break;
            }
            self.outbox.pop_front();
        }
        Ok(())
    }

    /// Sends a packet with its payload; false if there is no room now.
    pub(super) fn post_packet(
        &mut self,
        packet: Packet,
        payload: Region,
        rail: &mut Rail,
    ) -> Result<bool> {
        if self.flights.len() == SEND_DEPTH {
            return Ok(false);
        }
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let length = packet.encode(self.inc.consumed, &mut bytes);
        let id = self.place << 32 | u64::from(SEND);
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
            let unseen = self.flights.iter().rev().take(UNSEEN_MAX);
            let unseen = unseen.take_while(|flight| is_unseen(flight)).count();
            let is_signaled = unseen == UNSEEN_MAX || packet == Packet::Bye;
            self.pair.post_inline(id, &pieces, is_signaled)?;
            self.flights.push_back(WorkRequest::Inline { is_signaled });
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
            self.pair.post_send(id, &[piece])?;
            self.flights.push_back(WorkRequest::Packet(cell));
        }
        self.inc.told = self.inc.consumed;
        Ok(true)
    }

    /// Posts a cell as the receive of a packet.
    pub(super) fn post_receive(&self, cell: u32, rail: &Rail) -> Result<()> {
        let room = rail.packets.piece(cell, PACKET_BYTES_MAX);
        self.pair
            .post_receive(self.place << 32 | u64::from(cell), Some(room))
    }
}
