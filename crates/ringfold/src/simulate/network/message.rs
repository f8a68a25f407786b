//! Messages, receives, and the queues and tables that hold them.

use std::collections::VecDeque;

use crate::memory::Owned;
use crate::transport::{Header, Sink, Ticket};

/// A stream at its receiver: the sender and the channel.
pub(in crate::simulate) type StreamKey = (u32, u32);

/// A message that was posted and is not yet consumed, or one of its segments.
pub(in crate::simulate) struct Message {
    pub from: u32,
    pub to: u32,
    pub channel: u32,
    pub ticket: Ticket,
    pub header: Header,
    /// Position of this segment in its message, and the segment's length.
    pub offset: u64,
    pub bytes: u64,
    /// The data; `None` if only bytes are counted.
    pub payload: Option<Owned>,
    /// Whether the message uses the ports within a host.
    pub is_local: bool,
    /// Time at which the message began to leave.
    pub begin_ps: u64,
    /// Time at which the message's last byte left.
    pub sent_ps: u64,
    /// End of the chain of parts that led to the message's current state.
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
    /// Time of posting, and the end of the chain of parts that led to it.
    pub posted_ps: u64,
    pub part: u32,
}

/// One ordered stream of messages, at the receiver.
#[derive(Default)]
pub(in crate::simulate) struct IncomingStream {
    /// Posted messages that wait for their receive (in a rendezvous) or for their grant.
    pub offered: VecDeque<u32>,
    /// Arrived messages without a receive.
    pub arrived: VecDeque<u32>,
    /// Receives whose message has not arrived.
    pub receives: VecDeque<Receive>,
    /// With a rendezvous or grants: number of launched messages not yet matched. As many receives,
    /// at the front, are reserved for them.
    pub accepted: usize,
    /// Arrival time of the last message, if the ports do not keep the order.
    pub until_ps: u64,
    /// Segments that wait for room in the stream, and bytes that the stream holds.
    pub waiting: VecDeque<u32>,
    pub held_bytes: u64,
    /// Number of segments posted and not arrived.
    pub under_way: usize,
    pub messages: u64,
    pub bytes: u64,
    pub busy_ps: u64,
}

/// Table of values by number; free numbers are reused.
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
        thing.expect("a number in use has a value")
    }

    pub fn at(&mut self, number: u32) -> &mut T {
        let thing = self.things[number as usize].as_mut();
        thing.expect("a number in use has a value")
    }

    pub fn see(&self, number: u32) -> &T {
        let thing = self.things[number as usize].as_ref();
        thing.expect("a number in use has a value")
    }
}
