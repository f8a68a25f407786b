//! The contract of a transport: bytes and headers between peers, nothing of collectives.
//!
//! # Streams
//!
//! Between two ranks run independent, ordered, reliable streams, one a channel. Messages on a
//! stream are matched in order: the k-th posted receive gets the k-th posted send. A transport
//! compares the header that came with the one that was due ([`Header::expect`]) before it delivers
//! a byte, and reports the difference as an error.
//!
//! A receiver that does not know what is due looks first: [`Transport::head`] shows the header of a
//! stream's next message as long as no receive is posted there, and the receive is then posted with
//! that very header.
//!
//! # Completion
//!
//! Posting never blocks and never fails for want of room: what cannot be done at once is queued and
//! done by `poll`. The engine bounds what it posts, so the queues are bounded. A send is complete
//! when its payload may be overwritten; it may wait until the peer has posted the receive. A
//! receive is complete when its sink has absorbed all bytes.
//!
//! # Peer input
//!
//! Everything that comes from a peer is a claim until checked: lengths are compared with what was
//! due, never used as loop bounds or indices.

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
use crate::memory::{Handle, Hold, PeerMemory, Region};
use crate::reduce::Kernel;
use crate::types::DType;

/// A point in time, in picoseconds since an origin that the clock's owner chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u128);

impl Time {
    /// The time `duration` later.
    pub fn after(self, duration: Duration) -> Time {
        Time(self.0 + duration.as_nanos() * 1000)
    }

    /// How long it is from `earlier` to this time; zero if it is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        let nanoseconds = self.0.saturating_sub(earlier.0) / 1000;
        Duration::from_nanos(nanoseconds.min(u64::MAX as u128) as u64)
    }
}

/// One ordered stream of messages with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The other end.
    pub peer: usize,
    /// Which of the streams with that peer; see [`P2P_CHANNEL`].
    pub channel: usize,
}

/// The channel of `send` and `recv`, apart from the collectives' (1 and up) so that neither waits
/// behind the other.
pub const P2P_CHANNEL: usize = 0;

/// The engine's name for something it posted. Never reused while it is under way.
pub type Ticket = u64;

/// Whether a posted message is done already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Done; `poll` will not report it.
    Done,
    /// Under way; `poll` will report its ticket.
    Pending,
}

/// What stands at the beginning of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Nothing yet.
    Nothing,
    /// A message with this header, which is the sender's claim: its numbers mean something, nothing
    /// else is known of them.
    Message(Header),
    /// Nothing, and nothing will come: the peer has left, noticed by this.
    End(&'static str),
}

/// Where the bytes of a message go.
#[derive(Clone, Copy, Debug)]
pub enum Sink {
    /// Into this region, as they are.
    Store(Region),
    /// Combined with the same bytes of `with` into `into` (`with` may be `into`).
    Reduce {
        /// The operand on this rank.
        with: Region,
        /// Where the result goes.
        into: Region,
        /// The combining loop.
        kernel: Kernel,
    },
}

/// Something that the engine does by itself in a schedule of messages.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// What.
    pub kind: WorkKind,
    /// The elements' type.
    pub dtype: DType,
    /// Bytes of the result.
    pub bytes: usize,
}

/// The kinds of such work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// A copy.
    Copy,
    /// The combination of two operands.
    Reduce,
}

/// Pieces of a message given to [`Sink::absorb`] begin at multiples of this, so that no element is
/// cut.
pub const PIECE_ALIGN_BYTES: usize = 64;

impl Sink {
    /// The length of the message.
    pub fn bytes(&self) -> usize {
        match self {
            Sink::Store(into) => into.bytes(),
            Sink::Reduce { into, .. } => into.bytes(),
        }
    }

    /// Takes in `piece`, which stands at `offset` of the message. `offset` is a multiple of
    /// [`PIECE_ALIGN_BYTES`], and so is the piece's length unless it is the last. Every byte of the
    /// message is given exactly once.
    pub fn absorb(&self, offset: usize, piece: Region) {
        let range = offset..offset + piece.bytes();
        match self {
            Sink::Store(into) => into.part(range).copy_from(piece),
            Sink::Reduce { with, into, kernel } => {
                kernel.fold(into.part(range.clone()), &[with.part(range), piece]);
            }
        }
    }

    /// Where the bytes `range` of the message go. It begins at a multiple of [`PIECE_ALIGN_BYTES`].
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

    /// The memory that may be filled directly instead of `absorb`, if there is such.
    pub fn landing(&self) -> Option<Region> {
        match self {
            Sink::Store(into) => Some(*into),
            Sink::Reduce { .. } => None,
        }
    }
}

