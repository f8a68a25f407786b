//! One socket to a peer: its sends, its receives, and whether a try is worthwhile.

use std::io;
use std::ops::{Index, IndexMut};
use std::os::fd::AsFd;

use rustix::io::ioctl_fionbio;
use rustix::net::sockopt;

use super::frame::{QueueProgress, broken};
use super::incoming::ReceiveQueue;
use super::options::TcpOptions;
use super::outgoing::SendQueue;
use super::stripes::STRIPE_BYTES_MIN;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::sys::unshared::Unshared;
use crate::transport::Ticket;
use crate::transport::readiness::Ready;

/// Initial capacity of a queue, in messages.
const QUEUE_ROOM: usize = 32;

/// Maximum bytes that one socket moves in one direction in one poll, so that a large message does
/// not starve the others.
const POLL_BYTES: usize = 1 << 20;

pub struct Connection {
    pub peer: usize,
    pub socket: Unshared,
    pub outgoing: SendQueue,
    pub incoming: ReceiveQueue,
    /// Whether no read has been in vain since the last edge; likewise `writable`.
    pub readable: bool,
    pub writable: bool,
    pub is_active: bool,
    /// Tickets completed in a turn, until they are passed on.
    pub completed: Vec<Ticket>,
}

impl Connection {
    pub fn new(
        [peer, rank]: [usize; 2],
        socket: Unshared,
        options: &TcpOptions,
    ) -> Result<Connection> {
        let configure = || -> io::Result<()> {
            ioctl_fionbio(&socket, true)?;
            sockopt::set_tcp_nodelay(&socket, true)?;
            options.silence.watch_data(&socket)?;
            Ok(())
        };
        configure().map_err(|error| {
            Error::system(
                format!("cannot set up the connection to rank {peer}"),
                error,
            )
        })?;
        Ok(Connection {
            peer,
            socket,
            outgoing: SendQueue::new(QUEUE_ROOM),
            incoming: ReceiveQueue::new(peer, rank, QUEUE_ROOM),
            readable: true,
            writable: true,
            is_active: false,
            completed: Vec::with_capacity(QUEUE_ROOM),
        })
    }

    pub fn has_work(&self) -> bool {
        !self.outgoing.is_empty() || !self.incoming.is_empty() || self.incoming.is_listened()
    }

    /// Notes an epoll event.
    pub fn note(&mut self, ready: Ready) {
        self.readable |= ready.readable;
        self.writable |= ready.writable;
    }

    /// Whether a try could make progress.
    pub fn is_ready(&self) -> bool {
        let may_read = self.readable || self.incoming.has_ahead();
        (may_read && self.incoming.is_wanting()) || (self.writable && !self.outgoing.is_empty())
    }

    /// Returns the number of directions that wait for the socket.
    pub fn idle_directions(&self) -> usize {
        usize::from(!self.readable && self.incoming.is_wanting())
            + usize::from(!self.writable && !self.outgoing.is_empty())
    }

    /// Whether a long message, or a stripe of one, is next in either direction.
    pub fn is_long(&self) -> bool {
        self.outgoing.next_bytes().max(self.incoming.next_bytes()) >= STRIPE_BYTES_MIN
    }

    /// Tries each direction once in a poll, if a try is worthwhile or `is_forced`.
    pub fn try_both(
        &mut self,
        is_forced: bool,
        staging: Region,
        done: &mut Vec<Ticket>,
    ) -> Result<()> {
        if is_forced || self.writable {
            self.write(POLL_BYTES, done)?;
        }
        if is_forced || self.readable || self.incoming.has_ahead() {
            self.read(staging, POLL_BYTES, done)?;
        }
        Ok(())
    }

    /// Tries like `try_both`, but leaves the tickets in `completed`.
    pub fn take_turn(&mut self, is_forced: bool, staging: Region) -> Result<()> {
        let mut completed = std::mem::take(&mut self.completed);
        let tried = self.try_both(is_forced, staging, &mut completed);
        self.completed = completed;
        tried
    }

    pub fn write(&mut self, budget_bytes: usize, done: &mut Vec<Ticket>) -> Result<()> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        let progress = self.outgoing.write(self.socket.as_fd(), budget_bytes, done);
        let progress = progress.map_err(|error| broken(self.peer, error))?;
        self.writable = !matches!(progress, QueueProgress::Blocked);
        Ok(())
    }

    pub fn read(
        &mut self,
        staging: Region,
        budget_bytes: usize,
        done: &mut Vec<Ticket>,
    ) -> Result<()> {
        if !self.incoming.is_wanting() {
            return Ok(());
        }
        let socket = self.socket.as_fd();
        let progress = self.incoming.read(socket, staging, budget_bytes, done)?;
        self.readable = !matches!(progress, QueueProgress::Blocked);
        Ok(())
    }
}

/// The connections of a rank, by number. A connection is absent during its turn.
#[derive(Default)]
pub struct Connections(Vec<Option<Box<Connection>>>);

impl Connections {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn push(&mut self, connection: Connection) {
        self.0.push(Some(Box::new(connection)));
    }

    pub fn take(&mut self, number: usize) -> Box<Connection> {
        self.0[number].take().expect(HERE)
    }

    pub fn put_back(&mut self, number: usize, connection: Box<Connection>) {
        self.0[number] = Some(connection);
    }
}

/// Reason for a connection's presence: a poll waits for the end of its turns.
const HERE: &str = "no poll is running";

impl Index<usize> for Connections {
    type Output = Connection;
    fn index(&self, number: usize) -> &Connection {
        self.0[number].as_ref().expect(HERE)
    }
}

impl IndexMut<usize> for Connections {
    fn index_mut(&mut self, number: usize) -> &mut Connection {
        self.0[number].as_mut().expect(HERE)
    }
}
