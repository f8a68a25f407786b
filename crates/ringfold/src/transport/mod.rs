//! The interface of a transport, which moves bytes and headers between peers and knows no
//! collectives.
//!
//! # Streams
//!
//! Independent, ordered, reliable streams connect two ranks, one per channel. Messages on a stream
//! are matched in order: the k-th posted receive gets the k-th posted send. A transport compares
//! the received header with the expected one ([`Header::expect`]) before it delivers a byte, and
//! reports a difference as an error.
//!
//! A receiver that does not know the next message looks first: [`Transport::head`] shows the header
//! of a stream's next message while no receive is posted on the stream. The receive is then posted
//! with that very header.
//!
//! # Completion
//!
//! Posting never blocks and never fails for lack of room: an operation that cannot proceed is
//! queued, and `poll` continues it. The engine bounds the posted operations, so the queues are
//! bounded. A send is complete when its payload may be overwritten; completion may wait until the
//! peer has posted the receive. A receive is complete when its sink has absorbed all bytes.
//!
//! # Peer input
//!
//! Everything from a peer is a claim until checked: lengths are compared with the expected ones,
//! never used as loop bounds or indices.
//!
//! [`shm`] serves one host, [`tcp`] and [`rdma`] serve several, [`routes`] combines them. No
//! transport retries, reconnects or reorders. Only the slots of shared memory look at the
//! collective of a call.

pub(crate) mod bell;
pub(crate) mod checksum;
pub(crate) mod ended;
pub mod header;
pub mod rdma;
mod readiness;
pub mod routes;
pub mod shm;
#[cfg(test)]
pub(crate) mod suite;
pub mod tcp;

use std::ops::Range;
use std::time::Duration;

pub use header::{HEADER_BYTES, Header, earlier_mismatch, mismatch};
pub use shm::{LENT_BYTES_MIN, SlotUse, Wake, Windows};
#[cfg(test)]
pub(crate) use suite::local;

use crate::error::Result;
use crate::memory::{BufferHandle, Hold, PeerMemory, Region};
use crate::reduce::ReductionKernel;
use crate::types::DType;

/// A point in time, in picoseconds since an origin that the clock's owner chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u128);

impl Time {
    /// Returns the time `duration` later.
    pub fn after(self, duration: Duration) -> Time {
        Time(self.0 + duration.as_nanos() * 1000)
    }

    /// Returns the duration from `earlier` to this time; zero if this time is not later.
    pub fn since(self, earlier: Time) -> Duration {
        let nanoseconds = self.0.saturating_sub(earlier.0) / 1000;
        Duration::from_nanos(nanoseconds.min(u64::MAX as u128) as u64)
    }
}

/// One ordered stream of messages with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    /// Rank at the other end.
    pub peer: usize,
    /// Number of the stream among those with the peer; see [`P2P_CHANNEL`].
    pub channel: usize,
}

/// The channel of `send` and `recv`, separate from the collectives' (1 and up) so that neither
/// waits behind the other.
pub const P2P_CHANNEL: usize = 0;

/// The engine's name for a posted operation. Never reused while the operation is in progress.
pub type Ticket = u64;

/// Whether a posted message is complete already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Complete; `poll` will not report the ticket.
    Done,
    /// In progress; `poll` will report the ticket.
    Pending,
}

/// The next message of a stream, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// No message yet.
    Nothing,
    /// A message with this header, as the sender claims it: its numbers are valid, but not checked
    /// further.
    Message(Header),
    /// No message, and none will follow: the peer has left, as the text describes.
    End(&'static str),
}

/// Destination of a message's bytes.
#[derive(Clone, Copy, Debug)]
pub enum Sink {
    /// Memory that stores the bytes unchanged.
    Store(Region),
    /// Reduction of the bytes with those of `with` into `into` (`with` may be `into`).
    Reduce {
        /// The operand on this rank.
        with: Region,
        /// Destination of the result.
        into: Region,
        /// The loop that reduces.
        kernel: ReductionKernel,
    },
}

/// A copy or reduction that the engine executes itself in a schedule of messages.
#[derive(Clone, Copy, Debug)]
pub struct EngineWork {
    /// Kind of the work.
    pub kind: WorkKind,
    /// Type of the elements.
    pub dtype: DType,
    /// Bytes of the result, counted once for each pair of operands.
    pub bytes: usize,
}

/// Kinds of [`EngineWork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// A copy.
    Copy,
    /// A reduction of two operands.
    Reduce,
}

/// Alignment of the pieces of a message passed to [`Sink::absorb`], so that no element is cut.
pub const PIECE_ALIGN_BYTES: usize = 64;

impl Sink {
    /// Returns the length of the message.
    pub fn bytes(&self) -> usize {
        match self {
            Sink::Store(into) => into.bytes(),
            Sink::Reduce { into, .. } => into.bytes(),
        }
    }

    /// Stores or reduces `piece`, which begins at `offset` of the message. `offset` is a multiple
    /// of [`PIECE_ALIGN_BYTES`], and so is the piece's length unless the piece is the last. Every
    /// byte of the message is passed exactly once.
    pub fn absorb(&self, offset: usize, piece: Region) {
        let range = offset..offset + piece.bytes();
        match self {
            Sink::Store(into) => into.part(range).copy_from(piece),
            Sink::Reduce { with, into, kernel } => {
                kernel.fold(into.part(range.clone()), &[with.part(range), piece]);
            }
        }
    }

    /// Returns the sink of the message's bytes `range`, which begins at a multiple of
    /// [`PIECE_ALIGN_BYTES`].
    pub fn part(&self, range: Range<usize>) -> Sink {
        match self {
            Sink::Store(into) => Sink::Store(into.part(range)),
            Sink::Reduce { with, into, kernel } => Sink::Reduce {
                with: with.part(range.clone()),
                into: into.part(range),
                kernel: *kernel,
            },
        }
    }

