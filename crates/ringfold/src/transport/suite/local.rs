//! Ranks as threads of one process, for tests.
//!
//! Every rank has a mailbox: a mutex and one queue per stream. A send puts a message into the
//! peer's mailbox; the peer takes it out when its receive is posted. With [`local`], a send copies
//! its payload and is complete at once. With [`rendezvous`], a send lends its payload and is
//! complete when the peer has absorbed it, so that a schedule which needs buffering hangs.
//!
//! Windows and doorbells are those of shared memory ([`shm`](crate::transport::shm)), in a segment
//! of this process.
//!
//! Clarity comes before speed here: messages lock and allocate.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Owned, Region};
use crate::transport::shm::{Armed, Segment, SegmentShape};
use crate::transport::{
    HEADER_BYTES, Head, Header, P2P_CHANNEL, Post, Posted, Sink, StreamId, Ticket, Time, Transport,
    Waker, Windows,
};

/// Returns the division of the segment of `ranks` ranks: few, small slots, so that tests with
/// modest buffers go around all of them; no rings.
fn shape(ranks: usize) -> SegmentShape {
    SegmentShape {
        ranks,
        slots: 4,
        slot_bytes: 64 << 10,
        channels: 0,
        cells: 0,
        cell_bytes: 0,
    }
}

/// Returns the ranks of a world whose sends are complete at once.
pub fn local(world_size: usize) -> Vec<Local> {
    ranks(world_size, SendProtocol::Eager)
}

/// Returns the ranks of a world whose sends are complete only after the receive.
pub fn rendezvous(world_size: usize) -> Vec<Local> {
    ranks(world_size, SendProtocol::Rendezvous)
}

