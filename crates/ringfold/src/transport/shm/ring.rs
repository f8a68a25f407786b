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
use crate::transport::{HEADER_BYTES, Header, Post, Sink, Ticket};

/// One end of a ring, with the messages that are queued there.
#[derive(Debug)]
pub struct End<Payload> {
    lane: Lane,
    /// Cells that this end has filled, or emptied.
    cells_done: u64,
    /// Of a sending end: the cells that the receiver was seen to have emptied.
    consumed_seen: u64,
    queue: VecDeque<(Post, Payload)>,
    /// Bytes of the first message that are written, or read.
    done_bytes: usize,
}

/// The sending end.
pub type Sender = End<Region>;

/// The receiving end.
pub type Receiver = End<Sink>;

impl<Payload> End<Payload> {
    /// An end of an unused ring.
    pub fn new(lane: Lane) -> End<Payload> {
        End {
            lane,
            cells_done: 0,
            consumed_seen: 0,
            queue: VecDeque::new(),
            done_bytes: 0,
        }
    }

    /// Whether nothing is queued.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a message, or the reception of one; whether it is the first in the queue.
    pub fn push(&mut self, post: Post, payload: Payload) -> bool {
        self.queue.push_back((post, payload));
        self.queue.len() == 1
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
        while let Some((Post(_, ticket, header), payload)) = self.queue.front() {
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
            if self.done_bytes == 0 {
                segment.cell_header(lane, cell).write(&header.encode(0));
            }
            let bytes = payload.bytes();
            let end = bytes.min(self.done_bytes + segment.shape().cell_bytes);
            let piece = payload.part(self.done_bytes..end);
            place(segment, lane, header, cell)
                .part(0..piece.bytes())
                .copy_from(piece);
            self.cells_done += 1;
            flag::raise(segment.cell_stamp(lane, cell), self.cells_done);
            segment.ring(lane.to);
            self.done_bytes = end;
            if end == bytes {
                done.push(*ticket);
                self.queue.pop_front();
                self.done_bytes = 0;
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
        while let Some((Post(_, ticket, header), sink)) = self.queue.front() {
            let cell = (self.cells_done % cells) as usize;
            if flag::height(segment.cell_stamp(lane, cell)) != self.cells_done + 1 {
                return Ok(());
            }
            if self.done_bytes == 0 {
                let mut received = [0; HEADER_BYTES];
                segment.cell_header(lane, cell).read(&mut received);
                header.expect(&received, lane.from, lane.to)?;
            }
            let bytes = sink.bytes();
            let end = bytes.min(self.done_bytes + segment.shape().cell_bytes);
            let piece = place(segment, lane, header, cell);
            sink.absorb(self.done_bytes, piece.part(0..end - self.done_bytes));
            self.cells_done += 1;
            flag::raise(segment.ring_consumed(lane), self.cells_done);
            segment.ring(lane.from);
            self.done_bytes = end;
            if end == bytes {
                done.push(*ticket);
                self.queue.pop_front();
                self.done_bytes = 0;
            }
        }
        Ok(())
    }
}
