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
use super::segment::{INLINE_BYTES, Lane, Segment};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::transport::{HEADER_BYTES, Header, Sink, Ticket};

/// One end of a ring, with the messages that are queued there.
#[derive(Debug)]
pub struct End<Payload> {
    lane: Lane,
    /// Cells that this end has filled, or emptied.
    cells_done: u64,
    /// Of a sending end: the cells that the receiver was seen to have emptied.
    consumed_seen: u64,
    queue: VecDeque<Message<Payload>>,
}

/// The sending end.
pub type Sender = End<Region>;

/// The receiving end.
pub type Receiver = End<Sink>;

#[derive(Debug)]
struct Message<Payload> {
    ticket: Ticket,
    header: Header,
    payload: Payload,
    done_bytes: usize,
    begun: bool,
}

impl<Payload> End<Payload> {
    /// An end of an unused ring.
    pub fn new(lane: Lane) -> End<Payload> {
        End {
            lane,
            cells_done: 0,
            consumed_seen: 0,
            queue: VecDeque::new(),
        }
    }

    /// Whether nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a message, or the reception of one.
    pub fn push(&mut self, ticket: Ticket, header: Header, payload: Payload) {
        self.queue.push_back(Message {
            ticket,
            header,
            payload,
            done_bytes: 0,
            begun: false,
        });
    }
}

/// Where a message with this header has the first of its payload, if it begins in `cell`, and how
/// much fits there. Both ends know the header.
fn place(segment: &Segment, lane: Lane, header: &Header, cell: usize) -> Region {
    if header.bytes as usize <= INLINE_BYTES {
        segment.cell_inline(lane, cell)
    } else {
        segment.cell(lane, cell)
    }
}

impl Sender {
    /// Fills the cells that are free; appends the tickets of messages that are written whole.
    pub fn pump(&mut self, segment: &Segment, done: &mut Vec<Ticket>) -> Result<()> {
        let lane = self.lane;
        let cells = segment.shape().cells as u64;
        while let Some(message) = self.queue.front_mut() {
            let produced = self.cells_done;
            if produced - self.consumed_seen >= cells {
                // Once it is seen, the receiver's reads of the cells are over.
                let consumed = flag::height(segment.ring_consumed(lane));
                if consumed > produced || consumed < self.consumed_seen {
                    return Err(Error::corrupt(lane.to, "an impossible ring counter"));
                }
                self.consumed_seen = consumed;
                if produced - consumed >= cells {
                    return Ok(());
                }
            }
            let cell = (produced % cells) as usize;
            if !message.begun {
                let header = segment.cell_header(lane, cell);
                header.write(&message.header.encode(0));
                message.begun = true;
            }
            let bytes = message.payload.bytes();
            let end = bytes.min(message.done_bytes + segment.shape().cell_bytes);
            let piece = message.payload.part(message.done_bytes..end);
            place(segment, lane, &message.header, cell)
                .part(0..piece.bytes())
                .copy_from(piece);
            self.cells_done += 1;
            flag::raise(segment.cell_stamp(lane, cell), self.cells_done);
            segment.ring(lane.to);
            message.done_bytes = end;
            if end == bytes {
                done.push(message.ticket);
                self.queue.pop_front();
            }
        }
        Ok(())
    }
}

impl Receiver {
    /// The header of the next message, if it has come. Only while nothing is due.
    pub fn head(&self, segment: &Segment) -> Result<Option<Header>> {
        let lane = self.lane;
        let cell = (self.cells_done % segment.shape().cells as u64) as usize;
        if flag::height(segment.cell_stamp(lane, cell)) != self.cells_done + 1 {
            return Ok(None);
        }
        let mut received = [0; HEADER_BYTES];
        segment.cell_header(lane, cell).read(&mut received);
        Header::claimed(&received, lane.from).map(Some)
    }

    /// Empties the cells that are due; appends the tickets of messages that came whole.
    pub fn pump(&mut self, segment: &Segment, done: &mut Vec<Ticket>) -> Result<()> {
        let lane = self.lane;
        let cells = segment.shape().cells as u64;
        while let Some(message) = self.queue.front_mut() {
            let cell = (self.cells_done % cells) as usize;
            if flag::height(segment.cell_stamp(lane, cell)) != self.cells_done + 1 {
                return Ok(());
            }
            if !message.begun {
                let mut received = [0; HEADER_BYTES];
                segment.cell_header(lane, cell).read(&mut received);
                message.header.expect(&received, lane.from, lane.to)?;
                message.begun = true;
            }
            let bytes = message.payload.bytes();
            let end = bytes.min(message.done_bytes + segment.shape().cell_bytes);
            let piece = place(segment, lane, &message.header, cell);
            let piece = piece.part(0..end - message.done_bytes);
            message.payload.absorb(message.done_bytes, piece);
            self.cells_done += 1;
            flag::raise(segment.ring_consumed(lane), self.cells_done);
            segment.ring(lane.from);
            message.done_bytes = end;
            if end == bytes {
                done.push(message.ticket);
                self.queue.pop_front();
            }
        }
        Ok(())
    }
}
