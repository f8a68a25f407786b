//! The sending half of a link: messages in the order in which they were posted, and the peer's
//! grants.
//!
//! A message is *introduced* when the peer can know of it: a short one is sent whole, a long one is
//! announced, unless its grant has arrived. Messages are introduced in order.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::memory::Region;
use crate::transport::{HEADER_BYTES, Header, Post, Ticket};
use crate::verbs::RemoteAddress;

use super::packet::WHOLE_BYTES_MAX;

/// Maximum number of short messages that the peer has not taken.
pub const CREDITS: u32 = 8;
/// Maximum number of announced messages without a grant.
pub const BEGUN_MAX: usize = 8;
/// Maximum number of grants that are not used up.
pub const GRANTS_MAX: usize = 8;

/// An incomplete message.
pub struct Send {
    pub ticket: Ticket,
    pub header: Header,
    pub payload: Region,
    /// Bytes for which requests were posted.
    pub written: usize,
    /// Writes in progress that read the payload itself.
    pub flying: usize,
    /// Whether the message was announced and waits for its first grant.
    pub is_begun: bool,
    /// Whether nothing reads the payload again.
    pub is_done: bool,
}

impl Send {
    pub fn new(Post(_, ticket, header): Post, payload: Region) -> Send {
        Send {
            ticket,
            header,
            payload,
            written: 0,
            flying: 0,
            is_begun: false,
            is_done: false,
        }
    }

    pub fn is_whole(&self) -> bool {
        self.payload.bytes() <= WHOLE_BYTES_MAX
    }
}

/// A grant, as the peer claims it.
#[derive(Clone, Copy)]
pub struct Grant {
    pub number: u32,
    pub header: [u8; HEADER_BYTES],
    pub bytes: usize,
    pub place: RemoteAddress,
    /// Bytes of the grant that were written.
    pub written: usize,
}

#[derive(Default)]
pub struct Outgoing {
    pub queue: VecDeque<Send>,
    /// Number of the queue's first message.
    pub first: u32,
    /// Number of introduced messages in the queue.
    pub introduced: usize,
    /// Number of announced messages that wait for their first grant.
    pub begun: usize,
    pub grants: VecDeque<Grant>,
    /// Number of the next used-up grant, of which its last write notifies the peer.
    pub sequence: u32,
    /// Number of short messages sent; `consumed` counts those that the peer has taken. Modulo 2^32.
    pub sent: u32,
    pub consumed: u32,
}

impl Outgoing {
    /// Whether a short message may be sent.
    pub fn has_credit(&self) -> bool {
        self.sent.wrapping_sub(self.consumed) < CREDITS
    }

    /// Notes how many short messages the peer claims to have taken.
    pub fn note_consumed(&mut self, consumed: u32, peer: usize) -> Result<()> {
        let taken = consumed.wrapping_sub(self.consumed);
        if taken > self.sent.wrapping_sub(self.consumed) {
            return Err(Error::corrupt(peer, "more messages acknowledged than sent"));
        }
        self.consumed = consumed;
        Ok(())
    }

    /// Queues a grant.
    pub fn note_grant(&mut self, grant: Grant, peer: usize) -> Result<()> {
        if self.grants.len() == GRANTS_MAX || grant.bytes == 0 {
            return Err(Error::corrupt(peer, "invalid grant"));
        }
        let place = grant.number.wrapping_sub(self.first);
        if place > i32::MAX as u32 {
            // The message was sent whole: the peer will find that it expects a different one.
            return Ok(());
        }
        if let Some(send) = self.queue.get_mut(place as usize)
            && send.is_begun
        {
            send.is_begun = false;
            self.begun -= 1;
        }
        self.grants.push_back(grant);
        Ok(())
    }

    /// Whether the message at `place` in the queue has a grant.
    pub fn is_granted(&self, place: usize) -> bool {
        let number = self.first.wrapping_add(place as u32);
        self.grants.iter().any(|grant| grant.number == number)
    }

    /// Compares a grant with the message at `place`.
    pub fn compare(&self, place: usize, grant: &Grant, ranks: [usize; 2]) -> Result<()> {
        let [from, to] = ranks;
        let send = &self.queue[place];
        send.header.expect(&grant.header, from, to)?;
        let left = send.payload.bytes() - send.written;
        if send.is_whole() || send.is_done || grant.bytes - grant.written > left {
            return Err(Error::corrupt(from, "grant larger than the message"));
        }
        Ok(())
    }

    /// Marks the message with this number as done if nothing reads it again; returns its ticket
    /// then.
    pub fn settle(&mut self, number: u32) -> Option<Ticket> {
        let place = number.wrapping_sub(self.first) as usize;
        let send = self.queue.get_mut(place)?;
        if send.is_done || send.written < send.payload.bytes() || send.flying > 0 {
            return None;
        }
        send.is_done = true;
        let ticket = send.ticket;
        while self.queue.front().is_some_and(|send| send.is_done) {
            self.queue.pop_front();
            self.first = self.first.wrapping_add(1);
            self.introduced -= 1;
        }
        Some(ticket)
    }
}
