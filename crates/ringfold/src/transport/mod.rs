//! The contract of a transport: bytes and headers between peers, nothing of collectives.
//!
//! # Streams
//!
//! Between two ranks run independent, ordered, reliable streams, one a channel. Messages on a stream are matched in
//! order: the k-th posted receive gets the k-th posted send. A transport compares the header that came with the one that
//! was due ([`Header::expect`]) before it delivers a byte, and reports the difference as an error.
//!
//! Who does not know what is due looks first: [`Transport::head`] shows the header of a stream's next message as long as no
//! receive is posted there, and the receive is then posted with that very header.
//!
//! # Completion
//!
//! Posting never blocks and never fails for want of room: what cannot be done at once is queued and done by `poll`. The
//! engine bounds what it posts, so the queues are bounded. A send is complete when its payload may be overwritten; it
//! may wait until the peer has posted the receive. A receive is complete when its sink has absorbed all bytes.
//!
//! # Peer input
//!
//! Everything that comes from a peer is a claim until checked: lengths are compared with what was due, never used as loop
//! bounds or indices.

mod checksum;
pub mod faulty;
pub mod header;
pub mod local;
pub mod routes;
pub mod shm;
pub mod sim;
pub mod slow;
pub mod slowed;
#[cfg(test)]
pub(crate) mod suite;
pub mod tcp;

use std::time::Duration;

pub use header::{HEADER_BYTES, Header, mismatch};

use crate::call::Call;
use crate::error::Result;
use crate::memory::Region;
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

/// The channel of `send` and `recv`, apart from the collectives' (1 and up) so that neither waits behind the other.
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
    /// A message with this header, which is the sender's claim: its numbers mean something, nothing else is known of them.
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

/// Pieces of a message given to [`Sink::absorb`] begin at multiples of this, so that no element is cut.
pub const PIECE_ALIGN_BYTES: usize = 64;

impl Sink {
    /// The length of the message.
    pub fn bytes(&self) -> usize {
        match self {
            Sink::Store(into) => into.bytes(),
            Sink::Reduce { into, .. } => into.bytes(),
        }
    }

