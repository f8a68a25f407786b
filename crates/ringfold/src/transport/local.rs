//! Ranks as threads of one process, for tests.
//!
//! Every rank has a mailbox: a mutex, a condition variable, and one queue a stream. A send puts a message into the
//! peer's mailbox; the peer takes it out when its receive is posted. With [`local`] a send copies its payload and is
//! complete at once; with [`rendezvous`] it lends its payload and is complete when the peer has absorbed it, so that a
//! schedule which needs buffering shows itself by hanging.
//!
//! Published memory ([`Windows`]) is plain heap memory with its flags under the mailbox's mutex.
//!
//! Clarity comes before speed here: the data path locks and allocates.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{
    ATTACHED_WORDS, HEADER_BYTES, Head, Header, Posted, Sink, Stream, Ticket, Time, Transport,
    Waker, Windows, mismatch,
};
use crate::call::Call;
use crate::error::{Error, Result};
use crate::memory::{Owned, Region};

/// Generations that can be open at once.
const SLOTS: usize = 4;

/// Bytes of a slot: small, so that tests with modest buffers go around all slots.
const SLOT_BYTES: usize = 64 << 10;

/// The ranks of a world whose sends are complete at once.
pub fn local(world_size: usize) -> Vec<Local> {
    ranks(world_size, Sending::Eager)
}

/// The ranks of a world whose sends are complete only when the receive has taken place.
pub fn rendezvous(world_size: usize) -> Vec<Local> {
    ranks(world_size, Sending::Rendezvous)
}

fn ranks(world_size: usize, sending: Sending) -> Vec<Local> {
    let boxes: Arc<[Mailbox]> = (0..world_size).map(|_| Mailbox::new()).collect();
    (0..world_size)
        .map(|rank| Local {
            rank,
            sending,
            boxes: boxes.clone(),
            receives: BTreeMap::new(),
            failure: None,
        })
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Eager,
    Rendezvous,
}

/// One rank of a world of threads.
pub struct Local {
    rank: usize,
    sending: Sending,
    boxes: Arc<[Mailbox]>,
    /// What was posted, by peer and channel; no empty queues.
    receives: BTreeMap<(usize, usize), VecDeque<Receive>>,
    /// Found where no error could be returned; `poll` returns it.
    failure: Option<Error>,
}

struct Receive {
    ticket: Ticket,
    header: Header,
    sink: Sink,
}

/// What one rank has for the others to see and change.
struct Mailbox {
    contents: Mutex<Contents>,
    changed: Condvar,
    /// The slots it publishes.
    window: Owned,
}

#[derive(Default)]
struct Contents {
    /// Messages to this rank, by sender and channel.
    messages: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// Lent sends of this rank that were absorbed.
    sent: Vec<Ticket>,
    /// Lent sends of this rank that were not absorbed yet, with their receivers.
    lent: Vec<(Ticket, usize)>,
    /// Something happened since the last `block` ended.
    news: bool,
    /// This rank was dropped.
    left: bool,
    /// What this rank has published, by slot.
    published: [Option<Published>; SLOTS],
    /// What it has attached to its slots.
    attached: [[u64; ATTACHED_WORDS]; SLOTS],
    /// Generations that this rank has finished.
    finished: u64,
    /// Rank 0's: the blocks that were claimed and completed, by slot.
    desks: [Desk; SLOTS],
}

/// The blocks of one generation.
#[derive(Clone, Default)]
struct Desk {
    generation: u64,
    claimed: u32,
    /// By home, where there is one.
    claimed_of: Vec<u32>,
    complete: u32,
    /// Who has claimed a block and not completed it.
    claimants: Vec<usize>,
}

impl Desk {
    /// The desk, emptied if it is still an earlier generation's.
    fn of(&mut self, generation: u64) -> &mut Desk {
        if self.generation != generation {
            *self = Desk {
                generation,
                ..Desk::default()
            };
        }
        self
    }
}

struct Message {
    header: [u8; HEADER_BYTES],
    payload: Payload,
}

enum Payload {
    Copied(Owned),
    /// Memory of the sender, who waits, and who takes the message back before it leaves.
    Lent(Region, Ticket),
}

#[derive(Clone, Copy)]
struct Published {
    generation: u64,
    phase: u8,
    call: Call,
}