/// For how long memory is held, see [`Transport::hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// For one call, which only reads it.
    Input,
    /// For one call, which may fill it.
    Output,
    /// For many calls: what it costs to prepare it does not count.
    Long,
}

/// What is said of a message when it is posted: its stream, the ticket that reports it complete,
/// and its header.
#[derive(Clone, Copy, Debug)]
pub struct Post(pub Stream, pub Ticket, pub Header);

/// A way to move bytes between the ranks of one communicator.
///
/// Used by one thread at a time. Errors are final: after one the transport is only closed.
pub trait Transport: Send {
    /// Queues a message. `payload` has `header.bytes` bytes and stays untouched until the send is
    /// complete.
    fn post_send(&mut self, post: Post, payload: Region) -> Result<Posted>;

    /// Queues a message whose `payload` is registered memory, at `place` for peers. One that has
    /// mapped it may read it there, if that is known of it ([`Transport::set_peer_memory`]); the
    /// send is complete when it has. To others it is sent as by `post_send`.
    fn post_lent(&mut self, post: Post, payload: Region, place: Handle) -> Result<Posted> {
        let _ = place;
        self.post_send(post, payload)
    }

    /// The length from which payloads are lent, if any are.
    fn lent_bytes_min(&self) -> Option<usize> {
        None
    }

    /// How many messages this rank has lent.
    #[cfg(test)]
    fn messages_lent(&self) -> u64 {
        0
    }

    /// What this rank has mapped of its peers' registered memory from now on. It stays mapped until
    /// the next of these calls; peers name only what is in it.
    fn set_peer_memory(&mut self, memory: PeerMemory) {
        let _ = memory;
    }

    /// Has messages use `memory` of this rank directly, until the result is dropped, which is
    /// before the memory goes. Nothing where that makes no difference, or is not possible.
    fn hold(&mut self, memory: Region, term: Term) -> Option<Hold> {
        let _ = (memory, term);
        None
    }

    /// Queues the reception of the message with exactly this header; `sink` has `header.bytes`
    /// bytes.
    fn post_recv(&mut self, post: Post, sink: Sink) -> Result<Posted>;

    /// Says that the engine has done `work` by itself. Where computing takes virtual time it is
    /// complete later, and until then the engine leaves what it touched alone.
    fn post_work(&mut self, ticket: Ticket, work: Work) -> Result<Posted> {
        let _ = (ticket, work);
        Ok(Posted::Done)
    }

    /// Whether from now on `poll` and `block` take notice of messages on `stream` for which no
    /// receive is posted.
    fn listen(&mut self, stream: Stream, is_wanted: bool) -> Result<()>;

    /// What stands at the beginning of `stream`, to which this rank listens and on which no receive
    /// is posted, as far as the last `poll` or post found it.
    fn head(&mut self, stream: Stream) -> Result<Head>;

    /// Appends the first message of each stream of collectives on which one has come and no receive
    /// is posted, as its sender claims it. Takes nothing from the streams. For a rank that has
    /// waited for a while: this looks at all of them.
    fn unexpected(&mut self, found: &mut Vec<(Stream, Header)>) -> Result<()> {
        let _ = found;
        Ok(())
    }

    /// Does what can be done now without blocking; appends the tickets that are complete.
    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()>;

    /// When `poll` could next find something although no peer acts: a simulated arrival, an
    /// injected delay.
    fn next_event(&self) -> Option<Time> {
        None
    }

    /// The memory published between the ranks, as this rank uses it, if all of them are on this
    /// host. Made anew by each call: the engine takes it once, before the first operation.
    fn windows(&self) -> Option<Windows> {
        None
    }

    /// Whether all that `peer` sent before it left can be seen once its leaving is known. Over a
    /// network it cannot: there the end of the stream says that nothing more comes.
    fn is_departure_final(&self, peer: usize) -> bool {
        let _ = peer;
        false
    }

    /// Blocks until `poll` may find something new, a [`Waker`] of this transport is used, or
    /// `timeout` has passed. May return early for no reason.
    fn block(&mut self, timeout: Duration) -> Result<()>;

    /// Nothing runs any more, and the memory of what was posted goes back to its owner: from now on
    /// the transport, and what it was handed to, leave it alone.
    fn withdraw(&mut self) {}

    /// A handle by which another thread ends a `block`.
    fn waker(&self) -> Waker;
}

/// Ends a [`Transport::block`] from another thread. A wake just before the block counts.
pub type Waker = std::sync::Arc<dyn Fn() + Send + Sync>;

/// Words that can be attached to a slot: what a cache line holds beside the stamp and the call.
pub const ATTACHED_WORDS: usize = 4;