    /// Takes in `piece`, which stands at `offset` of the message. `offset` is a multiple of [`PIECE_ALIGN_BYTES`], and
    /// so is the piece's length unless it is the last. Every byte of the message is given exactly once.
    pub fn absorb(&self, offset: usize, piece: Region) {
        let range = offset..offset + piece.bytes();
        match self {
            Sink::Store(into) => into.part(range).copy_from(piece),
            Sink::Reduce { with, into, kernel } => {
                kernel.fold(into.part(range.clone()), &[with.part(range), piece]);
            }
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

/// A way to move bytes between the ranks of one communicator.
///
/// Used by one thread at a time. Errors are final: after one the transport is only closed.
pub trait Transport: Send {
    /// Queues a message. `payload` has `header.bytes` bytes and stays untouched until the send is complete.
    fn post_send(
        &mut self,
        stream: Stream,
        ticket: Ticket,
        header: Header,
        payload: Region,
    ) -> Result<Posted>;

    /// Queues the reception of the message with exactly this header; `sink` has `header.bytes` bytes.
    fn post_recv(
        &mut self,
        stream: Stream,
        ticket: Ticket,
        header: Header,
        sink: Sink,
    ) -> Result<Posted>;

    /// Says that the engine has done `work` by itself. Where computing takes virtual time it is complete later, and until then
    /// the engine leaves what it touched alone.
    fn post_work(&mut self, ticket: Ticket, work: Work) -> Result<Posted> {
        let _ = (ticket, work);
        Ok(Posted::Done)
    }

    /// Whether from now on `poll` and `block` take notice of messages on `stream` for which no receive is posted.
    fn listen(&mut self, stream: Stream, is_wanted: bool) -> Result<()>;

    /// What stands at the beginning of `stream`, to which this rank listens and on which no receive is posted, as far as the
    /// last `poll` or post found it.
    fn head(&mut self, stream: Stream) -> Result<Head>;

    /// Does what can be done now without blocking; appends the tickets that are complete.
    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()>;

    /// When `poll` could next find something although no peer acts: a simulated arrival, an injected delay.
    fn next_event(&self) -> Option<Time> {
        None
    }

    /// The memory published between the ranks, if all of them are on this host.
    fn windows(&mut self) -> Option<&mut dyn Windows> {
        None
    }

    /// Whether all that `peer` sent before it left can be seen once its leaving is known. Over a network it cannot: there
    /// the end of the stream says that nothing more comes.
    fn is_departure_final(&self, peer: usize) -> bool {
        let _ = peer;
        false
    }

    /// Blocks until `poll` may find something new, a [`Waker`] of this transport is used, or `timeout` has passed.
    /// May return early for no reason.
    fn block(&mut self, timeout: Duration) -> Result<()>;

    /// A handle by which another thread ends a `block`.
    fn waker(&self) -> Waker;
}

/// Ends a [`Transport::block`] from another thread. A wake just before the block counts.
pub type Waker = std::sync::Arc<dyn Fn() + Send + Sync>;

/// Words that can be attached to a slot: what a cache line holds beside the stamp and the call.
pub const ATTACHED_WORDS: usize = 4;

/// Published memory: every rank has `slots` slots of `slot_bytes` that all ranks of the host can read.
///
/// A *generation* is one slice of one call, counted up equally on all ranks; it uses slot `generation % slots` of every
/// rank. Within it a rank publishes phases in ascending order.
pub trait Windows {
    /// Generations that can be open at once.
    fn slots(&self) -> usize;

    /// Bytes that one rank can publish in one generation.
    fn slot_bytes(&self) -> usize;

    /// Whether all peers have finished the generation that used this one's slot before.
    fn is_free(&mut self, generation: u64) -> bool;

    /// Says that this rank is in `call`, for a rank that publishes nothing in it: whoever waits for it in another call
    /// learns that.
    fn enter(&mut self, generation: u64, call: &Call) {
        let _ = (generation, call);
    }

    /// Compares `call`, which was this rank's in a finished generation, with the peers', as far as theirs can still be
    /// seen: for calls in which this rank did not hear from all of them. False when a peer is not that far yet.
    fn verify(&mut self, generation: u64, call: &Call) -> Result<bool> {
        let _ = (generation, call);
        Ok(true)
    }

    /// Has what this rank is likely to write in `generation` at hand by then: its head and the first `bytes` bytes of its
    /// slot. A hint.
    fn prepare(&mut self, generation: u64, bytes: usize) {
        let _ = (generation, bytes);
    }

    /// Says that no call of this rank runs any more, and that what it exposed goes back to its owner: before the owner is
    /// told. See [`has_withdrawn`](Windows::has_withdrawn).
    fn withdraw(&self) {}

    /// Whether `peer` has said so. If not, everything that was read of its exposed memory until now is good.
    fn has_withdrawn(&self, peer: usize) -> bool {
        let _ = peer;
        false
    }

    /// Attaches at most [`ATTACHED_WORDS`] words to this rank's slot; they travel in the same cache line as the next
    /// `publish`.
    fn attach(&mut self, generation: u64, words: &[u64]);

    /// One of the words that `peer` attached to its slot. Only after `has_reached` said so.
    fn attached(&self, peer: usize, generation: u64, word: usize) -> u64;

    /// Part `range` of this rank's slot, to be written. Peers may look once the next `publish` says so.
    fn target(&mut self, generation: u64, range: std::ops::Range<usize>) -> Region;

    /// Copies `bytes` to `offset` of this rank's slot.
    fn write(&mut self, generation: u64, offset: usize, bytes: Region) {
        self.target(generation, offset..offset + bytes.bytes())
            .copy_from(bytes);
    }

    /// `attach` and `publish`.
    fn offer(&mut self, generation: u64, phase: u8, call: &Call, words: &[u64]) -> Result<()> {
        self.attach(generation, words);
        self.publish(generation, phase, call)
    }

    /// `has_reached`, and if so the words that `peer` attached, as many as there is room for.
    fn collect(
        &mut self,
        peer: usize,
        generation: u64,
        phase: u8,
        call: &Call,
        words: &mut [u64],
    ) -> Result<bool> {
        if !self.has_reached(peer, generation, phase, call)? {
            return Ok(false);
        }
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.attached(peer, generation, index);
        }
        Ok(true)
    }

    /// Says that this rank has reached `phase` in `call`.
    fn publish(&mut self, generation: u64, phase: u8, call: &Call) -> Result<()>;

    /// Whether `peer` has reached `phase` of this generation; `Mismatch` if it did so in another call than `call`.
    fn has_reached(&mut self, peer: usize, generation: u64, phase: u8, call: &Call)
    -> Result<bool>;

    /// The call that `peer` has entered as this generation, which is one that this rank has not begun; `None` if there is none
    /// that means anything.
    fn entered(&mut self, peer: usize, generation: u64) -> Option<Call>;

    /// What `peer` published at `range` of its slot. Only after `has_reached` said so; to be written only by a schedule's
    /// `GiveBack`, and touched or traded as the engine's `slots` says.
    fn view(&self, peer: usize, generation: u64, range: std::ops::Range<usize>) -> Region;

    /// The peers that have not finished the generation that used this one's slot before, for error messages.
    fn behind(&self, generation: u64) -> Vec<usize> {
        let _ = generation;
        Vec::new()
    }

    /// This rank will not look at `generation` or an earlier one again. In order, once each.
    fn finish(&mut self, generation: u64);

    /// Like `publish`, but wakes nobody: for what a rank need not see before somebody else has combined it.
    fn publish_quietly(&mut self, generation: u64, phase: u8, call: &Call) -> Result<()> {
        self.publish(generation, phase, call)
    }

    /// Takes one of the `blocks` blocks of this generation, which nobody else gets then; `None` when all are taken. At most
    /// [`BLOCKS_MAX`](shm::claims::BLOCKS_MAX) blocks.
    fn claim(&mut self, generation: u64, blocks: u32) -> Option<u32>;

    /// Takes one of the `blocks` blocks of this generation that are `home`'s, as long as there are any; anybody may. In one
    /// generation at a time: nobody claims before all are done with the one before.
    fn claim_of(&mut self, home: usize, generation: u64, blocks: u32) -> Option<u32>;

    /// Says that the claimed block is combined. Wakes the peers with the last one of the generation.
    fn complete(&mut self, generation: u64, blocks: u32);

    /// Whether all blocks of the generation are combined. What they hold is visible then.
    fn is_complete(&self, generation: u64, blocks: u32) -> bool;

    /// The peers that have claimed a block of this generation and not completed it, for error messages.
    fn claimants(&self, generation: u64) -> Vec<usize>;

    /// Like `finish`, but wakes nobody: when no rank can be a whole round of slots ahead.
    fn finish_quietly(&mut self, generation: u64) {
        self.finish(generation);
    }

    /// Like `finish`, after this rank has heard from all others in `generation`, which each of them entered with nothing
    /// earlier under way. Wakes nobody: no rank can be a whole round of slots ahead.
    fn finish_heard(&mut self, generation: u64) {
        self.finish(generation);
    }
}
