//! Messages between ranks over TCP sockets, one or several for each stream.
//!
//! # Model
//!
//! Every socket has a queue of sends and a queue of receives. A message is a frame on the first
//! socket of its stream. A long message is a frame on each socket, with a part of the payload. A
//! frame consists of header, payload and checksum (see [`stripes`] and docs/reference/wire.md).
//! Only sockets with a posted receive are read, so a late rank delays its peers by TCP's own flow
//! control. Nothing is buffered here except the beginning of unexpected messages while a receive
//! listens. A send is complete when the kernel has copied all of it.
//!
//! # Cost
//!
//! A large message costs one system call per MiB and no copy except the kernel's; data to be
//! reduced is read in pieces that stay in the cache. With few idle streams, each is tried; with
//! many, one epoll call selects those worth trying. Helper threads share the work of a poll if
//! several sockets have long messages ([`crew`]). Nothing allocates after the queues have grown to
//! their working size.
//!
//! # Failure
//!
//! A closed or reset connection is a failed peer as soon as data is expected on it. A peer that
//! does not even acknowledge has failed, too. `TCP_USER_TIMEOUT` would detect that as well, but it
//! also ends the connection to a peer that is alive and merely late to read (a window of zero for
//! that long). So the kernel's statistics are read instead. A frozen peer still acknowledges; only
//! the engine's deadline ends that wait.
//!
//! The other end was authenticated before the sockets were passed here.

mod connection;
mod crew;
mod frame;
mod incoming;
mod options;
mod outgoing;
mod stripes;

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

pub use self::options::{THREADS_MAX, TcpOptions};
pub use self::stripes::SOCKETS_MAX;

use self::connection::{Connection, Connections};
use self::crew::{Crew, Turn};
use self::stripes::{STRIPE_BYTES_MIN, Striped, stripes};
use super::bell::new_bell;
use super::readiness::Readiness;
use super::{
    Head, Header, P2P_CHANNEL, PIECE_ALIGN_BYTES, Post, Posted, Sink, StreamId, Ticket, Time,
    Transport, Waker,
};
use crate::error::{Error, Result};
use crate::memory::{Owned, Region};
use crate::silence::{Silence, silent};
use crate::sys;
use crate::sys::unshared::Unshared;

/// Maximum bytes that `post_send` moves at once.
const POST_BYTES: usize = 1 << 20;

/// Number of idle directions up to which every poll tries all, instead of asking epoll first.
const DIRECT_TRIES: usize = 2;

/// Interval of checks for signs of life on connections that are waited for.
const QUIET_CHECK: Duration = Duration::from_millis(100);

/// One rank's connections to its peers.
pub struct Tcp {
    rank: usize,
    connections: Connections,
    /// Numbers of the connections of each peer's channels.
    numbers: Vec<Vec<Range<usize>>>,
    /// Numbers of the connections with operations in progress.
    active: Vec<usize>,
    readiness: Readiness,
    /// Staging area for received data, empty between calls; see [`incoming`].
    staging: Owned,
    silence: Silence,
    quiet_checked: Time,
    /// Tickets of sends that were complete when they were posted; reused for its allocation.
    posted: Vec<Ticket>,
    striped: Striped,
    crew: Option<Crew>,
    /// Turns of a poll; empty between polls, and reused for the allocation.
    turns: Vec<Turn>,
}

/// Sockets of a rank, by peer and channel, in the order in which both ends count them.
pub type Sockets = Vec<Vec<Vec<Unshared>>>;

