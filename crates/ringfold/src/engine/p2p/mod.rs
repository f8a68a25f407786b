//! Point-to-point messages: the matching of messages and receives.
//!
//! # Model
//!
//! Two ranks have one stream in each direction for their messages, separate from the collectives'.
//! A send is posted on its stream at once. A receive waits here until a message that matches its
//! source and tag is at the head of a stream. The receive is then posted with that message's own
//! header. So the payload goes straight to its destination, whatever the order of receives.
//!
//! A message that matches no waiting receive stays in its stream, which delays its sender. Only if
//! a receive waits for a later message is it *kept*: received into memory of the library, within
//! bounds, until a receive matches it.
//!
//! A message to this rank itself has no stream. Such a message is copied to a waiting receive, or
//! kept, either of which completes its send. If there is no room, the send waits for a receive.
//!
//! The mailbox has the interface of an executor: [`Mailbox::advance`], [`Mailbox::complete`],
//! [`Mailbox::waiting_for`].
//!
//! # Invariants
//!
//! * A receive gets the oldest message that has its tag, from its peer or from any. If two receives
//!   match a message, the one submitted first gets it. Type and count are compared then: a
//!   difference is a `Mismatch`.
//! * Receives from any source serve one peer after the other, so no peer starves.
//! * The number of each message in its stream is checked: none is lost, repeated or delivered
//!   twice.
//! * Nothing is allocated for messages that are received in the order in which they were sent.
//!
//! The schedules of `send` and `recv` do the same in one step; the conformance suite checks this
//! module against them.

mod diagnosis;
mod kept;
mod own;

use std::collections::VecDeque;
use std::time::Duration;

pub use kept::KEPT_BYTES_MAX;

use super::{ANY_SOURCE, Finished, Job, JobId};
use crate::call::{Call, Qualifier};
use crate::error::{Error, Result};
use crate::memory::{Hold, Region};
use crate::transport::{
    Head, Header, P2P_CHANNEL, Post, Posted, Sink, StreamId, Term, Ticket, Time, Transport,
    mismatch,
};
use crate::types::Collective;
use kept::UnexpectedMessages;

/// The operation number in tickets of messages; no operation has this number.
const MAILBOX: u64 = 0xffff;

/// Marks the tickets of incoming messages, which name the peer; those of sends name the message.
const INCOMING: u64 = 1 << 40;

/// The messages of one rank.
#[derive(Default)]
pub struct Mailbox {
    rank: usize,
    peers: Vec<PeerMessages>,
    /// Sends and receives under way, by number.
    messages: Vec<Option<PendingMessage>>,
    free: Vec<usize>,
    /// Messages submitted since the last attempt, in order.
    submitted: VecDeque<usize>,
    /// Receives without a message, in the order of their submission.
    waiting: VecDeque<usize>,
    /// Number of waiting receives from any source.
    waiting_for_any: usize,
    /// The peers that are listened to, in order; during an attempt perhaps some that no longer are.
    listened: Vec<usize>,
    /// The source of the last message that a receive from any source got.
    last_source: usize,
    kept: UnexpectedMessages,
    /// The length from which peers of this host read this rank's messages from its memory.
    pub read_bytes_min: usize,
    /// A lower bound of all deadlines that are set.
    next_deadline: Option<Time>,
    /// Messages without a deadline, submitted since deadlines were checked last.
    undated: Vec<usize>,
    /// Sends to this rank itself for which there was no room among the kept messages, oldest first.
    to_self: VecDeque<usize>,
    /// Number of receives submitted.
    receives: u64,
    finished: VecDeque<Finished>,
}

/// The state of the messages of one peer.
#[derive(Default)]
struct PeerMessages {
    /// Number of messages sent to the peer and taken from it, so far.
    sent: u64,
    taken: u64,
    /// Number of receives that wait for a message of this peer only.
    waiting: usize,
    is_listened: bool,
    /// The destination of the message that is arriving.
    arriving: Option<Destination>,
    /// The header of a message that is to be kept and finds no room.
    held_back: Option<Header>,
    /// Whether the peer has left, and all its messages are taken.
    has_ended: bool,
}

