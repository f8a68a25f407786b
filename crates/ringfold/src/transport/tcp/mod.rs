//! Messages between ranks over TCP sockets, one socket per stream.
//!
//! # Model
//!
//! Every stream has a queue of sends and a queue of receives. A message is a frame: header,
//! payload, checksum (see docs/wire.md). Only streams with a posted receive are read, so a late
//! rank delays its peers by TCP's own flow control and nothing is buffered here except the
//! beginning of unexpected messages while a receive listens. A send is complete when the kernel has
//! copied all of it, or, of what it was lent instead (`zero_copy`), no longer reads it.
//!
//! # Cost
//!
//! A large message costs one system call per 256 KiB and no copy except the kernel's; data to be
//! reduced is read in pieces that stay in the cache. With few idle streams, each is tried; with
//! many, one epoll call selects those worth trying. After the queues have grown to their working
//! size nothing allocates.
//!
//! # Failure
//!
//! A closed or reset connection is a failed peer as soon as data is expected on it. So is one that
//! does not even acknowledge: `TCP_USER_TIMEOUT` would detect that too, but it also ends the
//! connection to a peer that is alive and merely late to read (a window of zero for that long), so
//! the kernel's statistics are read instead. A frozen peer still acknowledges; only the engine's
//! deadline ends that wait.
//!
//! The other end was authenticated before the sockets were passed here.

mod frame;
mod incoming;
mod outgoing;
mod readiness;
mod zero_copy;

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use self::frame::{Progress, broken};
use self::incoming::Incoming;
use self::outgoing::Outgoing;
use self::readiness::{Readiness, Ready};
use self::zero_copy::Lent;
pub use self::zero_copy::ZeroCopy;
use super::bell::{Bell, new_bell};
use super::{Head, PIECE_ALIGN_BYTES, Post, Posted, Sink, Stream, Ticket, Time, Transport, Waker};
use crate::error::{Error, Result};
use crate::memory::{Owned, Region};
use crate::silence::{Silence, silent};
use crate::sys;
use crate::sys::fork::Unshared;

/// Messages that a queue holds before it grows.
const QUEUE_ROOM: usize = 32;

/// Bytes that one stream may move in one direction in one poll, so that a large message does not
/// starve the others.
const POLL_BYTES: usize = 1 << 20;

/// Bytes that `post_send` may move at once.
const POST_BYTES: usize = 256 << 10;

/// Up to this many idle directions are tried in every poll instead of asking epoll first.
const DIRECT_TRIES: usize = 2;

/// How often connections that are waited for are checked for signs of life.
const QUIET_CHECK: Duration = Duration::from_millis(100);

/// What can be set about the TCP transport.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// The length of the pieces in which messages are reduced; a multiple of 64 that fits into the
    /// second-level cache.
    pub piece_bytes: usize,
    /// The size of the kernel's buffers, each way; the kernel's own tuning if not given.
    pub socket_buffer_bytes: Option<usize>,
    /// Whether large payloads are sent without the kernel's copy.
    pub zero_copy: ZeroCopy,
    /// How long a peer's host may be silent.
    pub silence: Silence,
    /// What wakes this rank, besides its sockets; an event counter of its own if not given.
    pub bell: Option<Bell>,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            piece_bytes: 128 << 10,
            socket_buffer_bytes: None,
            zero_copy: ZeroCopy::default(),
            silence: Silence::default(),
            bell: None,
        }
    }
}

/// One rank's connections to its peers.
pub struct Tcp {
    rank: usize,
    connections: Vec<Connection>,
    /// The connection of each peer's channels.
    numbers: Vec<Vec<usize>>,
    /// The connections with operations in progress.
    active: Vec<usize>,
    readiness: Readiness,
    /// Empty between calls; see [`incoming`].
    staging: Owned,
    silence: Silence,
    quiet_checked: Time,
    /// Tickets of sends that were complete when they were posted; kept for its memory.
    posted: Vec<Ticket>,
}

struct Connection {
    peer: usize,
    socket: Unshared<TcpStream>,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Whether a try has not been in vain since the last edge.
    readable: bool,
    writable: bool,
    reports: bool,
    is_active: bool,
}