    /// Returns the memory that may be filled directly instead of by `absorb`, if any.
    pub fn landing(&self) -> Option<Region> {
        match self {
            Sink::Store(into) => Some(*into),
            Sink::Reduce { .. } => None,
        }
    }
}

/// Duration for which memory is held, see [`Transport::hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// One call, which only reads the memory.
    Input,
    /// One call, which may fill the memory.
    Output,
    /// Many calls: the cost of preparing the memory does not count.
    Long,
}

/// Description of a posted message: its stream, the ticket that reports its completion, and its
/// header.
#[derive(Clone, Copy, Debug)]
pub struct Post(pub StreamId, pub Ticket, pub Header);

/// Moves bytes between the ranks of one communicator.
///
/// Used by one thread at a time. All errors are final: after one, the transport is only closed.
pub trait Transport: Send {
    /// Queues a message. `payload` has `header.bytes` bytes and stays untouched until the send is
    /// complete.
    fn post_send(&mut self, post: Post, payload: Region) -> Result<Posted>;

    /// Queues a message whose `payload` is registered memory, at `place` for peers. A peer that is
    /// known to have mapped the memory ([`Transport::set_peer_memory`]) may read it in place, which
    /// completes the send. To other peers the message is sent as by `post_send`.
    fn post_lent(&mut self, post: Post, payload: Region, place: BufferHandle) -> Result<Posted> {
        let _ = place;
        self.post_send(post, payload)
    }

    /// Returns the length from which payloads are lent, if any are.
    fn lent_bytes_min(&self) -> Option<usize> {
        None
    }

    /// Returns the number of messages that this rank has lent.
    #[cfg(test)]
    fn messages_lent(&self) -> u64 {
        0
    }

    /// Sets the registered memory of peers that this rank has mapped. It stays mapped until the
    /// next of these calls; peers name only memory within it.
    fn set_peer_memory(&mut self, memory: PeerMemory) {
        let _ = memory;
    }

    /// Whether this rank can read the memory of all ranks with which it shares memory. Each of them
    /// has sent a message before the call.
    fn can_read_peers(&mut self) -> bool {
        true
    }

    /// Whether peers with which this rank shares memory can read `memory` of this rank, as far as
    /// its ends tell: not that of some devices.
    fn is_readable(&self, memory: Region) -> bool {
        let _ = memory;
        true
    }

    /// Queues a message whose `payload` the peer reads from this rank's memory, which completes the
    /// send, if the two share memory: then both [can](Transport::can_read_peers) read. To other
    /// peers the message is sent as by `post_send`.
    fn post_readable(&mut self, post: Post, payload: Region) -> Result<Posted> {
        self.post_send(post, payload)
    }

    /// Lets messages use `memory` of this rank directly, until the result is dropped, which is
    /// before the memory is freed. `None` if this makes no difference or is not possible.
    fn hold(&mut self, memory: Region, term: Term) -> Option<Hold> {
        let _ = (memory, term);
        None
    }

    /// Queues the receive of the message with exactly this header; `sink` has `header.bytes` bytes.
    fn post_recv(&mut self, post: Post, sink: Sink) -> Result<Posted>;

    /// Reports that the engine has done `work`. If computing takes virtual time, the work is
    /// complete later; until then the engine does not touch its memory.
    fn post_work(&mut self, ticket: Ticket, work: EngineWork) -> Result<Posted> {
        let _ = (ticket, work);
        Ok(Posted::Done)
    }

    /// Sets whether `poll` and `block` notice messages on `stream` for which no receive is posted.
    fn listen(&mut self, stream: StreamId, is_wanted: bool) -> Result<()>;

    /// Returns the next message of `stream`, as of the last `poll` or post. This rank listens to
    /// the stream, and no receive is posted on it.
    fn head(&mut self, stream: StreamId) -> Result<Head>;

    /// Appends the first message of each stream of collectives on which one has arrived and no
    /// receive is posted, as its sender claims it. Takes nothing from the streams. For a rank that
    /// has waited for a while, because all streams are searched.
    fn unexpected(&mut self, found: &mut Vec<(StreamId, Header)>) -> Result<()> {
        let _ = found;
        Ok(())
    }

    /// Makes all progress that is possible without blocking; appends the completed tickets.
    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()>;

    /// Returns when `poll` could next find something although no peer acts: a simulated arrival, an
    /// injected delay.
    fn next_event(&self) -> Option<Time> {
        None
    }

    /// Returns this rank's view of the memory published between the ranks, if all of them are on
    /// this host. Each call creates a new view: the engine calls once, before the first operation.
    fn windows(&self) -> Option<Windows> {
        None
    }

    /// Whether all messages that `peer` sent before it left are visible once its departure is
    /// known. Over a network they are not: only the end of the stream shows that nothing follows.
    fn is_departure_final(&self, peer: usize) -> bool {
        let _ = peer;
        false
    }

    /// Blocks until `poll` may find something new, a [`Waker`] of this transport is used, or
    /// `timeout` has passed. May return early for no reason.
    fn block(&mut self, timeout: Duration) -> Result<()>;

    /// Ends all use of posted memory, which returns to its owner, because no call will run again.
    /// From now on, neither the transport nor a device that it uses accesses the memory.
    fn withdraw(&mut self) {}

    /// Returns a handle with which another thread ends a `block`.
    fn waker(&self) -> Waker;
}

/// Ends a [`Transport::block`] from another thread. A wake just before the block counts.
pub type Waker = std::sync::Arc<dyn Fn() + Send + Sync>;

/// Words that can be attached to a slot: the room in a cache line beside the stamp and the call.
pub const ATTACHED_WORDS: usize = 4;
