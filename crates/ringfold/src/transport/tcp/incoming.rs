//! The receiving half of one connection: expected messages in order, as far as they have arrived.
//!
//! A long message that is stored is received directly into its destination, once its header was
//! checked. A message that is reduced or short passes through the transport's single staging area,
//! which is hot in the cache. So header and payload of a short message take one system call, at the
//! price of one copy. Received data is absorbed at once, except a rest shorter than
//! [`PIECE_ALIGN_BYTES`], which stays here for the data that follows. So the staging area is empty
//! between calls and serves all connections.
//!
//! A read ends with the expected message. If a receive listens for unexpected messages, data behind
//! a header is read with it, up to [`AHEAD_BYTES`], so that a small message still takes one call.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::net::{RecvFlags, recv};

use super::frame::{QueueProgress, TRAILER_BYTES, broken};
use crate::error::{Error, GONE, Result};
use crate::memory::{Owned, Region};
use crate::reduce::Digest;
use crate::sys;
use crate::transport::checksum;
use crate::transport::{HEADER_BYTES, Head, Header, PIECE_ALIGN_BYTES, Post, Sink, Ticket};

/// Maximum bytes read behind a header while a receive listens.
const AHEAD_BYTES: usize = (8 << 10) + TRAILER_BYTES;

/// Maximum length of a message that is read together with its header, by one system call, and
/// copied from there: 8 to 12 % quicker than reading the header first, see
/// docs/explanation/transports.md.
const SHORT_BYTES_MAX: usize = 8 << 10;

/// Maximum bytes read from the socket directly into their destination in one call; they are in the
/// cache when they are summed.
const READ_BYTES: usize = 512 << 10;

/// Messages to receive, the first perhaps received in part.
pub struct ReceiveQueue {
    peer: usize,
    /// This rank's number.
    rank: usize,
    queue: VecDeque<QueuedReceive>,
    /// Header of the first message; `header_came` bytes of it have arrived.
    header: [u8; HEADER_BYTES],
    header_came: usize,
    /// Whether the header is the expected one.
    header_compared: bool,
    /// Bytes of the first message's payload that were absorbed.
    absorbed: usize,
    /// Received bytes behind the absorbed ones, until their piece is complete.
    rest: [u8; PIECE_ALIGN_BYTES],
    rest_bytes: usize,
    /// Checksum of all received payload of the first message.
    sum: Digest,
    trailer: [u8; TRAILER_BYTES],
    trailer_came: usize,
    /// Whether headers of unexpected messages are wanted.
    is_listened: bool,
    /// Whether the peer has closed its end, between two messages.
    has_ended: bool,
    /// Memory for data behind a header; allocated when a receive listens for the first time.
    ahead: Owned,
    /// Part of `ahead` that is not consumed.
    ahead_left: Range<usize>,
}

#[derive(Clone, Copy)]
struct QueuedReceive {
    post: Post,
    sink: Sink,
}

impl ReceiveQueue {
    pub fn new(peer: usize, rank: usize, room: usize) -> ReceiveQueue {
        ReceiveQueue {
            peer,
            rank,
            queue: VecDeque::with_capacity(room),
            header: [0; HEADER_BYTES],
            header_came: 0,
            header_compared: false,
            absorbed: 0,
            rest: [0; PIECE_ALIGN_BYTES],
            rest_bytes: 0,
            sum: Digest::new(),
            trailer: [0; TRAILER_BYTES],
            trailer_came: 0,
            is_listened: false,
            has_ended: false,
            ahead: Owned::zeroed(0),
            ahead_left: 0..0,
        }
    }

    /// Sets whether headers of unexpected messages are wanted.
    pub fn listen(&mut self, is_wanted: bool) {
        self.is_listened = is_wanted;
        if is_wanted && self.ahead.region().is_empty() {
            self.ahead = Owned::zeroed(AHEAD_BYTES);
        }
    }

    pub fn is_listened(&self) -> bool {
        self.is_listened
    }

