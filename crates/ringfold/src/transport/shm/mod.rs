//! Shared memory between the ranks of one host.
//!
//! One [`Segment`] contains published windows, which all ranks read in place (two copies of every
//! byte, or one), and rings of cells between pairs, for schedules made of messages. Both are plain
//! memory and flags; a system call is made only to sleep and to wake a sleeper.
//!
//! # Invariants
//!
//! * Every word is written by one rank only, except a doorbell's, which any rank may ring, and
//!   those by which blocks are claimed.
//! * A peer's writes are compared with the expected values, and never become a length or a loop
//!   bound; the offset of a lent message is checked against the mapping.

mod barrier;
mod claims;
mod doorbell;
mod flag;
mod reading;
mod ring;
mod segment;
mod slots;
mod window;

use std::sync::Arc;
use std::time::Duration;

pub(super) use doorbell::Armed;
use doorbell::Bed;
use reading::{Reader, Token};
use ring::{Lenders, Receiver, RingEnd, SendBuffer, Sender};
use segment::RingId;
pub use segment::{Segment, SegmentShape};
pub use slots::{PREFETCHED_BYTES_MAX, SlotUse};
pub use window::{Wake, Windows};

use super::bell::Bell;
use super::{
    Head, Header, P2P_CHANNEL, Post, Posted, Sink, StreamId, Ticket, Time, Transport, Waker,
};
use crate::error::{Error, Result};
use crate::memory::{BufferHandle, PeerMemory, Region};

/// Failure reason of a peer that has left while a message from it was due.
const LEFT: &str = "it left (closed its communicator) while a message from it was due";

/// Minimum length of lent payloads. Shorter ones are copied even if the receiver could read
/// registered memory: the copy stays in the cache, and the send does not wait for its receiver.
pub const LENT_BYTES_MIN: usize = 32 << 10;

/// Approximate bytes per rank of a segment whose ranks are threads.
const THREAD_BYTES: usize = 1 << 20;

/// The transport between the ranks that share a segment. Peers are numbered as on the segment.
#[derive(Debug)]
pub struct Shm {
    segment: Arc<Segment>,
    rank: usize,
    /// Number of domains of equal size to which the ranks belong.
    domains: usize,
    /// Senders by peer and channel; `receivers` likewise.
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    /// Indices of senders with queued messages; `receiving` likewise.
    sending: Vec<usize>,
    receiving: Vec<usize>,
    /// Buffer for the tickets of one post.
    posted: Vec<Ticket>,
    armed: Option<Armed>,
    /// The peers' memory.
    lenders: Lenders,
    /// Minimum length of lent payloads in registered memory.
    lent_bytes_min: usize,
    /// Found by peers that read this rank's memory.
    #[cfg_attr(not(test), allow(dead_code, reason = "held for peers"))]
    token: Token,
    /// Number of messages that this rank has lent from registered memory.
    messages_lent: u64,
}

impl Shm {
    /// Creates the transport of the rank with this number on the segment. If its ranks outnumber
    /// their cores, they sleep often.
    pub fn new(segment: Arc<Segment>, rank: usize, is_oversubscribed: bool) -> Shm {
        let SegmentShape {
            ranks, channels, ..
        } = *segment.shape();
        if !is_oversubscribed {
            segment.doorbell(rank).fence_ringers();
        }
        let streams =
            || (0..ranks).flat_map(move |peer| (0..channels).map(move |channel| (peer, channel)));
        let id = |from, to, channel| RingId { from, to, channel };
        let to = |(peer, channel)| RingEnd::new(id(rank, peer, channel));
        let from = |(peer, channel)| RingEnd::new(id(peer, rank, channel));
        Shm {
            senders: streams().map(to).collect(),
            receivers: streams().map(from).collect(),
            domains: 1,
            sending: Vec::with_capacity(ranks * channels),
            receiving: Vec::with_capacity(ranks * channels),
            posted: Vec::with_capacity(1),
            armed: None,
            lenders: Lenders::default(),
            lent_bytes_min: LENT_BYTES_MIN,
            token: Token::publish(&segment, rank),
            messages_lent: 0,
            segment,
            rank,
        }
    }

    /// Returns the transports of ranks that are threads of this process.
    pub fn threads(ranks: usize, channels: usize, cores: usize) -> impl Iterator<Item = Shm> {
        let segment = Segment::unshared(SegmentShape::new(ranks, channels, THREAD_BYTES));
        (0..ranks).map(move |rank| Shm::new(segment.clone(), rank, ranks > cores))
    }

