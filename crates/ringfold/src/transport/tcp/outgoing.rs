//! The sending half of one connection: messages in order, as frames, as far as the socket takes
//! them. A message is complete when the kernel has copied all of it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use super::frame::{QueueProgress, TRAILER_BYTES, frame_bytes};
use crate::memory::Region;
use crate::reduce::Digest;
use crate::sys;
use crate::transport::checksum;
use crate::transport::{HEADER_BYTES, Post, Ticket};

/// Maximum bytes passed to the socket in one call: as much as stays in the second-level cache
/// between checksum and copy.
const WRITE_BYTES: usize = 1 << 20;

/// Messages to send, the first perhaps sent in part.
pub struct SendQueue {
    queue: VecDeque<(Post, Region)>,
    /// The frame header of the first message.
    header: [u8; HEADER_BYTES],
    trailer: [u8; TRAILER_BYTES],
    /// Bytes of the first message's frame that the socket has taken.
    taken: usize,
    /// Bytes of the first message's payload that `sum` covers; at least those taken.
    summed: usize,
    sum: Digest,
}

impl SendQueue {
    pub fn new(room: usize) -> SendQueue {
        SendQueue {
            queue: VecDeque::with_capacity(room),
            header: [0; HEADER_BYTES],
            trailer: [0; TRAILER_BYTES],
            taken: 0,
            summed: 0,
            sum: Digest::new(),
        }
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the length of the first message's payload; 0 if there is none.
    pub fn next_bytes(&self) -> usize {
        let next = self.queue.front();
        next.map_or(0, |(_, payload)| payload.bytes())
    }

    pub fn push(&mut self, post: Post, payload: Region) {
        self.queue.push_back((post, payload));
        if self.queue.len() == 1 {
            self.begin();
        }
    }

    /// Sends until the queue is empty, the socket is full or about `budget_bytes` are sent.
    pub fn write(
        &mut self,
        socket: BorrowedFd<'_>,
        budget_bytes: usize,
        done: &mut Vec<Ticket>,
    ) -> io::Result<QueueProgress> {
        let mut gone = 0;
        while let Some(&(Post(_, ticket, _), payload)) = self.queue.front() {
            if gone >= budget_bytes {
                return Ok(QueueProgress::More);
            }
            let frame_bytes = frame_bytes(payload.bytes());
            while self.taken < frame_bytes && gone < budget_bytes {
                let Some(count) = self.write_piece(socket, payload)? else {
                    return Ok(QueueProgress::Blocked);
                };
                gone += count;
            }
            if self.taken == frame_bytes {
                done.push(ticket);
                self.queue.pop_front();
                self.begin();
            }
        }
        Ok(QueueProgress::Idle)
    }

    /// Sends one call's worth of the first message; `None` if the socket is full.
    fn write_piece(
        &mut self,
        socket: BorrowedFd<'_>,
        payload: Region,
    ) -> io::Result<Option<usize>> {
        let bytes = payload.bytes();
        let offset = self.taken.saturating_sub(HEADER_BYTES).min(bytes);
        if self.summed == offset && self.summed < bytes {
            self.summed = (offset + WRITE_BYTES).min(bytes);
            self.sum.extend(payload.part(offset..self.summed));
        }
        let header = &self.header[self.taken.min(HEADER_BYTES)..];
        let body = payload.part(offset..self.summed);
        let trailer = if bytes > 0 && self.summed == bytes {
            self.trailer = self.sum.value().to_le_bytes();
            &self.trailer[self.taken.saturating_sub(HEADER_BYTES + bytes)..]
        } else {
            &[]
        };
        match sys::send_from(socket, header, body, trailer) {
            Ok(count) => {
                self.taken += count;
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Prepares the frame of the first message, if there is one.
    fn begin(&mut self) {
        self.taken = 0;
        self.summed = 0;
        self.sum.reset();
        if let Some((Post(_, _, header), _)) = self.queue.front() {
            let unsummed = header.encode(0);
            let sum = checksum::of(&unsummed[..HEADER_BYTES - 4]);
            self.header = header.encode(sum);
        }
    }
}