impl Tcp {
    /// Creates the transport of `rank` over connected sockets: some for each channel of each peer,
    /// none to itself.
    pub fn new(rank: usize, sockets: Sockets, options: TcpOptions) -> Result<Tcp> {
        if options.piece_bytes == 0 || !options.piece_bytes.is_multiple_of(PIECE_ALIGN_BYTES) {
            return Err(Error::InvalidArgument(format!(
                "invalid piece size of {} bytes; use a multiple of {PIECE_ALIGN_BYTES}",
                options.piece_bytes
            )));
        }
        let bell = options.bell.clone().map_or_else(new_bell, Ok)?;
        let mut transport = Tcp {
            rank,
            connections: Connections::default(),
            numbers: Vec::with_capacity(sockets.len()),
            active: Vec::new(),
            readiness: Readiness::new(bell)?,
            staging: Owned::zeroed(options.piece_bytes),
            silence: options.silence,
            quiet_checked: Time::default(),
            posted: Vec::with_capacity(1),
            striped: Striped::default(),
            crew: (options.threads > 0).then(|| {
                let threads = options.threads.min(THREADS_MAX);
                Crew::new(threads, options.piece_bytes)
            }),
            turns: Vec::new(),
        };
        for (peer, channels) in sockets.into_iter().enumerate() {
            let mut numbers = Vec::with_capacity(channels.len());
            for sockets in channels {
                numbers.push(transport.add([peer, rank], sockets, &options)?);
            }
            transport.numbers.push(numbers);
        }
        transport.active.reserve(transport.connections.count());
        Ok(transport)
    }

    /// Adds the sockets of one stream; returns their numbers.
    fn add(
        &mut self,
        ranks: [usize; 2],
        sockets: Vec<Unshared>,
        options: &TcpOptions,
    ) -> Result<Range<usize>> {
        let first = self.connections.count();
        for socket in sockets {
            let connection = Connection::new(ranks, socket, options)?;
            let number = self.connections.count();
            self.readiness.watch(&connection.socket, number)?;
            self.connections.push(connection);
        }
        Ok(first..self.connections.count())
    }

    /// Returns the numbers of `stream`'s connections.
    fn numbers(&self, stream: StreamId) -> Result<Range<usize>> {
        assert_ne!(
            stream.peer, self.rank,
            "a message between a rank and itself"
        );
        let channels = &self.numbers[stream.peer];
        let Some(numbers) = channels.get(stream.channel) else {
            return Err(Error::InvalidArgument(format!(
                "channel {} to rank {} does not exist ({} connections); use fewer channels",
                stream.channel,
                stream.peer,
                channels.len()
            )));
        };
        Ok(numbers.clone())
    }

    /// Returns connection `number`, which becomes active.
    fn activate(&mut self, number: usize) -> &mut Connection {
        let connection = &mut self.connections[number];
        if !connection.is_active {
            connection.is_active = true;
            self.active.push(number);
        }
        connection
    }

    /// Notes a message with `left` stripes in progress, and returns its state.
    fn posted(&mut self, ticket: Ticket, left: usize) -> Posted {
        self.striped.note(ticket, left);
        match left {
            0 => Posted::Done,
            _ => Posted::Pending,
        }
    }

    /// Notes the events of epoll.
    fn update(&mut self, timeout: Duration) -> Result<()> {
        let connections = &mut self.connections;
        self.readiness
            .wait(timeout, |number, ready| connections[number].note(ready))
    }