#[derive(Clone, Copy)]
enum Destination {
    Receive(usize),
    Keep,
}

/// A send or a receive under way.
#[derive(Debug)]
struct PendingMessage {
    /// The call of this rank, whose sequence counts the sends to the peer, or this rank's receives.
    call: Call,
    /// The other end; not known yet for a receive from any source.
    peer: Option<usize>,
    region: Region,
    /// The transport's hold on `region` while the message is in flight.
    hold: Option<Hold>,
    timeout: Duration,
    /// The time by which the message must be done; unset until the driver first reads the clock.
    deadline: Option<Time>,
}

/// Returns whether a ticket belongs to this module.
pub fn owns(ticket: Ticket) -> bool {
    ticket >> 48 == MAILBOX
}

impl Mailbox {
    /// Creates the mailbox of `rank` among `world_size` ranks.
    pub fn new(rank: usize, world_size: usize) -> Mailbox {
        Mailbox {
            rank,
            read_bytes_min: usize::MAX,
            peers: (0..world_size).map(|_| PeerMessages::default()).collect(),
            listened: Vec::with_capacity(world_size),
            ..Mailbox::default()
        }
    }

    /// Returns the number of sends and receives under way, or finished and not taken yet.
    pub fn under_way(&self) -> usize {
        self.messages.len() - self.free.len()
    }

    /// Returns the first finished message that is not taken yet. The message's number is not reused
    /// before the message is taken.
    pub fn take_finished(&mut self) -> Option<Finished> {
        let finished = self.finished.pop_front()?;
        self.free.push(finished.id.place());
        Some(finished)
    }