    /// Whether a read could help any receive.
    pub fn is_wanting(&self) -> bool {
        let is_open = self.header_came < HEADER_BYTES && !self.has_ended;
        !self.queue.is_empty() || (self.is_listened && is_open)
    }

    /// Whether the next message's header has arrived while nothing is expected: the next receive is
    /// for that message.
    pub fn has_begun(&self) -> bool {
        self.queue.is_empty() && self.header_came == HEADER_BYTES
    }

    /// Whether data was read that is not consumed.
    pub fn has_ahead(&self) -> bool {
        !self.ahead_left.is_empty()
    }

    /// Returns the header of the next message, as far as `read` has found it.
    pub fn head(&self) -> Result<Head> {
        assert!(self.queue.is_empty(), "a receive is posted");
        if self.header_came == HEADER_BYTES {
            return Header::claimed(&self.header, self.peer).map(Head::Message);
        }
        Ok(if self.has_ended {
            Head::End(GONE)
        } else {
            Head::Nothing
        })
    }

    /// Returns the header of a message that has arrived unexpectedly; the message stays in the
    /// socket.
    pub fn peek(&self, socket: BorrowedFd<'_>) -> Result<Option<Header>> {
        let mut header = [0; HEADER_BYTES];
        let is_between = self.queue.is_empty() && self.header_came == 0 && !self.has_ahead();
        // An end or an error is found by the next read.
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut peek = || recv(socket, &mut header, flags).map(|(count, _)| count);
        if !is_between || !matches!(peek(), Ok(HEADER_BYTES)) {
            return Ok(None);
        }
        check(&header, self.peer)?;
        Header::claimed(&header, self.peer).map(Some)
    }