fn ranks(world_size: usize, sending: SendProtocol) -> Vec<Local> {
    let segment = Segment::unshared(shape(world_size));
    let boxes: Arc<[RankMailbox]> = (0..world_size).map(|_| RankMailbox::default()).collect();
    (0..world_size)
        .map(|rank| Local {
            rank,
            sending,
            segment: segment.clone(),
            boxes: boxes.clone(),
            receives: BTreeMap::new(),
            armed: None,
        })
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendProtocol {
    Eager,
    Rendezvous,
}

/// One rank of a world of threads.
pub struct Local {
    rank: usize,
    sending: SendProtocol,
    segment: Arc<Segment>,
    boxes: Arc<[RankMailbox]>,
    /// Posted receives, by peer and channel; no empty queues.
    receives: BTreeMap<(usize, usize), VecDeque<LocalReceive>>,
    /// An announced sleep.
    armed: Option<Armed>,
}

struct LocalReceive {
    ticket: Ticket,
    header: Header,
    sink: Sink,
}

/// State of one rank that the others read and change.
#[derive(Default)]
struct RankMailbox(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    /// Messages to this rank, by sender and channel.
    messages: BTreeMap<(usize, usize), VecDeque<LocalMessage>>,
    /// Lent sends of this rank that were absorbed.
    sent: Vec<Ticket>,
    /// Lent sends of this rank that were not absorbed yet, with their receivers.
    lent: Vec<(Ticket, usize)>,
    /// Whether this rank was dropped.
    left: bool,
}

struct LocalMessage {
    header: [u8; HEADER_BYTES],
    payload: LocalPayload,
}

enum LocalPayload {
    Copied(Owned),
    /// Memory of the sender, which waits, and withdraws the message before it leaves.
    Lent(Region, Ticket),
}

impl RankMailbox {
    /// Locks even a poisoned mailbox: a test's panic must not hide behind another thread's.
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Local {
    /// Takes the messages that have arrived for the receives of one stream.
    fn progress(&mut self, key: (usize, usize), done: &mut Vec<Ticket>) -> Result<()> {
        let Some(queue) = self.receives.get_mut(&key) else {
            return Ok(());
        };
        let (peer, _) = key;
        while let Some(receive) = queue.front() {
            // Read before the mailbox: messages from before a peer left are still delivered.
            let left = self.boxes[peer].lock().left;
            let mut contents = self.boxes[self.rank].lock();
            let message = contents
                .messages
                .get_mut(&key)
                .and_then(VecDeque::pop_front);
            let Some(message) = message else {
                if left {
                    return Err(has_left(peer));
                }
                return Ok(());
            };
            receive.header.expect(&message.header, peer, self.rank)?;
            let lent = match message.payload {
                LocalPayload::Copied(payload) => {
                    receive.sink.absorb(0, payload.region());
                    None
                }
                // Under the lock, so that the lender cannot leave meanwhile.
                LocalPayload::Lent(payload, ticket) => {
                    receive.sink.absorb(0, payload);
                    Some(ticket)
                }
            };
            drop(contents);
            if let Some(ticket) = lent {
                let mut theirs = self.boxes[peer].lock();
                theirs.lent.retain(|(lent, _)| *lent != ticket);
                theirs.sent.push(ticket);
                drop(theirs);
                self.segment.ring(peer);
            }
            done.push(receive.ticket);
            queue.pop_front();
        }
        self.receives.remove(&key);
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.boxes.len()).filter(move |peer| *peer != rank)
    }
}

/// Failure reason of a peer that was dropped.
const LEFT: &str = "left";

#[cold]
fn has_left(rank: usize) -> Error {
    Error::peer_failed(rank, LEFT)
}

impl Transport for Local {
    fn post_send(&mut self, Post(stream, ticket, header): Post, payload: Region) -> Result<Posted> {
        assert_eq!(header.bytes as usize, payload.bytes());
        assert_ne!(stream.peer, self.rank, "a message to oneself");
        let lent = self.sending == SendProtocol::Rendezvous;
        if lent {
            self.boxes[self.rank]
                .lock()
                .lent
                .push((ticket, stream.peer));
        }
        let payload = if lent {
            LocalPayload::Lent(payload, ticket)
        } else {
            LocalPayload::Copied(Owned::copy_of(payload))
        };
        let message = LocalMessage {
            header: header.encode(0),
            payload,
        };
        let mut theirs = self.boxes[stream.peer].lock();
        if theirs.left {
            return Err(has_left(stream.peer));
        }
        let key = (self.rank, stream.channel);
        theirs.messages.entry(key).or_default().push_back(message);
        drop(theirs);
        self.segment.ring(stream.peer);
        Ok(if lent { Posted::Pending } else { Posted::Done })
    }

    fn post_recv(&mut self, Post(stream, ticket, header): Post, sink: Sink) -> Result<Posted> {
        assert_eq!(header.bytes as usize, sink.bytes());
        assert_ne!(stream.peer, self.rank, "a message from oneself");
        let queue = self
            .receives
            .entry((stream.peer, stream.channel))
            .or_default();
        queue.push_back(LocalReceive {
            ticket,
            header,
            sink,
        });
        Ok(Posted::Pending)
    }

    /// Does nothing: every message rings the receiver's doorbell anyway.
    fn listen(&mut self, _stream: StreamId, _is_wanted: bool) -> Result<()> {
        Ok(())
    }

    fn head(&mut self, stream: StreamId) -> Result<Head> {
        let key = (stream.peer, stream.channel);
        assert!(!self.receives.contains_key(&key), "a receive is posted");
        // Read before the mailbox: messages from before a peer left are still delivered.
        let left = self.boxes[stream.peer].lock().left;
        let contents = self.boxes[self.rank].lock();
        match contents.messages.get(&key).and_then(VecDeque::front) {
            Some(message) => Header::claimed(&message.header, stream.peer).map(Head::Message),
            None if left => Ok(Head::End(LEFT)),
            None => Ok(Head::Nothing),
        }
    }

    fn unexpected(&mut self, found: &mut Vec<(StreamId, Header)>) -> Result<()> {
        let contents = self.boxes[self.rank].lock();
        for (&(peer, channel), messages) in &contents.messages {
            let is_due = self.receives.contains_key(&(peer, channel));
            if let Some(first) = messages
                .front()
                .filter(|_| channel != P2P_CHANNEL && !is_due)
            {
                let header = Header::claimed(&first.header, peer)?;
                found.push((StreamId { peer, channel }, header));
            }
        }
        Ok(())
    }

    fn poll(&mut self, _now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        let streams: Vec<_> = self.receives.keys().copied().collect();
        for key in streams {
            self.progress(key, done)?;
        }
        // Read before this rank's mailbox, where a peer notes messages that it took before it left.
        let left: Vec<_> = self
            .others()
            .filter(|peer| self.boxes[*peer].lock().left)
            .collect();
        let mut mine = self.boxes[self.rank].lock();
        done.append(&mut mine.sent);
        let is_abandoned = |peer: &&usize| mine.lent.iter().any(|(_, receiver)| receiver == *peer);
        match left.iter().find(is_abandoned) {
            Some(peer) => Err(has_left(*peer)),
            None => Ok(()),
        }
    }

    fn windows(&self) -> Option<Windows> {
        Some(Windows::new(self.segment.clone(), self.rank, 1))
    }

    fn withdraw(&mut self) {
        self.segment.withdraw(self.rank);
    }

    fn block(&mut self, timeout: Duration) -> Result<()> {
        let doorbell = self.segment.doorbell(self.rank);
        doorbell.block(&mut self.armed, timeout);
        Ok(())
    }

    fn is_departure_final(&self, _peer: usize) -> bool {
        true
    }

    fn waker(&self) -> Waker {
        let (segment, rank) = (self.segment.clone(), self.rank);
        Arc::new(move || segment.doorbell(rank).wake())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.boxes[self.rank].lock().left = true;
        for peer in self.others() {
            let mut theirs = self.boxes[peer].lock();
            for ((sender, _), queue) in &mut theirs.messages {
                if *sender == self.rank {
                    queue.retain(|message| matches!(message.payload, LocalPayload::Copied(_)));
                }
            }
            drop(theirs);
            self.segment.ring(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::suite;

    suite::transport_tests!(local);
    suite::transport_tests!(local; an_unexpected_message_is_seen_and_stays,);

    mod with_rendezvous {
        use crate::transport::suite;
        suite::transport_tests!(super::super::rendezvous);
    }

    #[test]
    fn sleepers_are_woken_by_their_peers() {
        suite::sleepers_are_woken_by_their_peers(local);
        suite::sleepers_are_woken_by_their_peers(rendezvous);
    }

    #[test]
    fn a_lent_send_waits_for_its_receive() {
        let mut world = suite::TransportWorld::new(rendezvous(2));
        let (source, target) = (suite::pattern(100, 1), Owned::zeroed(100));
        let send = world.send(0, (1, 1), 0, source.region());
        world.round().unwrap();
        assert!(!world.is_done(send));
        let recv = world.recv(1, (0, 1), 0, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
    }

    #[test]
    fn who_took_a_lent_message_and_left_has_taken_it() {
        for _ in 0..300 {
            let (source, header) = (suite::pattern(8, 1), suite::header(0, 8));
            let [mut lender, mut taker] = <[Local; 2]>::try_from(rendezvous(2)).ok().unwrap();
            let stream = |peer| StreamId { peer, channel: 1 };
            lender
                .post_send(Post(stream(1), 0, header), source.region())
                .unwrap();
            let taking = std::thread::spawn(move || {
                let target = Owned::zeroed(8);
                let sink = Sink::Store(target.region());
                taker.post_recv(Post(stream(0), 0, header), sink).unwrap();
                taker.poll(Time(0), &mut Vec::new()).unwrap();
            });
            let mut done = Vec::new();
            while done.is_empty() {
                lender.poll(Time(0), &mut done).unwrap();
                std::thread::yield_now();
            }
            taking.join().unwrap();
        }
    }
}