impl Mailbox {
    fn new() -> Mailbox {
        Mailbox {
            contents: Mutex::default(),
            changed: Condvar::new(),
            window: Owned::zeroed(SLOTS * SLOT_BYTES),
        }
    }

    /// A test's panic on one thread must not hide behind a poisoned lock on another.
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the contents and tells the owner.
    fn change<T>(&self, change: impl FnOnce(&mut Contents) -> T) -> T {
        let mut contents = self.lock();
        let result = change(&mut contents);
        contents.news = true;
        self.changed.notify_all();
        result
    }
}

impl Local {
    /// Takes what has come for the receives of one stream.
    fn progress(&mut self, key: (usize, usize), done: &mut Vec<Ticket>) -> Result<()> {
        let Some(queue) = self.receives.get_mut(&key) else {
            return Ok(());
        };
        let (peer, _) = key;
        while let Some(receive) = queue.front() {
            // Before the mailbox is looked at: what a peer sent before it left is still delivered.
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
                Payload::Copied(payload) => {
                    receive.sink.absorb(0, payload.region());
                    None
                }
                // Under the lock, so that the lender cannot leave meanwhile.
                Payload::Lent(payload, ticket) => {
                    receive.sink.absorb(0, payload);
                    Some(ticket)
                }
            };
            drop(contents);
            if let Some(ticket) = lent {
                self.boxes[peer].change(|theirs| {
                    theirs.lent.retain(|(lent, _)| *lent != ticket);
                    theirs.sent.push(ticket);
                });
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

/// What is said of a peer that was dropped.
const LEFT: &str = "left";

#[cold]
fn has_left(rank: usize) -> Error {
    Error::PeerFailed {
        rank,
        reason: LEFT.into(),
        site: None,
    }
}

impl Transport for Local {
    fn post_send(
        &mut self,
        stream: Stream,
        ticket: Ticket,
        header: Header,
        payload: Region,
    ) -> Result<Posted> {
        assert_eq!(header.bytes as usize, payload.bytes());
        assert_ne!(stream.peer, self.rank, "a message to oneself");
        let lent = self.sending == Sending::Rendezvous;
        if lent {
            self.boxes[self.rank]
                .lock()
                .lent
                .push((ticket, stream.peer));
        }
        let payload = if lent {
            Payload::Lent(payload, ticket)
        } else {
            Payload::Copied(Owned::copy_of(payload))
        };
        let message = Message {
            header: header.encode(0),
            payload,
        };
        let rank = self.rank;
        self.boxes[stream.peer].change(|theirs| {
            if theirs.left {
                return Err(has_left(stream.peer));
            }
            let key = (rank, stream.channel);
            theirs.messages.entry(key).or_default().push_back(message);
            Ok(())
        })?;
        Ok(if lent { Posted::Pending } else { Posted::Done })
    }

    fn post_recv(
        &mut self,
        stream: Stream,
        ticket: Ticket,
        header: Header,
        sink: Sink,
    ) -> Result<Posted> {
        assert_eq!(header.bytes as usize, sink.bytes());
        assert_ne!(stream.peer, self.rank, "a message from oneself");
        let queue = self
            .receives
            .entry((stream.peer, stream.channel))
            .or_default();
        queue.push_back(Receive {
            ticket,
            header,
            sink,
        });
        Ok(Posted::Pending)
    }

    /// The condition variable tells of every message.
    fn listen(&mut self, _stream: Stream, _is_wanted: bool) -> Result<()> {
        Ok(())
    }

    fn head(&mut self, stream: Stream) -> Result<Head> {
        let key = (stream.peer, stream.channel);
        assert!(!self.receives.contains_key(&key), "a receive is posted");
        // Before the mailbox is looked at: what a peer sent before it left is still delivered.
        let left = self.boxes[stream.peer].lock().left;
        let contents = self.boxes[self.rank].lock();
        match contents.messages.get(&key).and_then(VecDeque::front) {
            Some(message) => Header::claimed(&message.header, stream.peer).map(Head::Message),
            None if left => Ok(Head::End(LEFT)),
            None => Ok(Head::Nothing),
        }
    }

    fn poll(&mut self, _now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        if let Some(failure) = self.failure.clone() {
            return Err(failure);
        }
        let streams: Vec<_> = self.receives.keys().copied().collect();
        for key in streams {
            self.progress(key, done)?;
        }
        // Before our box is looked at: what a peer took before it left it has said there.
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

    fn windows(&mut self) -> Option<&mut dyn Windows> {
        Some(self)
    }

    fn block(&mut self, timeout: Duration) -> Result<()> {
        let mailbox = &self.boxes[self.rank];
        let deadline = Instant::now() + timeout;
        let mut contents = mailbox.lock();
        while !contents.news {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            contents = mailbox
                .changed
                .wait_timeout(contents, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        contents.news = false;
        Ok(())
    }

    fn is_departure_final(&self, _peer: usize) -> bool {
        true
    }

    fn waker(&self) -> Waker {
        let (boxes, rank) = (self.boxes.clone(), self.rank);
        Arc::new(move || boxes[rank].change(|_| ()))
    }
}

impl Windows for Local {
    fn slots(&self) -> usize {
        SLOTS
    }

    fn slot_bytes(&self) -> usize {
        SLOT_BYTES
    }

    fn is_free(&mut self, generation: u64) -> bool {
        for peer in self.others() {
            let theirs = self.boxes[peer].lock();
            if theirs.finished + SLOTS as u64 <= generation {
                if theirs.left {
                    self.failure = Some(has_left(peer));
                }
                return false;
            }
        }
        true
    }

    fn attach(&mut self, generation: u64, words: &[u64]) {
        assert!(self.is_free(generation), "attached to a slot in use");
        self.boxes[self.rank].lock().attached[slot(generation)][..words.len()]
            .copy_from_slice(words);
    }

    fn attached(&self, peer: usize, generation: u64, word: usize) -> u64 {
        self.boxes[peer].lock().attached[slot(generation)][word]
    }

    fn target(&mut self, generation: u64, range: std::ops::Range<usize>) -> Region {
        assert!(self.is_free(generation), "written into a slot in use");
        assert!(range.end <= SLOT_BYTES);
        let start = slot(generation) * SLOT_BYTES;
        let window = self.boxes[self.rank].window.region();
        window.part(start + range.start..start + range.end)
    }

    fn publish(&mut self, generation: u64, phase: u8, call: &Call) -> Result<()> {
        assert!(self.is_free(generation), "published in a slot in use");
        let mailbox = &self.boxes[self.rank];
        let slot = slot(generation);
        mailbox.lock().published[slot] = Some(Published {
            generation,
            phase,
            call: *call,
        });
        for peer in self.others() {
            self.boxes[peer].change(|_| ());
        }
        Ok(())
    }

    fn has_reached(
        &mut self,
        peer: usize,
        generation: u64,
        phase: u8,
        call: &Call,
    ) -> Result<bool> {
        let theirs = self.boxes[peer].lock();
        match theirs.published[slot(generation)] {
            Some(published) if published.generation == generation => {
                if published.call != *call {
                    return Err(mismatch([self.rank, peer], [call, &published.call]));
                }
                if published.phase >= phase {
                    return Ok(true);
                }
            }
            _ => {}
        }
        if theirs.left {
            return Err(has_left(peer));
        }
        Ok(false)
    }

    fn entered(&mut self, peer: usize, generation: u64) -> Option<Call> {
        let theirs = self.boxes[peer].lock();
        let published = theirs.published[slot(generation)];
        published
            .filter(|published| published.generation == generation)
            .map(|published| published.call)
    }

    fn claim(&mut self, generation: u64, blocks: u32) -> Option<u32> {
        let mut contents = self.boxes[0].lock();
        let desk = contents.desks[slot(generation)].of(generation);
        if desk.claimed >= blocks {
            return None;
        }
        desk.claimants.push(self.rank);
        desk.claimed += 1;
        Some(desk.claimed - 1)
    }

    fn claim_of(&mut self, home: usize, generation: u64, blocks: u32) -> Option<u32> {
        let mut contents = self.boxes[0].lock();
        let desk = contents.desks[slot(generation)].of(generation);
        desk.claimed_of.resize(self.boxes.len(), 0);
        if desk.claimed_of[home] >= blocks {
            return None;
        }
        desk.claimants.push(self.rank);
        desk.claimed_of[home] += 1;
        Some(desk.claimed_of[home] - 1)
    }

    fn complete(&mut self, generation: u64, blocks: u32) {
        let mut contents = self.boxes[0].lock();
        let desk = contents.desks[slot(generation)].of(generation);
        desk.complete += 1;
        desk.claimants.retain(|rank| *rank != self.rank);
        let is_last = desk.complete == blocks;
        drop(contents);
        if is_last {
            for peer in self.others() {
                self.boxes[peer].change(|_| ());
            }
        }
    }

    fn is_complete(&self, generation: u64, blocks: u32) -> bool {
        let mut contents = self.boxes[0].lock();
        contents.desks[slot(generation)].of(generation).complete == blocks
    }

    fn claimants(&self, generation: u64) -> Vec<usize> {
        let mut contents = self.boxes[0].lock();
        contents.desks[slot(generation)]
            .of(generation)
            .claimants
            .clone()
    }

    fn view(&self, peer: usize, generation: u64, range: Range<usize>) -> Region {
        let start = slot(generation) * SLOT_BYTES;
        let whole = self.boxes[peer].window.region();
        whole.part(start..start + SLOT_BYTES).part(range)
    }

    fn finish(&mut self, generation: u64) {
        let mut mine = self.boxes[self.rank].lock();
        assert_eq!(mine.finished, generation, "generations finish in order");
        mine.finished = generation + 1;
        drop(mine);
        for peer in self.others() {
            self.boxes[peer].change(|_| ());
        }
    }
}

/// The slot that a generation uses.
fn slot(generation: u64) -> usize {
    (generation % SLOTS as u64) as usize
}

impl Drop for Local {
    fn drop(&mut self) {
        self.boxes[self.rank].change(|mine| mine.left = true);
        for peer in self.others() {
            self.boxes[peer].change(|theirs| {
                for ((sender, _), queue) in &mut theirs.messages {
                    if *sender == self.rank {
                        queue.retain(|message| matches!(message.payload, Payload::Copied(_)));
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::{self, call};
    use super::*;

    suite::transport_tests!(local);

    mod with_rendezvous {
        use super::super::super::suite;
        suite::transport_tests!(super::super::rendezvous);
    }

    #[test]
    fn sleepers_are_woken_by_their_peers() {
        suite::sleepers_are_woken_by_their_peers(local);
        suite::sleepers_are_woken_by_their_peers(rendezvous);
    }

    #[test]
    fn a_lent_send_waits_for_its_receive() {
        let mut world = suite::World::new(rendezvous(2));
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
            let stream = |peer| Stream { peer, channel: 1 };
            lender
                .post_send(stream(1), 0, header, source.region())
                .unwrap();
            let taking = std::thread::spawn(move || {
                let target = Owned::zeroed(8);
                let sink = Sink::Store(target.region());
                taker.post_recv(stream(0), 0, header, sink).unwrap();
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

    #[test]
    fn slots_are_reused_only_when_all_peers_have_finished() {
        let mut ranks = local(3);
        let call = call(0);
        let data = suite::pattern(64, 3);
        for generation in 0..SLOTS as u64 {
            assert!(ranks[0].is_free(generation));
            ranks[0].publish(generation, 1, &call).unwrap();
            ranks[0].write(generation, 0, data.region());
        }
        assert!(!ranks[0].is_free(SLOTS as u64));
        assert!(ranks[1].has_reached(0, 0, 1, &call).unwrap());
        assert!(!ranks[1].has_reached(0, 0, 2, &call).unwrap());
        let seen = Owned::copy_of(ranks[1].view(0, 0, 0..64));
        assert_eq!(
            suite::bytes_of(seen.region()),
            suite::bytes_of(data.region())
        );
        ranks[1].finish(0);
        assert!(!ranks[0].is_free(SLOTS as u64));
        ranks[2].finish(0);
        assert!(ranks[0].is_free(SLOTS as u64));
    }

    #[test]
    fn published_memory_of_another_call_is_a_mismatch() {
        let mut ranks = local(2);
        ranks[0].publish(0, 1, &call(0)).unwrap();
        let error = ranks[1].has_reached(0, 0, 1, &call(9)).unwrap_err();
        assert_eq!(error.class(), "Mismatch");
    }

    #[test]
    fn a_publisher_that_left_is_a_failed_peer() {
        let mut ranks = local(2);
        drop(ranks.pop());
        let error = ranks[0].has_reached(1, 0, 1, &call(0)).unwrap_err();
        assert_eq!(error.class(), "PeerFailed");
    }
}