    /// Sets the length from which payloads are lent.
    #[cfg(test)]
    pub fn lending_from(mut self, bytes: usize) -> Shm {
        self.lent_bytes_min = bytes;
        self
    }

    /// Returns this rank's token.
    #[cfg(test)]
    fn token(&self) -> Region {
        self.token.0.region()
    }

    /// Sets the number of domains of equal size to which the ranks belong, in rank order.
    pub fn in_domains(mut self, domains: usize) -> Shm {
        self.domains = domains;
        self
    }

    /// Announces that this rank is about to sleep on descriptors. `false` if the announcement is
    /// new: peers may have acted before it, so the rank looks for work first.
    pub fn announce_sleep(&mut self) -> bool {
        let is_announced = self.armed.is_some();
        if !is_announced {
            let doorbell = self.segment.doorbell(self.rank);
            self.armed = Some(doorbell.arm(Bed::Descriptors));
        }
        is_announced
    }

    /// Withdraws the announcement of a sleep.
    pub fn end_sleep(&mut self) {
        if self.armed.take().is_some() {
            self.segment.doorbell(self.rank).disarm();
        }
    }

    /// Returns this rank's bell, if the ranks of the segment have bells.
    pub fn bell(&self) -> Option<&Bell> {
        self.segment.bells().of(self.rank)
    }

    /// Forgets the streams with nothing queued, and an announced sleep.
    fn forget_idle_streams(&mut self) {
        self.receiving
            .retain(|&index| !self.receivers[index].is_idle());
        self.sending.retain(|&index| !self.senders[index].is_idle());
        self.end_sleep();
    }

    /// Fails if a message is due from a rank that has left. First takes the messages that the rank
    /// had sent.
    fn check_departures(&mut self, done: &mut Vec<Ticket>) -> Result<()> {
        let channels = self.segment.shape().channels;
        let has_departed = |index: &&usize| self.segment.has_departed(**index / channels);
        let Some(&index) = self.receiving.iter().find(has_departed) else {
            return Ok(());
        };
        self.receivers[index].pump(&self.segment, Some(&self.lenders), done)?;
        if self.receivers[index].is_idle() {
            self.forget_idle_streams();
            return Ok(());
        }
        Err(Error::peer_failed(index / channels, LEFT))
    }

    fn queue_send(
        &mut self,
        post @ Post(stream, ..): Post,
        region: Region,
        place: Option<BufferHandle>,
    ) -> Result<Posted> {
        let index = self.stream(stream);
        let sender = &mut self.senders[index];
        let was_idle = sender.is_idle();
        self.posted.clear();
        if sender.push(post, SendBuffer { region, place }) {
            // This can complete only the message itself, as it is the only one to be written.
            sender.fill(&self.segment, &mut self.posted)?;
        }
        if was_idle && !sender.is_idle() {
            self.sending.push(index);
        }
        match self.posted.is_empty() {
            true => Ok(Posted::Pending),
            false => Ok(Posted::Done),
        }
    }

    fn stream(&self, stream: StreamId) -> usize {
        let channels = self.segment.shape().channels;
        assert!(
            stream.channel < channels,
            "channel {} of {channels}",
            stream.channel
        );
        stream.peer * channels + stream.channel
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        if self.messages_lent > 0 {
            log::info!(
                target: "ringfold::transport",
                "lent {} messages from registered memory", self.messages_lent
            );
        }
        self.segment.depart(self.rank);
    }
}

impl Transport for Shm {
    fn post_send(&mut self, post: Post, payload: Region) -> Result<Posted> {
        self.queue_send(post, payload, None)
    }

    fn is_readable(&self, memory: Region) -> bool {
        reading::is_readable(memory)
    }

    fn post_readable(&mut self, post: Post, payload: Region) -> Result<Posted> {
        let place = (!payload.is_empty()).then(|| BufferHandle::ordinary(payload));
        self.queue_send(post, payload, place)
    }

    fn post_lent(&mut self, post: Post, payload: Region, place: BufferHandle) -> Result<Posted> {
        let place = (payload.bytes() >= self.lent_bytes_min).then_some(place);
        self.messages_lent += u64::from(place.is_some());
        self.queue_send(post, payload, place)
    }

    fn lent_bytes_min(&self) -> Option<usize> {
        Some(self.lent_bytes_min)
    }

