//! Messages between two ranks of a host: a ring of cells for each direction and channel.
//!
//! The sender fills cell `produced % cells` and stamps it `produced + 1`; the receiver empties it
//! and counts `consumed` up. A message takes one cell, or several in a row: the first carries the
//! header, and both ends know from it how many follow. The sender never has more than `cells` cells
//! ahead of the receiver: those are its credits.
//!
//! A payload that fits into what the header leaves of its line stands there: a receiver that sees
//! the stamp has it, and asks for no second line.

use std::collections::VecDeque;

use super::flag;
use super::segment::{INLINE_BYTES, Segment};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::transport::{HEADER_BYTES, Header, Sink, Ticket};

/// Which ring: the sender, the receiver, the channel.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// The channel.
    pub channel: usize,
}

impl Lane {
    /// Where a message with this header has the first of its payload, if it begins in `cell`, and
    /// how much fits there. Both ends know the header.
    fn place(self, segment: &Segment, header: &Header, cell: usize) -> Region {
        let Lane { from, to, channel } = self;
        if header.bytes as usize <= INLINE_BYTES {
            segment.cell_inline(from, to, channel, cell)
        } else {
            segment.cell(from, to, channel, cell)
        }
    }
}

/// The sending end.
#[derive(Debug)]
pub struct Sender {
    lane: Lane,
    produced: u64,
    consumed_seen: u64,
    queue: VecDeque<Outgoing>,
}

#[derive(Debug)]
struct Outgoing {
    ticket: Ticket,
    header: Header,
    payload: Region,
    written_bytes: usize,
    begun: bool,
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver {
    lane: Lane,
    consumed: u64,
    queue: VecDeque<Incoming>,
}

#[derive(Debug)]
struct Incoming {
    ticket: Ticket,
    header: Header,
    sink: Sink,
    absorbed_bytes: usize,
    begun: bool,
}

impl Sender {
    /// The sending end of an unused ring.
    pub fn new(lane: Lane) -> Sender {
        Sender {
            lane,
            produced: 0,
            consumed_seen: 0,
            queue: VecDeque::new(),
        }
    }

    /// Whether nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a message.
    pub fn push(&mut self, ticket: Ticket, header: Header, payload: Region) {
        self.queue.push_back(Outgoing {
            ticket,
            header,
            payload,
            written_bytes: 0,
            begun: false,
        });
    }

    /// Fills the cells that are free; appends the tickets of messages that are written whole.
    pub fn pump(&mut self, segment: &Segment, done: &mut Vec<Ticket>) -> Result<()> {
        let Lane { from, to, channel } = self.lane;
        let cells = segment.shape().cells as u64;
        while let Some(message) = self.queue.front_mut() {
            if self.produced - self.consumed_seen >= cells {
                // Once it is seen, the receiver's reads of the cells are over.
                let consumed = flag::height(segment.ring_consumed(from, to, channel));
                if consumed > self.produced || consumed < self.consumed_seen {
                    return Err(Error::corrupt(to, "an impossible ring counter"));
                }
                self.consumed_seen = consumed;
                if self.produced - consumed >= cells {
                    return Ok(());
                }
            }
            let cell = (self.produced % cells) as usize;
            if !message.begun {
                segment
                    .cell_header(from, to, channel, cell)
                    .write(&message.header.encode(0));
                message.begun = true;
            }
            let end = message
                .payload
                .bytes()
                .min(message.written_bytes + segment.shape().cell_bytes);
            let piece = message.payload.part(message.written_bytes..end);
            self.lane
                .place(segment, &message.header, cell)
                .part(0..piece.bytes())
                .copy_from(piece);
            self.produced += 1;
            flag::raise(segment.cell_stamp(from, to, channel, cell), self.produced);
            segment.doorbell(to).ring();
            message.written_bytes = end;
            if end == message.payload.bytes() {
                done.push(message.ticket);
                self.queue.pop_front();
            }
        }
        Ok(())
    }
}

impl Receiver {
    /// The receiving end of an unused ring.
    pub fn new(lane: Lane) -> Receiver {
        Receiver {
            lane,
            consumed: 0,
            queue: VecDeque::new(),
        }
    }

    /// Whether nothing is due.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a reception.
    pub fn push(&mut self, ticket: Ticket, header: Header, sink: Sink) {
        self.queue.push_back(Incoming {
            ticket,
            header,
            sink,
            absorbed_bytes: 0,
            begun: false,
        });
    }

    /// The header of the next message, if it has come. Only while nothing is due.
    pub fn head(&self, segment: &Segment) -> Result<Option<Header>> {
        let Lane { from, to, channel } = self.lane;
        let cell = (self.consumed % segment.shape().cells as u64) as usize;
        if flag::height(segment.cell_stamp(from, to, channel, cell)) != self.consumed + 1 {
            return Ok(None);
        }
        let mut received = [0; HEADER_BYTES];
        segment
            .cell_header(from, to, channel, cell)
            .read(&mut received);
        Header::claimed(&received, from).map(Some)
    }

    /// Empties the cells that are due; appends the tickets of messages that came whole.
    pub fn pump(&mut self, segment: &Segment, done: &mut Vec<Ticket>) -> Result<()> {
        let Lane { from, to, channel } = self.lane;
        let cells = segment.shape().cells as u64;
        while let Some(message) = self.queue.front_mut() {
            let cell = (self.consumed % cells) as usize;
            if flag::height(segment.cell_stamp(from, to, channel, cell)) != self.consumed + 1 {
                return Ok(());
            }
            if !message.begun {
                let mut received = [0; HEADER_BYTES];
                segment
                    .cell_header(from, to, channel, cell)
                    .read(&mut received);
                message.header.expect(&received, from, to)?;
                message.begun = true;
            }
            let bytes = message.sink.bytes();
            let end = bytes.min(message.absorbed_bytes + segment.shape().cell_bytes);
            let piece = self
                .lane
                .place(segment, &message.header, cell)
                .part(0..end - message.absorbed_bytes);
            message.sink.absorb(message.absorbed_bytes, piece);
            self.consumed += 1;
            flag::raise(segment.ring_consumed(from, to, channel), self.consumed);
            segment.doorbell(from).ring();
            message.absorbed_bytes = end;
            if end == bytes {
                done.push(message.ticket);
                self.queue.pop_front();
            }
        }
        Ok(())
    }
}