impl Tcp {
    /// The transport of `rank` over connected sockets: for each peer one for each channel; none to
    /// itself.
    pub fn new(rank: usize, sockets: Vec<Vec<TcpStream>>, options: TcpOptions) -> Result<Tcp> {
        if options.piece_bytes == 0 || !options.piece_bytes.is_multiple_of(PIECE_ALIGN_BYTES) {
            return Err(Error::InvalidArgument(format!(
                "a piece of {} bytes; it must be a multiple of {PIECE_ALIGN_BYTES}",
                options.piece_bytes
            )));
        }
        let bell = options.bell.clone().map_or_else(new_bell, Ok)?;
        let mut transport = Tcp {
            rank,
            connections: Vec::new(),
            numbers: Vec::with_capacity(sockets.len()),
            active: Vec::new(),
            readiness: Readiness::new(bell)?,
            staging: Owned::zeroed(options.piece_bytes),
            silence: options.silence,
            quiet_checked: Time::default(),
            posted: Vec::with_capacity(1),
        };
        for (peer, channels) in sockets.into_iter().enumerate() {
            let first = transport.connections.len();
            transport
                .numbers
                .push((first..first + channels.len()).collect());
            for socket in channels {
                let connection = Connection::new([peer, rank], socket, &options)?;
                let number = transport.connections.len();
                transport.readiness.watch(&connection.socket, number)?;
                transport.connections.push(connection);
            }
        }
        transport.active.reserve(transport.connections.len());
        Ok(transport)
    }

    /// The number of `stream`'s connection, which becomes active.
    fn activate(&mut self, stream: Stream) -> Result<usize> {
        assert_ne!(
            stream.peer, self.rank,
            "a message between a rank and itself"
        );
        let channels = &self.numbers[stream.peer];
        let Some(&number) = channels.get(stream.channel) else {
            return Err(Error::InvalidArgument(format!(
                "channel {} to rank {}, with which there are {} connections; ask for fewer \
                 channels",
                stream.channel,
                stream.peer,
                channels.len()
            )));
        };
        let connection = &mut self.connections[number];
        if !connection.is_active {
            connection.is_active = true;
            self.active.push(number);
        }
        Ok(number)
    }

    /// Takes over what epoll knows.
    fn update(&mut self, timeout: Duration) -> Result<()> {
        let connections = &mut self.connections;
        self.readiness
            .wait(timeout, |number, ready| connections[number].note(ready))
    }

    /// Fails if a peer that is waited for has been silent for too long.
    fn check_quiet(&mut self, now: Time) -> Result<()> {
        if now.since(self.quiet_checked) < QUIET_CHECK {
            return Ok(());
        }
        self.quiet_checked = now;
        for number in &self.active {
            let connection = &self.connections[*number];
            let state = sys::tcp_state(connection.socket.as_fd())
                .map_err(|error| Error::system("cannot read a connection's state", error))?;
            let Some(state) = state else { continue };
            if self.silence.is_data_broken(&state) {
                return Err(Error::peer_failed(connection.peer, silent(&state)));
            }
        }
        Ok(())
    }
}

impl Transport for Tcp {
    fn post_send(&mut self, post: Post, payload: Region) -> Result<Posted> {
        let Post(stream, _, header) = post;
        assert_eq!(header.bytes as usize, payload.bytes());
        let number = self.activate(stream)?;
        let connection = &mut self.connections[number];
        let is_first = connection.outgoing.is_empty();
        connection.outgoing.push(post, payload);
        if is_first && connection.writable {
            self.posted.clear();
            connection.write(POST_BYTES, &mut self.posted)?;
            if !self.posted.is_empty() {
                return Ok(Posted::Done);
            }
        }
        Ok(Posted::Pending)
    }

    fn post_recv(&mut self, post: Post, sink: Sink) -> Result<Posted> {
        let Post(stream, _, header) = post;
        assert_eq!(header.bytes as usize, sink.bytes());
        let number = self.activate(stream)?;
        let connection = &mut self.connections[number];
        // Of a message whose header is known the rest may be here, too.
        let is_begun = connection.incoming.has_begun();
        connection.incoming.push(post, sink);
        if is_begun {
            self.posted.clear();
            connection.read(self.staging.region(), POST_BYTES, &mut self.posted)?;
            if connection.incoming.is_empty() {
                return Ok(Posted::Done);
            }
        }
        Ok(Posted::Pending)
    }

    fn listen(&mut self, stream: Stream, is_wanted: bool) -> Result<()> {
        let number = self.activate(stream)?;
        self.connections[number].incoming.listen(is_wanted);
        Ok(())
    }

    fn head(&mut self, stream: Stream) -> Result<Head> {
        let number = self.activate(stream)?;
        self.connections[number].incoming.head()
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        if self.active.is_empty() {
            return Ok(());
        }
        let connections = &mut self.connections;
        let idle = self
            .active
            .iter()
            .map(|number| connections[*number].idle_directions());
        let try_all = idle.sum::<usize>() <= DIRECT_TRIES;
        if !try_all {
            self.update(Duration::ZERO)?;
        }
        for number in &self.active {
            let connection = &mut self.connections[*number];
            if try_all || connection.writable {
                connection.write(POLL_BYTES, done)?;
            }
            if try_all || connection.reports {
                connection.take_back(done)?;
            }
            if try_all || connection.readable || connection.incoming.has_ahead() {
                connection.read(self.staging.region(), POLL_BYTES, done)?;
            }
        }
        let connections = &mut self.connections;
        self.active.retain(|number| {
            let connection = &mut connections[*number];
            connection.is_active = connection.has_work();
            connection.is_active
        });
        // Another one goes first next time.
        if !self.active.is_empty() {
            self.active.rotate_left(1);
        }
        self.check_quiet(now)
    }