    /// Submits a send or a receive.
    pub fn submit(&mut self, job: Job) -> Result<JobId> {
        let is_send = job.collective == Collective::Send;
        let region = if is_send { job.input } else { job.output };
        let peer = Some(job.root).filter(|root| *root != ANY_SOURCE);
        let sequence = match peer {
            Some(peer) if is_send => &mut self.peers[peer].sent,
            _ => &mut self.receives,
        };
        *sequence += 1;
        let message = PendingMessage {
            call: Call {
                sequence: *sequence,
                cut: 0,
                ..job.announced(Qualifier::Tag(job.tag), job.count, job.whole.unwrap_or(0))
            },
            peer,
            region,
            hold: None,
            timeout: job.timeout,
            deadline: None,
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.messages.push(None);
            self.messages.len() - 1
        });
        self.messages[number] = Some(message);
        self.expect_deadline(number);
        self.submitted.push_back(number);
        Ok(JobId::message(number))
    }

    /// Begins the submitted messages; returns whether there were any.
    pub fn begin(&mut self, transport: &mut dyn Transport) -> Result<bool> {
        let mut progressed = false;
        while let Some(number) = self.submitted.pop_front() {
            progressed = true;
            let message = self.message(number);
            if message.is_receive() {
                if !self.take_kept(number)? && !self.take_from_self(number)? {
                    self.wait(number, transport)?;
                }
            } else if message.peer == Some(self.rank) {
                self.send_to_self(number, transport)?;
            } else {
                self.post(number, transport)?;
            }
        }
        Ok(progressed)
    }

    /// Takes arrived messages for waiting receives; returns whether there were any.
    pub fn advance(&mut self, transport: &mut dyn Transport) -> Result<bool> {
        let mut progressed = false;
        while !self.waiting.is_empty() {
            let mut took = false;
            let first = self
                .listened
                .partition_point(|peer| *peer <= self.last_source);
            for turn in 0..self.listened.len() {
                let peer = self.listened[(first + turn) % self.listened.len()];
                took |= self.take_head(peer, transport)?;
            }
            if !took {
                break;
            }
            progressed = true;
            self.stop_unneeded_listening(transport)?;
        }
        Ok(progressed)
    }

    /// Records that the message of `ticket` is sent, or has arrived.
    pub fn complete(&mut self, ticket: Ticket) {
        let number = ticket as u32 as usize;
        if ticket & INCOMING == 0 {
            self.finish(number);
        } else {
            let arrived = self.peers[number].arriving.take();
            self.arrived(
                number,
                arrived.expect("one message arrives on a stream at a time"),
            );
        }
    }

    fn post(&mut self, number: usize, transport: &mut dyn Transport) -> Result<()> {
        self.hold(number, Term::Input, transport);
        let message = self.message(number);
        let peer = message.peer.expect("a send has a receiver");
        let header = message.header();
        let ticket = MAILBOX << 48 | number as u64;
        let (post, payload) = (Post(stream(peer), ticket, header), message.region);
        let is_long = payload.bytes() >= self.read_bytes_min;
        let posted = match is_long && transport.is_readable(payload) {
            true => transport.post_readable(post, payload),
            false => transport.post_send(post, payload),
        }?;
        if posted == Posted::Done {
            self.finish(number);
        }
        Ok(())
    }

    /// Makes a receive wait for its message.
    fn wait(&mut self, number: usize, transport: &mut dyn Transport) -> Result<()> {
        self.waiting.push_back(number);
        match self.message(number).peer {
            Some(peer) => {
                self.peers[peer].waiting += 1;
                match peer == self.rank {
                    true => Ok(()),
                    false => self.listen(peer, transport),
                }
            }
            None => {
                self.waiting_for_any += 1;
                let rank = self.rank;
                let mut others = (0..self.peers.len()).filter(|peer| *peer != rank);
                others.try_for_each(|peer| self.listen(peer, transport))
            }
        }
    }

    fn listen(&mut self, peer: usize, transport: &mut dyn Transport) -> Result<()> {
        if self.peers[peer].is_listened {
            return Ok(());
        }
        self.peers[peer].is_listened = true;
        if let Err(place) = self.listened.binary_search(&peer) {
            self.listened.insert(place, peer);
        }
        transport.listen(stream(peer), true)
    }

    fn is_awaited(&self, peer: usize) -> bool {
        self.peers[peer].waiting > 0 || self.waiting_for_any > 0
    }

    /// Stops listening to a peer for which no receive waits.
    fn stop_listening(&mut self, peer: usize, transport: &mut dyn Transport) -> Result<()> {
        if self.peers[peer].is_listened && !self.is_awaited(peer) {
            self.peers[peer].is_listened = false;
            transport.listen(stream(peer), false)?;
        }
        Ok(())
    }

    /// Stops listening to all peers for which no receive waits.
    fn stop_unneeded_listening(&mut self, transport: &mut dyn Transport) -> Result<()> {
        for place in 0..self.listened.len() {
            self.stop_listening(self.listened[place], transport)?;
        }
        let peers = &self.peers;
        self.listened.retain(|peer| peers[*peer].is_listened);
        Ok(())
    }

    /// Takes the message at the head of `peer`'s stream, if possible; returns whether one was
    /// taken.
    fn take_head(&mut self, peer: usize, transport: &mut dyn Transport) -> Result<bool> {
        if self.peers[peer].arriving.is_some() || !self.is_awaited(peer) {
            return Ok(false);
        }
        let header = match transport.head(stream(peer))? {
            Head::Nothing => return Ok(false),
            Head::End(reason) => return self.has_ended(peer, reason),
            Head::Message(header) => header,
        };
        self.check(peer, &header)?;
        let (sink, destination) = match self.first_waiting(peer, header.call.qualifier) {
            Some(number) => {
                self.compare(number, peer, &header)?;
                self.stop_listening(peer, transport)?;
                self.hold(number, Term::Output, transport);
                (self.message(number).region, Destination::Receive(number))
            }
            None => match self.kept.make_room(peer, &header) {
                Some(room) => (room, Destination::Keep),
                None => {
                    self.hold_back(peer, &header);
                    return Ok(false);
                }
            },
        };
        let at = &mut self.peers[peer];
        at.held_back = None;
        at.taken += 1;
        let ticket = MAILBOX << 48 | INCOMING | peer as u64;
        match transport.post_recv(Post(stream(peer), ticket, header), Sink::Store(sink))? {
            Posted::Done => self.arrived(peer, destination),
            Posted::Pending => self.peers[peer].arriving = Some(destination),
        }
        Ok(true)
    }

    /// Checks that a peer's header is consistent, before the header is used.
    fn check(&self, peer: usize, header: &Header) -> Result<()> {
        let Header { call, bytes, .. } = header;
        let due = self.peers[peer].taken + 1;
        let elements = call.count.checked_mul(call.dtype.size_bytes() as u64);
        let is_message = matches!(call.qualifier, Qualifier::Tag(_)) && call.op == 0;
        let what = if call.collective != Collective::Send || !is_message {
            format!("received {call}, expected a message")
        } else if call.sequence != due {
            format!("received message #{}, expected #{due}", call.sequence)
        } else if elements != Some(u64::from(*bytes)) || (header.slice, header.index) != (0, 0) {
            format!("a message of {bytes} bytes is labelled {call}")
        } else {
            return Ok(());
        };
        Err(Error::corrupt(peer, what))
    }

    /// Removes and returns the first waiting receive that matches `peer`'s message with this tag.
    fn first_waiting(&mut self, peer: usize, tag: Qualifier) -> Option<usize> {
        let matches = |number: &usize| self.message(*number).matches(peer, tag);
        let place = self.waiting.iter().position(matches)?;
        let number = self.waiting.remove(place)?;
        match self.message(number).peer {
            Some(peer) => self.peers[peer].waiting -= 1,
            None => {
                self.waiting_for_any -= 1;
                self.last_source = peer;
            }
        }
        Some(number)
    }

    /// Compares a receive with its message, and sets the receive's source.
    fn compare(&mut self, number: usize, peer: usize, header: &Header) -> Result<()> {
        let message = self.messages[number].as_mut();
        let message = message.expect("a receive under way");
        message.peer = Some(peer);
        let (mine, theirs) = (&message.call, &header.call);
        let length = |call: &Call| (call.dtype, call.count, call.lists);
        if length(mine) != length(theirs) {
            let site = self.site(number);
            return Err(mismatch([self.rank, peer], [&site.call, theirs]).at(site));
        }
        Ok(())
    }

    /// Delivers to a receive the oldest kept message that matches, if there is one.
    fn take_kept(&mut self, number: usize) -> Result<bool> {
        let message = self.message(number);
        let Some((peer, header)) = self.kept.find(|peer, tag| message.matches(peer, tag)) else {
            return Ok(false);
        };
        self.compare(number, peer, &header)?;
        let region = self.message(number).region;
        if self.kept.hand_over(peer, &header, region, number) {
            self.finish(number);
        }
        Ok(true)
    }

    /// Handles a message that has arrived completely.
    fn arrived(&mut self, peer: usize, destination: Destination) {
        let receive = match destination {
            Destination::Receive(number) => Some(number),
            Destination::Keep => {
                let messages = &self.messages;
                let region = |number: usize| messages[number].as_ref().map(|m| m.region);
                self.kept.arrived(peer, region)
            }
        };
        if let Some(number) = receive {
            self.finish(number);
        }
    }

    fn finish(&mut self, number: usize) {
        let message = self.messages[number].take();
        let message = message.expect("a message that is under way");
        self.finished.push_back(Finished {
            id: JobId::message(number),
            source: message.peer.filter(|_| message.is_receive()),
        });
    }

    fn message(&self, number: usize) -> &PendingMessage {
        let message = self.messages[number].as_ref();
        message.expect("numbers are released when messages finish")
    }

    /// Prepares the memory of a message for direct use by the transport, if direct use is better.
    fn hold(&mut self, number: usize, term: Term, transport: &mut dyn Transport) {
        if let Some(message) = &mut self.messages[number] {
            message.hold = transport.hold(message.region, term);
        }
    }
}

impl PendingMessage {
    fn is_receive(&self) -> bool {
        self.call.collective == Collective::Recv
    }

    /// Returns the header of a send.
    fn header(&self) -> Header {
        Header {
            call: self.call,
            slice: 0,
            index: 0,
            bytes: self.region.bytes() as u32,
        }
    }

    fn matches(&self, peer: usize, tag: Qualifier) -> bool {
        self.call.qualifier == tag && self.peer.is_none_or(|mine| mine == peer)
    }
}

fn stream(peer: usize) -> StreamId {
    StreamId {
        peer,
        channel: P2P_CHANNEL,
    }
}
