//! The receiving half of one connection: expected messages in order, as far as they have come.
//!
//! A message that is stored goes straight to where it belongs, once its header was checked. A message that is reduced, or
//! that is small, goes through the transport's one staging area, which is hot in the cache: what has come is absorbed at
//! once, except a rest shorter than [`PIECE_ALIGN_BYTES`] that waits here for what follows it. So the staging area is
//! empty between calls and serves all connections.
//!
//! Never reads beyond the message that is due.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use super::{Progress, TRAILER_BYTES, broken, corrupt};
use crate::error::Result;
use crate::memory::Region;
use crate::sys;
use crate::transport::checksum::{self, Checksum};
use crate::transport::{HEADER_BYTES, Header, PIECE_ALIGN_BYTES, Sink, Ticket};

/// Stored messages up to this length are staged: one call for header and payload, one copy more.
const STAGED_BYTES: usize = 8 << 10;

/// Bytes taken from the socket straight to their place in one call; they are in the cache when they are summed.
const READ_BYTES: usize = 256 << 10;

/// Messages to receive, the first one perhaps in part.
pub struct Incoming {
    peer: usize,
    /// This rank.
    rank: usize,
    queue: VecDeque<Recv>,
    /// Of the first message: its header, and how much of it has come.
    header: [u8; HEADER_BYTES],
    header_came: usize,
    /// Bytes of its payload that were absorbed.
    absorbed: usize,
    /// Bytes that came after those and wait for the piece to be complete.
    rest: [u8; PIECE_ALIGN_BYTES],
    rest_bytes: usize,
    /// The checksum of all payload that has come.
    sum: Checksum,
    trailer: [u8; TRAILER_BYTES],
    trailer_came: usize,
}

#[derive(Clone, Copy)]
struct Recv {
    ticket: Ticket,
    header: Header,
    sink: Sink,
}

impl Incoming {
    pub fn new(peer: usize, rank: usize, room: usize) -> Incoming {
        Incoming {
            peer,
            rank,
            queue: VecDeque::with_capacity(room),
            header: [0; HEADER_BYTES],
            header_came: 0,
            absorbed: 0,
            rest: [0; PIECE_ALIGN_BYTES],
            rest_bytes: 0,
            sum: Checksum::new(),
            trailer: [0; TRAILER_BYTES],
            trailer_came: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn push(&mut self, ticket: Ticket, header: Header, sink: Sink) {
        self.queue.push_back(Recv {
            ticket,
            header,
            sink,
        });
    }

    /// Receives until the queue is empty, the socket is empty or about `budget_bytes` have come.
    pub fn read(
        &mut self,
        socket: BorrowedFd<'_>,
        staging: Region,
        budget_bytes: usize,
        done: &mut Vec<Ticket>,
    ) -> Result<Progress> {
        let mut came = 0;
        while let Some(first) = self.queue.front().copied() {
            if came >= budget_bytes {
                return Ok(Progress::More);
            }
            let Some(count) = self.read_piece(socket, staging, &first)? else {
                return Ok(Progress::Blocked);
            };
            came += count;
            if self.is_complete(&first) {
                self.check_trailer(&first)?;
                done.push(first.ticket);
                self.queue.pop_front();
                self.begin();
            }
        }
        Ok(Progress::Idle)
    }

    /// One call's worth of the first message; `None` if nothing has come.
    fn read_piece(
        &mut self,
        socket: BorrowedFd<'_>,
        staging: Region,
        first: &Recv,
    ) -> Result<Option<usize>> {
        let bytes = first.sink.bytes();
        let landing = first.sink.landing().filter(|_| bytes > STAGED_BYTES);
        let due = bytes - self.absorbed;
        let body = match landing {
            // Nothing lands before the header was checked.
            Some(_) if self.header_came < HEADER_BYTES => Region::EMPTY,
            Some(into) => into.part(self.absorbed..self.absorbed + due.min(READ_BYTES)),
            None => {
                staging.write(&self.rest[..self.rest_bytes]);
                staging.part(self.rest_bytes..due.min(staging.bytes()))
            }
        };
        let ends = body.bytes() + self.rest_bytes == due;
        let trailer = if ends && bytes > 0 {
            self.trailer_came
        } else {
            TRAILER_BYTES
        };
        let received = sys::recv_into(
            socket,
            &mut self.header[self.header_came..],
            body,
            &mut self.trailer[trailer..],
        );
        let count = match received {
            Ok(0) => return Err(broken(self.peer, io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(broken(self.peer, error)),
        };
        let of_header = count.min(HEADER_BYTES - self.header_came);
        if of_header > 0 {
            self.header_came += of_header;
            if self.header_came == HEADER_BYTES {
                self.check_header(first)?;
            }
        }
        let of_body = (count - of_header).min(body.bytes());
        self.trailer_came += count - of_header - of_body;
        self.sum.extend(body.part(0..of_body));
        if landing.is_some() {
            self.absorbed += of_body;
        } else {
            self.absorb(first, staging.part(0..self.rest_bytes + of_body));
        }
        Ok(Some(count))
    }

    /// Passes on what stands in the staging area, except a rest that is no whole piece.
    fn absorb(&mut self, first: &Recv, staged: Region) {
        let is_last = self.absorbed + staged.bytes() == first.sink.bytes();
        let whole = if is_last {
            staged.bytes()
        } else {
            staged.bytes() / PIECE_ALIGN_BYTES * PIECE_ALIGN_BYTES
        };
        if whole > 0 {
            first.sink.absorb(self.absorbed, staged.part(0..whole));
        }
        self.absorbed += whole;
        let rest = staged.part(whole..staged.bytes());
        self.rest_bytes = rest.bytes();
        rest.read(&mut self.rest[..rest.bytes()]);
    }

    fn is_complete(&self, first: &Recv) -> bool {
        let bytes = first.sink.bytes();
        self.header_came == HEADER_BYTES
            && self.absorbed == bytes
            && (bytes == 0 || self.trailer_came == TRAILER_BYTES)
    }

    fn check_header(&self, first: &Recv) -> Result<()> {
        let claimed = u32::from_le_bytes([
            self.header[36],
            self.header[37],
            self.header[38],
            self.header[39],
        ]);
        // First whether these bytes were sent at all, then whether they were due.
        if claimed != checksum::of(&self.header[..HEADER_BYTES - 4]) {
            return Err(corrupt(
                self.peer,
                "the checksum of a message header is wrong",
            ));
        }
        first
            .header
            .expect(&self.header, self.peer, self.rank)
            .map(|_| ())
    }

    fn check_trailer(&self, first: &Recv) -> Result<()> {
        if first.sink.bytes() > 0 && u32::from_le_bytes(self.trailer) != self.sum.value() {
            return Err(corrupt(
                self.peer,
                "the checksum of a message's payload is wrong",
            ));
        }
        Ok(())
    }

    /// Forgets the message that is complete.
    fn begin(&mut self) {
        self.header_came = 0;
        self.absorbed = 0;
        self.rest_bytes = 0;
        self.sum.reset();
        self.trailer_came = 0;
    }
}
