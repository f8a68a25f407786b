//! Messages between two ranks of a host: a ring of cells for each direction and channel.
//!
//! The sender fills cell `produced % cells` and stamps it `produced + 1`; the receiver empties the
//! cell and counts `consumed` up. A message takes one cell, or several in a row: the first contains
//! the header, from which both ends know how many follow. The sender is never more than `cells`
//! cells ahead of the receiver: those are its credits.
//!
//! A payload that fits into the rest of the header's line is stored there: a receiver that sees the
//! stamp has the payload, and requests no second line.
//!
//! # Lent messages
//!
//! A payload in registered memory that the receiver has mapped is not copied by the sender, nor a
//! long payload in ordinary memory that the receiver can read (`reading`). The message takes one
//! cell with the payload's location: the registration's number in the header's last field, which is
//! 0 otherwise, and the offset behind the header. The receiver reads the payload at that location,
//! and then empties the cell. The send is complete when the sender sees the cell empty, so nothing
//! writes to the memory meanwhile. The location is the sender's claim, which is checked against the
//! mapping, or by the kernel. A rank that returns an error, and with it the memory, withdraws
//! first: the receiver discards a payload that it has not finished reading by then.

use std::collections::VecDeque;

use super::flag;
use super::reading::Reader;
use super::segment::{INLINE_BYTES, RingId, Segment};
use crate::error::{Error, Result};
use crate::memory::{BufferHandle, PeerMemory, Region};
use crate::transport::{HEADER_BYTES, Header, Post, Sink, Ticket};

const _: () = assert!(
    INLINE_BYTES >= size_of::<u64>(),
    "a line has room for an offset behind the header"
);

/// One end of a ring, with its queued messages.
#[derive(Debug)]
pub struct RingEnd<T> {
    id: RingId,
    /// Number of cells that this end has filled or emptied.
    cells_done: u64,
    /// Number of cells that a sending end has seen emptied by the receiver.
    consumed_seen: u64,
    queue: VecDeque<(Post, T)>,
    /// Bytes of the first message that are written or read.
    done_bytes: usize,
    /// Lent messages that a sending end has written, each with the cells filled until then.
    lent: VecDeque<(Ticket, u64)>,
}

/// Payload of a sent message.
#[derive(Clone, Copy, Debug)]
pub struct SendBuffer {
    /// Bytes of the payload.
    pub region: Region,
    /// Location of the payload for the receiver, if lent.
    pub place: Option<BufferHandle>,
}

/// The memory of peers that this rank can read.
#[derive(Debug, Default)]
pub struct Lenders {
    /// Registered memory.
    pub registered: PeerMemory,
    /// Ordinary memory, once the ranks have agreed to read it.
    pub ordinary: Option<Reader>,
}

/// The sending end of a ring.
pub type Sender = RingEnd<SendBuffer>;

/// The receiving end of a ring.
pub type Receiver = RingEnd<Sink>;

impl<T> RingEnd<T> {
    /// Creates an end of an unused ring.
    pub fn new(id: RingId) -> RingEnd<T> {
        RingEnd {
            id,
            cells_done: 0,
            consumed_seen: 0,
            queue: VecDeque::new(),
            done_bytes: 0,
            lent: VecDeque::new(),
        }
    }

    /// Whether nothing is in progress.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.lent.is_empty()
    }

    /// Queues a message or a receive; returns whether it is the first of the queue.
    pub fn push(&mut self, post: Post, payload: T) -> bool {
        self.queue.push_back((post, payload));
        self.queue.len() == 1
    }
}

/// Returns the memory in `cell` for the payload of a message with this header, which both ends
/// know.
fn place(segment: &Segment, id: RingId, header: &Header, cell: usize) -> Region {
    if header.bytes as usize <= INLINE_BYTES {
        segment.cell_inline(id, cell)
    } else {
        segment.cell(id, cell)
    }
}

impl Sender {
    /// Fills the free cells; appends the tickets of completely written messages, and of lent
    /// messages that were taken.
    pub fn pump(&mut self, segment: &Segment, done: &mut Vec<Ticket>) -> Result<()> {
        if !self.lent.is_empty() {
            self.end_loans(segment, done)?;
        }
        self.fill(segment, done)
    }

    /// Fills the free cells; appends the tickets of completely written messages.
    pub fn fill(&mut self, segment: &Segment, done: &mut Vec<Ticket>) -> Result<()> {
        let id = self.id;
        let cells = segment.shape().cells as u64;
        while let Some((Post(_, ticket, header), payload)) = self.queue.front() {
            if self.cells_done - self.consumed_seen >= cells {
                self.consumed_seen = self.consumed(segment)?;
                if self.cells_done - self.consumed_seen >= cells {
                    return Ok(());
                }
            }
            let cell = (self.cells_done % cells) as usize;
            let bytes = payload.region.bytes();
            let end = match payload.place {
                Some(place) => {
                    lend(segment, id, cell, header, place);
                    self.lent.push_back((*ticket, self.cells_done + 1));
                    bytes
                }
                None => {
                    let begin = self.done_bytes;
                    let end = bytes.min(begin + segment.shape().cell_bytes);
                    if begin == 0 {
                        segment.cell_header(id, cell).write(&header.encode(0));
                    }
                    let piece = payload.region.part(begin..end);
                    place(segment, id, header, cell)
                        .part(0..piece.bytes())
                        .copy_from(piece);
                    if end == bytes {
                        done.push(*ticket);
                    }
                    end
                }
            };
            self.cells_done += 1;
            flag::raise(segment.cell_stamp(id, cell), self.cells_done);
            segment.ring(id.to);
            self.done_bytes = end;
            if end == bytes {
                self.queue.pop_front();
                self.done_bytes = 0;
            }
        }
        Ok(())
    }