    #[cfg(test)]
    fn messages_lent(&self) -> u64 {
        self.messages_lent
    }

    fn set_peer_memory(&mut self, memory: PeerMemory) {
        self.lenders.registered = memory;
    }

    fn can_read_peers(&mut self) -> bool {
        match Reader::open(&self.segment, self.rank) {
            Ok(reader) => self.lenders.ordinary = Some(reader),
            Err(peer) => log::info!(
                target: "ringfold::transport",
                "number {peer} on this host does not let its memory be read; long messages are \
                 copied twice"
            ),
        }
        self.lenders.ordinary.is_some()
    }

    fn post_recv(&mut self, post @ Post(stream, ..): Post, sink: Sink) -> Result<Posted> {
        let index = self.stream(stream);
        let receiver = &mut self.receivers[index];
        if receiver.push(post, sink) {
            self.posted.clear();
            receiver.pump(&self.segment, None, &mut self.posted)?;
            if receiver.is_idle() {
                return Ok(Posted::Done);
            }
            self.receiving.push(index);
        }
        Ok(Posted::Pending)
    }

    /// Does nothing: every cell rings the receiver's doorbell anyway.
    fn listen(&mut self, _stream: StreamId, _is_wanted: bool) -> Result<()> {
        Ok(())
    }

    fn head(&mut self, stream: StreamId) -> Result<Head> {
        let receiver = &self.receivers[self.stream(stream)];
        if let Some(header) = receiver.head(&self.segment)? {
            return Ok(Head::Message(header));
        }
        if !self.segment.has_departed(stream.peer) {
            return Ok(Head::Nothing);
        }
        // Messages that the peer sent before it left are visible now.
        let last = receiver.head(&self.segment)?;
        Ok(last.map_or(Head::End(LEFT), Head::Message))
    }

    fn unexpected(&mut self, found: &mut Vec<(StreamId, Header)>) -> Result<()> {
        let channels = self.segment.shape().channels;
        for (index, receiver) in self.receivers.iter().enumerate() {
            let (peer, channel) = (index / channels, index % channels);
            if channel != P2P_CHANNEL && receiver.is_idle() {
                let header = receiver.head(&self.segment)?;
                found.extend(header.map(|header| (StreamId { peer, channel }, header)));
            }
        }
        Ok(())
    }

    fn poll(&mut self, _now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        let before = done.len();
        for &index in &self.receiving {
            self.receivers[index].pump(&self.segment, Some(&self.lenders), done)?;
        }
        for &index in &self.sending {
            self.senders[index].pump(&self.segment, done)?;
        }
        if done.len() == before {
            return self.check_departures(done);
        }
        self.forget_idle_streams();
        Ok(())
    }

    fn windows(&self) -> Option<Windows> {
        let segment = self.segment.clone();
        Some(Windows::new(segment, self.rank, self.domains))
    }

    fn block(&mut self, timeout: Duration) -> Result<()> {
        let doorbell = self.segment.doorbell(self.rank);
        doorbell.block(&mut self.armed, timeout);
        Ok(())
    }

    fn is_departure_final(&self, _peer: usize) -> bool {
        true
    }

    fn withdraw(&mut self) {
        self.segment.withdraw(self.rank);
    }

    fn waker(&self) -> Waker {
        // A handle that outlives the transport keeps no memory mapped.
        let (segment, rank) = (Arc::downgrade(&self.segment), self.rank);
        Arc::new(move || {
            if let Some(segment) = segment.upgrade() {
                segment.doorbell(rank).wake();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::bell::Bells;
    use crate::transport::suite;

    fn ranks(world_size: usize) -> Vec<Shm> {
        let (segment, _fd) =
            Segment::create(SegmentShape::new(world_size, 4, 8 << 20), Bells::default())
                .expect("shared memory");
        (0..world_size)
            .map(|rank| Shm::new(segment.clone(), rank, false))
            .collect()
    }

    suite::transport_tests!(ranks);
    suite::transport_tests!(ranks; an_unexpected_message_is_seen_and_stays,);

    mod in_domains {
        use super::*;

        /// Returns ranks in domains of two, if their number is even.
        fn ranks(world_size: usize) -> Vec<Shm> {
            let ranks = super::ranks(world_size).into_iter();
            ranks.map(|rank| rank.in_domains(world_size / 2)).collect()
        }

        suite::transport_tests!(ranks);
    }
}