    /// Tries each active socket once, or each that is worthwhile. A crew, if any, shares the work
    /// of several sockets with long messages.
    fn try_sockets(&mut self, try_all: bool, done: &mut Vec<Ticket>) -> Result<()> {
        let staging = self.staging.region();
        let Some(crew) = &mut self.crew else {
            for number in &self.active {
                self.connections[*number].try_both(try_all, staging, done)?;
            }
            return Ok(());
        };
        let connections = &mut self.connections;
        let is_long =
            |connection: &Connection| connection.is_long() && (try_all || connection.is_ready());
        let long = self.active.iter();
        let is_shared = long
            .filter(|number| is_long(&connections[**number]))
            .count()
            > 1;
        let mut outcome = Ok(());
        for number in &self.active {
            if is_shared && is_long(&connections[*number]) {
                let connection = connections.take(*number);
                self.turns.push(Turn::new(*number, connection, try_all));
            } else {
                outcome = outcome.and(connections[*number].try_both(try_all, staging, done));
            }
        }
        if is_shared {
            crew.run(&mut self.turns, staging);
        }
        for turn in self.turns.drain(..) {
            let (number, mut connection, tried) = turn.into_outcome();
            done.append(&mut connection.completed);
            connections.put_back(number, connection);
            outcome = outcome.and(tried);
        }
        outcome
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
        let Post(stream, ticket, header) = post;
        let bytes = header.bytes as usize;
        assert_eq!(bytes, payload.bytes());
        let numbers = self.numbers(stream)?;
        let sockets = numbers.len();
        let mut left = 0;
        for (number, stripe) in numbers.zip(stripes(bytes, sockets)) {
            self.activate(number);
            let connection = &mut self.connections[number];
            let is_first = connection.outgoing.is_empty();
            // The crew moves a long stripe in a poll.
            let is_for_crew = self.crew.is_some() && stripe.len() >= STRIPE_BYTES_MIN;
            connection.outgoing.push(post, payload.part(stripe));
            if is_first && connection.writable && !is_for_crew {
                self.posted.clear();
                connection.write(POST_BYTES, &mut self.posted)?;
            }
            left += usize::from(!connection.outgoing.is_empty());
        }
        Ok(self.posted(ticket, left))
    }

    fn post_recv(&mut self, post: Post, sink: Sink) -> Result<Posted> {
        let Post(stream, ticket, header) = post;
        let bytes = header.bytes as usize;
        assert_eq!(bytes, sink.bytes());
        let numbers = self.numbers(stream)?;
        let sockets = numbers.len();
        let mut left = 0;
        for (number, stripe) in numbers.zip(stripes(bytes, sockets)) {
            self.activate(number);
            let connection = &mut self.connections[number];
            // If a message's header has arrived, so may the rest have.
            let is_begun = connection.incoming.has_begun();
            connection.incoming.push(post, sink.part(stripe));
            if is_begun {
                self.posted.clear();
                connection.read(self.staging.region(), POST_BYTES, &mut self.posted)?;
            }
            left += usize::from(!connection.incoming.is_empty());
        }
        Ok(self.posted(ticket, left))
    }

    fn listen(&mut self, stream: StreamId, is_wanted: bool) -> Result<()> {
        // Every message begins on the first socket.
        let first = self.numbers(stream)?.start;
        self.activate(first).incoming.listen(is_wanted);
        Ok(())
    }

    fn head(&mut self, stream: StreamId) -> Result<Head> {
        let first = self.numbers(stream)?.start;
        self.activate(first).incoming.head()
    }

    fn unexpected(&mut self, found: &mut Vec<(StreamId, Header)>) -> Result<()> {
        for (peer, channels) in self.numbers.iter().enumerate() {
            for (channel, numbers) in channels.iter().enumerate().skip(P2P_CHANNEL + 1) {
                // Every message begins on the first socket.
                let Connection {
                    incoming, socket, ..
                } = &self.connections[numbers.start];
                let header = incoming.peek(socket.as_fd())?;
                found.extend(header.map(|header| (StreamId { peer, channel }, header)));
            }
        }
        Ok(())
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        if self.active.is_empty() {
            return Ok(());
        }
        let before = done.len();
        let connections = &mut self.connections;
        let idle = self
            .active
            .iter()
            .map(|number| connections[*number].idle_directions());
        let try_all = idle.sum::<usize>() <= DIRECT_TRIES;
        if !try_all {
            self.update(Duration::ZERO)?;
        }
        self.try_sockets(try_all, done)?;
        self.striped.settle(done, before);
        let connections = &mut self.connections;
        self.active.retain(|number| {
            let connection = &mut connections[*number];
            connection.is_active = connection.has_work();
            connection.is_active
        });
        // The next poll begins with another connection.
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
}

#[cfg(test)]
pub(super) mod tests;
