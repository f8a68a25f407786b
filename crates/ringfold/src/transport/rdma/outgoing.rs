//! The sending half of a link: messages in the order in which they were posted, and the grants of
//! the peer.
//!
//! A message is *introduced* when the peer can know of it: a short one is sent whole, a long one
//! announced, unless its grant is here already. Messages are introduced in order.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::memory::Region;
use crate::transport::{HEADER_BYTES, Header, Post, Ticket};
use crate::verbs::Place;

use super::packet::WHOLE_BYTES_MAX;

/// Short messages that the peer has room for before it takes one.
pub const CREDITS: u32 = 8;
/// Announced messages without a grant.
pub const BEGUN_MAX: usize = 8;
/// Grants that are not used up.
pub const GRANTS_MAX: usize = 8;

/// A message that is not complete.
pub struct Send {
    pub ticket: Ticket,
    pub header: Header,
    pub payload: Region,
    /// Bytes that the device was told to write.
    pub written: usize,
    /// Writes under way that read the payload itself.
    pub flying: usize,
    /// Whether it was announced and waits for its first grant.
    pub is_begun: bool,
    /// Whether nothing reads the payload any more.
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

/// What the peer has granted, as it claims.
#[derive(Clone, Copy)]
pub struct Grant {
    pub number: u32,
    pub header: [u8; HEADER_BYTES],
    pub bytes: usize,
    pub place: Place,
    /// How much of it was written.
    pub written: usize,
}

#[derive(Default)]
pub struct Outgoing {
    pub queue: VecDeque<Send>,
    /// The number of the queue's first message.
    pub first: u32,
    /// How many of the queue's messages are introduced.
    pub introduced: usize,
    /// How many of these wait for their first grant.
    pub begun: usize,
    pub grants: VecDeque<Grant>,
    /// The number of the next grant, for the peer.
    pub sequence: u32,
    /// Short messages that were sent, and how many of them the peer has taken; modulo 2^32.
    pub sent: u32,
    pub consumed: u32,
}

impl Outgoing {
    /// Whether a short message may be sent.
    pub fn has_credit(&self) -> bool {
        self.sent.wrapping_sub(self.consumed) < CREDITS
    }

    /// Takes over how many short messages the peer says to have taken.
    pub fn note_consumed(&mut self, consumed: u32, peer: usize) -> Result<()> {
        let taken = consumed.wrapping_sub(self.consumed);
        if taken > self.sent.wrapping_sub(self.consumed) {
            return Err(Error::corrupt(peer, "more messages taken than were sent"));
        }
        self.consumed = consumed;
        Ok(())
    }

    /// Takes over a grant.
    pub fn note_grant(&mut self, grant: Grant, peer: usize) -> Result<()> {
        if self.grants.len() == GRANTS_MAX || grant.bytes == 0 {
            return Err(Error::corrupt(peer, "a grant that could not be made"));
        }
        let place = grant.number.wrapping_sub(self.first);
        if place > i32::MAX as u32 {
            // Of a message that was sent whole: the peer sees by itself that it waits for another.
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
            return Err(Error::corrupt(from, "a grant of more than is sent"));
        }
        Ok(())
    }

    /// Marks the message with this number if nothing reads it any more; its ticket then.
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