    /// Returns how many cells the receiver has emptied. Once a number is seen, the receiver's reads
    /// of these cells, and of memory lent by them, are over.
    fn consumed(&self, segment: &Segment) -> Result<u64> {
        let consumed = flag::height(segment.ring_consumed(self.id));
        if consumed > self.cells_done || consumed < self.consumed_seen {
            let what = "invalid ring counter";
            return Err(Error::corrupt(self.id.to, what));
        }
        Ok(consumed)
    }

    /// Appends the tickets of the lent messages that the receiver has taken.
    fn end_loans(&mut self, segment: &Segment, done: &mut Vec<Ticket>) -> Result<()> {
        self.consumed_seen = self.consumed(segment)?;
        while let Some(&(ticket, cells)) = self.lent.front()
            && cells <= self.consumed_seen
        {
            done.push(ticket);
            self.lent.pop_front();
        }
        Ok(())
    }
}

/// Writes a message into `cell` whose payload is at `place`.
fn lend(segment: &Segment, id: RingId, cell: usize, header: &Header, place: BufferHandle) {
    let header = header.encode(place.registration);
    segment.cell_header(id, cell).write(&header);
    let behind = segment.cell_inline(id, cell);
    behind.write(&place.offset.to_ne_bytes());
}

/// Takes the message of `cell` from the sender's memory, at `registration` and the offset in the
/// cell; false if the sender has withdrawn that memory, or has ended.
fn take_lent(
    segment: &Segment,
    lenders: &Lenders,
    (id, cell): (RingId, usize),
    registration: u32,
    sink: &Sink,
) -> Result<bool> {
    if segment.has_withdrawn(id.from) {
        return Ok(false);
    }
    let place = BufferHandle {
        registration,
        offset: segment.cell_inline(id, cell).word(0),
    };
    // Calls that reduce do not lend ordinary memory; the registry refuses such a claim.
    if registration == BufferHandle::ORDINARY
        && let (Some(reader), Some(into)) = (&lenders.ordinary, sink.landing())
    {
        return reader.take(segment, id.from, place.offset, into);
    }
    let memory = &lenders.registered;
    sink.absorb(0, memory.resolve(id.from, place, sink.bytes())?);
    Ok(!segment.has_withdrawn(id.from))
}

impl Receiver {
    /// Returns the header of the next message, if it has arrived. Called only while none is
    /// expected.
    pub fn head(&self, segment: &Segment) -> Result<Option<Header>> {
        let id = self.id;
        let cell = (self.cells_done % segment.shape().cells as u64) as usize;
        if flag::height(segment.cell_stamp(id, cell)) != self.cells_done + 1 {
            return Ok(None);
        }
        let mut received = [0; HEADER_BYTES];
        segment.cell_header(id, cell).read(&mut received);
        Header::claimed(&received, id.from).map(Some)
    }

    /// Empties the cells of expected messages; appends the tickets of completely received ones.
    /// Reads one lent message from the memory of `lenders`, or leaves it to a later call without
    /// them: a long read must not delay this rank's own messages, which peers read meanwhile.
    pub fn pump(
        &mut self,
        segment: &Segment,
        lenders: Option<&Lenders>,
        done: &mut Vec<Ticket>,
    ) -> Result<()> {
        let id = self.id;
        let cells = segment.shape().cells as u64;
        while let Some((Post(_, ticket, header), sink)) = self.queue.front() {
            let cell = (self.cells_done % cells) as usize;
            if flag::height(segment.cell_stamp(id, cell)) != self.cells_done + 1 {
                return Ok(());
            }
            let mut registration = 0;
            if self.done_bytes == 0 {
                let mut received = [0; HEADER_BYTES];
                segment.cell_header(id, cell).read(&mut received);
                registration = header.expect(&received, id.from, id.to)?;
            }
            let bytes = sink.bytes();
            let mut end = bytes.min(self.done_bytes + segment.shape().cell_bytes);
            if registration == 0 {
                let piece = place(segment, id, header, cell);
                sink.absorb(self.done_bytes, piece.part(0..end - self.done_bytes));
            } else {
                let Some(lenders) = lenders else {
                    return Ok(());
                };
                if !take_lent(segment, lenders, (id, cell), registration, sink)? {
                    return Ok(());
                }
                end = bytes;
            }
            self.cells_done += 1;
            flag::raise(segment.ring_consumed(id), self.cells_done);
            segment.ring(id.from);
            self.done_bytes = end;
            if end == bytes {
                done.push(*ticket);
                self.queue.pop_front();
                self.done_bytes = 0;
            }
            if registration != 0 {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
