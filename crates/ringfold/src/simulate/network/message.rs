//! Messages, receives and what they are kept in.

use std::collections::VecDeque;

use crate::memory::Owned;
use crate::transport::{Header, Sink, Ticket};

/// A stream at its receiver: the sender and the channel.
pub(in crate::simulate) type Source = (u32, u32);

/// A message that was posted and not yet taken in, or one of its segments.
pub(in crate::simulate) struct Message {
    pub from: u32,
    pub to: u32,
    pub channel: u32,
    pub ticket: Ticket,
    pub header: Header,
    /// Which part of the message this segment is, and what it has of it.
    pub offset: u64,
    pub bytes: u64,
    /// Nothing where only bytes are counted.
    pub payload: Option<Owned>,
    /// Whether it uses the ports within a host.
    pub is_local: bool,
    /// When it began to leave.
    pub begin_ps: u64,
    /// When its last byte has left.
    pub sent_ps: u64,
    /// The end of the chain of parts that brought it here.
    pub part: u32,
}

impl Message {
    pub fn is_first(&self) -> bool {
        self.offset == 0
    }

    pub fn is_last(&self) -> bool {
        self.offset + self.bytes == u64::from(self.header.bytes)
    }
}

/// A receive that waits for its message.
#[derive(Clone)]
pub(in crate::simulate) struct Receive {
    pub ticket: Ticket,
    pub header: Header,
    pub sink: Sink,
    /// When it was posted, and the end of the chain behind that.
    pub posted_ps: u64,
    pub part: u32,
}

/// One ordered stream of messages, at the receiver.
#[derive(Default)]
pub(in crate::simulate) struct Incoming {
    /// Posted messages whose receive is missing, in a rendezvous, or whose grant is.
    pub offered: VecDeque<u32>,
    /// Messages that are here and have no receive.
    pub arrived: VecDeque<u32>,
    /// Receives that have no message here.
    pub receives: VecDeque<Receive>,
    /// Messages on their way that no receive was matched with, in a rendezvous or with grants: so
    /// many of the receives, at the front, are theirs.
    pub accepted: usize,
    /// When the last of them arrives, where ports do not see to the order.
    pub until_ps: u64,
    /// Segments that the stream has no room for, and bytes that it holds.
    pub waiting: VecDeque<u32>,
    pub held_bytes: u64,
    /// Messages posted and not arrived.
    pub under_way: usize,
    pub messages: u64,
    pub bytes: u64,
    pub busy_ps: u64,
}

/// Things that are known by a number, which is used again.
pub(in crate::simulate) struct Numbered<T> {
    things: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Numbered<T> {
    pub fn new() -> Numbered<T> {
        Numbered {
            things: Vec::new(),
            free: Vec::new(),
        }
    }

    pub fn add(&mut self, thing: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.things[number as usize] = Some(thing);
                number
            }
            None => {
                self.things.push(Some(thing));
                self.things.len() as u32 - 1
            }
        }
    }

    pub fn take(&mut self, number: u32) -> T {
        self.free.push(number);
        let thing = self.things[number as usize].take();
        thing.expect("a number in use has its thing")
    }

    pub fn at(&mut self, number: u32) -> &mut T {
        let thing = self.things[number as usize].as_mut();
        thing.expect("a number in use has its thing")
    }

    pub fn see(&self, number: u32) -> &T {
        let thing = self.things[number as usize].as_ref();
        thing.expect("a number in use has its thing")
    }
}