    /// Returns the length of the first message's payload; 0 if none is expected.
    pub fn next_bytes(&self) -> usize {
        let next = self.queue.front();
        next.map_or(0, |recv| recv.sink.bytes())
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn push(&mut self, post: Post, sink: Sink) {
        self.queue.push_back(QueuedReceive { post, sink });
    }

    /// Receives until the queue is empty, the socket is empty or about `budget_bytes` have arrived.
    /// Then reads a header if a receive listens.
    pub fn read(
        &mut self,
        socket: BorrowedFd<'_>,
        staging: Region,
        budget_bytes: usize,
        done: &mut Vec<Ticket>,
    ) -> Result<QueueProgress> {
        let mut came = 0;
        while let Some(first) = self.queue.front().copied() {
            if came >= budget_bytes {
                return Ok(QueueProgress::More);
            }
            self.compare_header(&first)?;
            if !self.is_complete(&first) {
                let Some(count) = self.read_piece(socket, staging, &first)? else {
                    return Ok(QueueProgress::Blocked);
                };
                came += count;
            }
            if self.is_complete(&first) {
                self.check_trailer(&first)?;
                let Post(_, ticket, _) = first.post;
                done.push(ticket);
                self.queue.pop_front();
                self.begin();
            }
        }
        if self.is_listened {
            return self.look(socket);
        }
        Ok(QueueProgress::Idle)
    }

    /// Reads the header of an unexpected message, and the data behind it.
    fn look(&mut self, socket: BorrowedFd<'_>) -> Result<QueueProgress> {
        while self.header_came < HEADER_BYTES && !self.has_ended {
            let room = if self.has_ahead() {
                Region::EMPTY
            } else {
                self.ahead.region()
            };
            match self.receive(socket, room, TRAILER_BYTES) {
                Ok(0) if self.header_came == 0 => self.has_ended = true,
                Ok(0) => return Err(broken(self.peer, io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    let of_header = count.min(HEADER_BYTES - self.header_came);
                    self.header_came += of_header;
                    if count > of_header {
                        self.ahead_left = 0..count - of_header;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(QueueProgress::Blocked);
                }
                Err(error) => return Err(broken(self.peer, error)),
            }
            if self.header_came == HEADER_BYTES {
                self.check_header()?;
            }
        }
        Ok(QueueProgress::Idle)
    }

    /// Fills the rest of the header, `body` and the trailer from its byte `trailer` on, in this
    /// order: from data that was read ahead, else from the socket.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        body: Region,
        trailer: usize,
    ) -> io::Result<usize> {
        let header = &mut self.header[self.header_came..];
        let trailer = &mut self.trailer[trailer..];
        if self.ahead_left.is_empty() {
            return sys::recv_into(socket, header, body, trailer);
        }
        let (ahead, left) = (self.ahead.region(), &mut self.ahead_left);
        let before = left.len();
        let mut take = |bytes: usize| {
            let part = left.start..left.end.min(left.start + bytes);
            left.start = part.end;
            ahead.part(part)
        };
        let part = take(header.len());
        part.read(&mut header[..part.bytes()]);
        let part = take(body.bytes());
        body.part(0..part.bytes()).copy_from(part);
        let part = take(trailer.len());
        part.read(&mut trailer[..part.bytes()]);
        Ok(before - self.ahead_left.len())
    }

    /// Receives one call's worth of the first message; `None` if nothing has arrived.
    fn read_piece(
        &mut self,
        socket: BorrowedFd<'_>,
        staging: Region,
        first: &QueuedReceive,
    ) -> Result<Option<usize>> {
        let bytes = first.sink.bytes();
        let landing = first.sink.landing().filter(|_| bytes > SHORT_BYTES_MAX);
        let due = bytes - self.absorbed;
        let body = match landing {
            // Nothing is stored before the header was checked.
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
        let count = match self.receive(socket, body, trailer) {
            Ok(0) => return Err(broken(self.peer, io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(broken(self.peer, error)),
        };
        let of_header = count.min(HEADER_BYTES - self.header_came);
        if of_header > 0 {
            self.header_came += of_header;
            if self.header_came == HEADER_BYTES {
                self.check_header()?;
                self.compare_header(first)?;
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

    /// Absorbs the staged data, except a rest that is no whole piece.
    fn absorb(&mut self, first: &QueuedReceive, staged: Region) {
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

    fn is_complete(&self, first: &QueuedReceive) -> bool {
        let bytes = first.sink.bytes();
        self.header_came == HEADER_BYTES
            && self.absorbed == bytes
            && (bytes == 0 || self.trailer_came == TRAILER_BYTES)
    }

    /// Checks the header's checksum, but not whether the header is the expected one.
    fn check_header(&self) -> Result<()> {
        check(&self.header, self.peer)
    }

    /// Compares the header with the expected one, once it has arrived.
    fn compare_header(&mut self, first: &QueuedReceive) -> Result<()> {
        if self.header_came == HEADER_BYTES && !self.header_compared {
            let Post(_, _, header) = first.post;
            header.expect(&self.header, self.peer, self.rank)?;
            self.header_compared = true;
        }
        Ok(())
    }

    fn check_trailer(&self, first: &QueuedReceive) -> Result<()> {
        if first.sink.bytes() > 0 && u32::from_le_bytes(self.trailer) != self.sum.value() {
            let what = "wrong checksum of a message payload";
            return Err(Error::corrupt(self.peer, what));
        }
        Ok(())
    }

    /// Resets the state of the first message, which is complete.
    fn begin(&mut self) {
        self.header_came = 0;
        self.header_compared = false;
        self.absorbed = 0;
        self.rest_bytes = 0;
        self.sum.reset();
        self.trailer_came = 0;
    }
}

/// Checks that `header` is as its sender, rank `peer`, wrote it.
fn check(header: &[u8; HEADER_BYTES], peer: usize) -> Result<()> {
    let (covered, claimed) = header.split_at(HEADER_BYTES - 4);
    if claimed != checksum::of(covered).to_le_bytes() {
        let what = "wrong checksum of a message header";
        return Err(Error::corrupt(peer, what));
    }
    Ok(())
}