    fn block(&mut self, timeout: Duration) -> Result<()> {
        let connections = &self.connections;
        let is_ready = |number: &usize| connections[*number].is_ready();
        if self.active.iter().any(is_ready) {
            return Ok(());
        }
        self.update(timeout)
    }

    fn waker(&self) -> Waker {
        self.readiness.waker()
    }

    fn withdraw(&mut self) {
        for connection in &mut self.connections {
            connection.withdraw();
        }
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl Connection {
    fn new(
        [peer, rank]: [usize; 2],
        socket: TcpStream,
        options: &TcpOptions,
    ) -> Result<Connection> {
        let configure = || -> io::Result<()> {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            options.silence.watch_data(&socket)?;
            if let Some(bytes) = options.socket_buffer_bytes {
                sockopt::set_socket_send_buffer_size(&socket, bytes)?;
                sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
            }
            Ok(())
        };
        configure().map_err(|error| {
            Error::system(
                format!("cannot set up the connection to rank {peer}"),
                error,
            )
        })?;
        let lent = Lent::new(peer, socket.as_fd(), options.zero_copy)?;
        Ok(Connection {
            peer,
            socket: Unshared::new(socket),
            outgoing: Outgoing::new(QUEUE_ROOM, lent),
            incoming: Incoming::new(peer, rank, QUEUE_ROOM),
            readable: true,
            writable: true,
            reports: false,
            is_active: false,
        })
    }

    fn has_work(&self) -> bool {
        let sends = !self.outgoing.is_empty() || self.outgoing.is_lent();
        sends || !self.incoming.is_empty() || self.incoming.is_listened()
    }

    /// Takes over what epoll knows. An error alone says that the kernel reports what it was lent; a
    /// connection that fails is closed as well.
    fn note(&mut self, ready: Ready) {
        let is_report = ready.error && self.outgoing.is_lent();
        self.reports |= is_report;
        self.readable |= ready.readable || (ready.error && !is_report);
        self.writable |= ready.writable || (ready.error && !is_report);
    }

    /// Whether a try could get something done.
    fn is_ready(&self) -> bool {
        let may_read = self.readable || self.incoming.has_ahead();
        (may_read && self.incoming.is_wanting())
            || (self.writable && !self.outgoing.is_empty())
            || (self.reports && self.outgoing.is_lent())
    }

    /// How many wait for the socket: either direction, or the kernel's reports.
    fn idle_directions(&self) -> usize {
        usize::from(!self.readable && self.incoming.is_wanting())
            + usize::from(!self.writable && !self.outgoing.is_empty())
            + usize::from(!self.reports && self.outgoing.is_lent())
    }

    fn write(&mut self, budget_bytes: usize, done: &mut Vec<Ticket>) -> Result<()> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        let progress = self.outgoing.write(self.socket.as_fd(), budget_bytes, done);
        let progress = progress.map_err(|error| broken(self.peer, error))?;
        self.writable = !matches!(progress, Progress::Blocked);
        Ok(())
    }

    /// Takes back the payloads that the kernel no longer reads.
    fn take_back(&mut self, done: &mut Vec<Ticket>) -> Result<()> {
        if !self.outgoing.is_lent() {
            return Ok(());
        }
        self.reports = false;
        let taken = self.outgoing.take_back(self.socket.as_fd(), done);
        taken.map_err(|error| {
            let peer = self.peer;
            Error::system(
                format!("cannot read the reports of sends to rank {peer}"),
                error,
            )
        })
    }

    /// Ends the connection if the kernel may still read some payload, so that it does so no more:
    /// this drops what was not passed to the interface.
    fn withdraw(&mut self) {
        let _ = self.take_back(&mut Vec::new());
        if self.outgoing.is_lent() {
            // It fails only if there is no connection any more.
            let _ = rustix::net::connect_unspec(&*self.socket);
        }
    }

    fn read(&mut self, staging: Region, budget_bytes: usize, done: &mut Vec<Ticket>) -> Result<()> {
        if !self.incoming.is_wanting() {
            return Ok(());
        }
        let socket = self.socket.as_fd();
        let progress = self.incoming.read(socket, staging, budget_bytes, done)?;
        self.readable = !matches!(progress, Progress::Blocked);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
