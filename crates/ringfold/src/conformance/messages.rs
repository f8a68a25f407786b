//! Tests of point-to-point messages over every transport: messages must match receives in any order
//! in which ranks run, send and receive.
//!
//! One thread drives the engines of all ranks in a random order from a printed seed. The bytes of a
//! message derive from its sender, receiver, tag and number, so that the buffer of a receive shows
//! which message it got.

mod limits;

use std::time::Duration;

use super::tests::{faulty, shm, sim, tcp};
use super::{Case, FRUITLESS_ROUNDS_MAX, rest};
use crate::Counts;
use crate::call::Way;
use crate::communicator::{Request, Target};
use crate::engine::p2p::KEPT_BYTES_MAX;
use crate::engine::{Engine, JobId};
use crate::error::{Error, Result};
use crate::memory::{Owned, Pool, Region};
use crate::random::SplitMix64;
use crate::simulate::Sending;
use crate::transport::local::{local, rendezvous};
use crate::transport::suite::{self, fault_injector::Faults};
use crate::transport::{Head, P2P_CHANNEL, StreamId, Time, Transport, rdma};
use crate::types::{Access, Algorithm, Collective, DType, Method};

const SEED: u64 = 20_261_121;

const ANY: usize = crate::engine::ANY_SOURCE;

/// The tag of receives from any source in the random runs; messages with lower tags are received
/// from their senders.
const ANY_TAG: u32 = 3;

/// Size of messages in bytes, by tag, the same at both ends: near the sizes of cells, of pieces,
/// and of all buffers of a transport.
const TAG_BYTES: [usize; 4] = [16, 70_000, 600_001, 9000];

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns faults that delay some messages, in an order that follows from `seed`.
fn delays(seed: u64) -> Faults {
    Faults {
        seed,
        delay: 300,
        delay_limit: Duration::from_micros(50),
        ..Faults::default()
    }
}

/// One send or receive of a rank.
struct MessageCall {
    is_send: bool,
    peer: usize,
    tag: u32,
    memory: Owned,
    id: Option<JobId>,
    /// The outcome, once done: the sender for a receive, `None` for a send.
    source: Option<Option<usize>>,
}

struct MessageWorld {
    engines: Vec<Engine>,
    /// The postings of each rank, in the order of submission.
    postings: Vec<Vec<MessageCall>>,
    random: SplitMix64,
    now: Time,
}

impl MessageWorld {
    fn new<T: Transport + 'static>(ranks: Vec<T>, seed: u64) -> MessageWorld {
        let world_size = ranks.len();
        let engine =
            |(rank, ranks)| Engine::new(Box::new(ranks), rank, world_size, Pool::default());
        MessageWorld {
            engines: ranks.into_iter().enumerate().map(engine).collect(),
            postings: (0..world_size).map(|_| Vec::new()).collect(),
            random: SplitMix64(seed),
            now: Time(0),
        }
    }

    /// Makes `rank` send `content`.
    fn send(&mut self, rank: usize, peer: usize, tag: u32, content: &[u8]) -> usize {
        let memory = Owned::zeroed(content.len());
        memory.region().write(content);
        self.plan(rank, true, peer, tag, memory);
        self.submit(rank, self.postings[rank].len() - 1)
    }

    /// Makes `rank` receive a message of this many bytes.
    fn recv(&mut self, rank: usize, peer: usize, tag: u32, bytes: usize) -> usize {
        self.plan(rank, false, peer, tag, Owned::zeroed(bytes));
        self.submit(rank, self.postings[rank].len() - 1)
    }

    fn plan(&mut self, rank: usize, is_send: bool, peer: usize, tag: u32, memory: Owned) {
        self.postings[rank].push(MessageCall {
            is_send,
            peer,
            tag,
            memory,
            id: None,
            source: None,
        });
    }

    fn submit(&mut self, rank: usize, index: usize) -> usize {
        let posting = &mut self.postings[rank][index];
        let (collective, input, output) = match (posting.is_send, posting.memory.region()) {
            (true, region) => (Collective::Send, region, Region::EMPTY),
            (false, region) => (Collective::Recv, Region::EMPTY, region),
        };
        let counts = Counts::Even(posting.memory.region().bytes() as u64);
        let mut request = Request::new(collective, DType::U8, counts, input, output);
        request.target = match posting.peer {
            ANY => Target::AnySource,
            peer => Target::Peer(peer),
        };
        request.tag = posting.tag;
        let way = Way {
            slice_bytes: 1 << 20,
            ..Case::new(collective, Method::Direct, Access::Messages, 0).way(false)
        };
        let job = request
            .check(rank, self.engines.len(), &way, TIMEOUT)
            .expect("a good request");
        posting.id = Some(self.engines[rank].submit(job).expect("room"));
        index
    }

    /// Makes one attempt at progress on `rank`.
    fn attempt(&mut self, rank: usize) -> Result<bool> {
        let progressed = self.engines[rank].progress(self.now)?;
        while let Some(finished) = self.engines[rank].take_finished() {
            let is_it = |posting: &&mut MessageCall| {
                posting.id == Some(finished.id) && posting.source.is_none()
            };
            let posting = self.postings[rank].iter_mut().find(is_it);
            posting.expect("a posting that was under way").source = Some(finished.source);
        }
        Ok(progressed)
    }

    /// Makes attempts on random ranks until `is_done`; panics if no rank makes progress.
    fn run_until(&mut self, is_done: impl Fn(&mut MessageWorld) -> bool) -> Result<()> {
        let mut fruitless = 0;
        while !is_done(self) {
            let rank = self.random.index(self.engines.len());
            fruitless = if self.attempt(rank)? {
                0
            } else {
                fruitless + 1
            };
            rest(fruitless);
            if fruitless > 16 * self.engines.len() as u32 {
                self.pass();
            }
            assert!(
                fruitless < FRUITLESS_ROUNDS_MAX,
                "no rank makes progress: {}",
                self.standing()
            );
        }
        Ok(())
    }

    /// Runs until a message of `peer` heads `rank`'s stream, however long the transport takes.
    fn run_until_one_has_come(&mut self, rank: usize, peer: usize) {
        let channel = P2P_CHANNEL;
        let stream = StreamId { peer, channel };
        self.engines[rank].transport().listen(stream, true).unwrap();
        let has_come = |world: &mut MessageWorld| {
            let transport = world.engines[rank].transport();
            transport.head(stream).unwrap() != Head::Nothing
        };
        self.run_until(has_come).unwrap();
    }

    fn pass(&mut self) {
        let events = self.engines.iter_mut();
        let next = events
            .filter_map(|engine| engine.transport().next_event())
            .min();
        self.now = next.map_or(self.now, |next| self.now.max(next));
    }

    fn standing(&mut self) -> String {
        let sites = self.engines.iter_mut().map(|engine| engine.running_site());
        sites.flatten().map(|site| format!("[{site}] ")).collect()
    }

    fn run(&mut self) -> Result<()> {
        self.run_until(|world| {
            let mut all = world.postings.iter().flatten();
            all.all(|posting| posting.source.is_some() || posting.id.is_none())
        })
    }

    fn is_done(&self, rank: usize, index: usize) -> bool {
        self.postings[rank][index].source.is_some()
    }

    fn bytes(&self, rank: usize, index: usize) -> Vec<u8> {
        let region = self.postings[rank][index].memory.region();
        let mut bytes = vec![0; region.bytes()];
        region.read(&mut bytes);
        bytes
    }

    fn source(&self, rank: usize, index: usize) -> Option<usize> {
        self.postings[rank][index].source.flatten()
    }
}

/// Returns the content of message `index` between two ranks with `tag`, different from all others.
fn content([from, to]: [usize; 2], tag: u32, index: usize) -> Vec<u8> {
    let name = from << 24 | to << 16 | (tag as usize) << 8 | index;
    let seed = SplitMix64(name as u64).index(usize::MAX);
    let byte = |place: usize| ((seed >> (place % 7 * 8)) ^ place.wrapping_mul(31)) as u8;
    (0..TAG_BYTES[tag as usize]).map(byte).collect()
}

/// Sends and receives in random order, with random pauses, also from each rank to itself. If a rank
/// receives one message at a time, it must keep earlier ones.
fn messages_find_their_receives(make: impl Fn(usize, u64) -> MessageWorld, runs: u64) {
    for run in 0..runs {
        let seed = SEED + run;
        println!("seed {seed}");
        let mut random = SplitMix64(seed);
        let ranks = 2 + random.index(3);
        let mut world = make(ranks, seed);
        for from in 0..ranks {
            for to in 0..ranks {
                for tag in 0..=ANY_TAG {
                    for index in 0..random.index(4) {
                        let memory = Owned::zeroed(TAG_BYTES[tag as usize]);
                        memory.region().write(&content([from, to], tag, index));
                        world.plan(from, true, to, tag, memory);
                        let source = if tag == ANY_TAG { ANY } else { from };
                        let room = Owned::zeroed(TAG_BYTES[tag as usize]);
                        world.plan(to, false, source, tag, room);
                    }
                }
            }
        }
        for postings in &mut world.postings {
            shuffle(postings, &mut random);
        }
        let window = 1 + random.index(6);
        submit_all(&mut world, window);
        world
            .run()
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for rank in 0..ranks {
            compare(&world, rank);
        }
    }
}

fn shuffle(postings: &mut [MessageCall], random: &mut SplitMix64) {
    for end in (1..postings.len()).rev() {
        postings.swap(end, random.index(end + 1));
    }
}

/// Submits all sends in their order and all receives in theirs, with attempts in between. No rank
/// has more than `window` receives in progress.
fn submit_all(world: &mut MessageWorld, window: usize) {
    let ranks = world.engines.len();
    let mut fruitless = 0;
    while world
        .postings
        .iter()
        .flatten()
        .any(|posting| posting.id.is_none())
    {
        let rank = world.random.index(ranks);
        let is_send = world.random.index(2) == 0;
        let postings = &world.postings[rank];
        let is_open = |posting: &&MessageCall| posting.id.is_some() && posting.source.is_none();
        let receives = postings.iter().filter(|posting| !posting.is_send);
        let is_full = receives.filter(is_open).count() >= window;
        let is_next = |posting: &MessageCall| posting.is_send == is_send && posting.id.is_none();
        let next = postings.iter().position(is_next);
        if let Some(next) = next.filter(|_| is_send || !is_full) {
            world.submit(rank, next);
        }
        let progressed = world.attempt(rank).expect("no error");
        fruitless = if progressed { 0 } else { fruitless + 1 };
        rest(fruitless);
        if fruitless > 16 * ranks as u32 {
            world.pass();
        }
        assert!(
            fruitless < FRUITLESS_ROUNDS_MAX,
            "no rank makes progress: {}",
            world.standing()
        );
    }
}

/// Checks that a rank's receives of each sender and tag got that sender's messages in order and
/// whole.
fn compare(world: &MessageWorld, rank: usize) {
    let mut counts = std::collections::HashMap::new();
    for (place, posting) in world.postings[rank].iter().enumerate() {
        if posting.is_send {
            assert_eq!(posting.source, Some(None));
            continue;
        }
        let source = world.source(rank, place).expect("a sender");
        assert!(posting.peer == ANY || posting.peer == source);
        let index = counts.entry((source, posting.tag)).or_insert(0);
        let of_pair =
            |other: &&MessageCall| other.is_send && (other.peer, other.tag) == (rank, posting.tag);
        let sent = world.postings[source].iter().filter(of_pair).nth(*index);
        let sent = sent.expect("as many as were received").memory.region();
        let mut due = vec![0; sent.bytes()];
        sent.read(&mut due);
        assert!(
            world.bytes(rank, place) == due,
            "rank {rank}, from {source}, tag {}, message {index}",
            posting.tag
        );
        *index += 1;
    }
}

/// Receives tags out of order; messages stay in their stream until a later message is received.
fn tags_choose_among_what_was_sent(make: impl Fn(usize, u64) -> MessageWorld) {
    let mut world = make(2, SEED);
    for tag in [7, 8, 9, 8] {
        world.send(0, 1, tag, &[tag as u8; 40]);
    }
    let last = world.recv(1, 0, 9, 40);
    world.run_until(|world| world.is_done(1, last)).unwrap();
    let others = [8, 7, 8].map(|tag| (tag, world.recv(1, 0, tag, 40)));
    world.run().unwrap();
    assert_eq!(world.bytes(1, last), [9; 40]);
    for (tag, place) in others {
        assert_eq!(world.bytes(1, place), [tag as u8; 40]);
        assert_eq!(world.source(1, place), Some(0));
    }
}

/// Exchanges messages larger than all transport buffers, both ways at once, and out of order.
fn large_messages_cross(make: impl Fn(usize, u64) -> MessageWorld) {
    const BYTES: usize = 3_000_000;
    let mut world = make(2, SEED);
    let mut places = Vec::new();
    for rank in [0, 1] {
        for tag in [1, 2, 3] {
            world.send(rank, 1 - rank, tag, &vec![tag as u8; BYTES]);
        }
        for tag in [3, 1, 2] {
            places.push((rank, world.recv(rank, 1 - rank, tag, BYTES), tag as u8));
        }
    }
    world.run().unwrap();
    for (rank, place, tag) in places {
        assert!(world.bytes(rank, place).iter().all(|byte| *byte == tag));
    }
}

/// However much one peer sends, a receive from any source soon gets another peer's message.
fn no_source_starves(make: impl Fn(usize, u64) -> MessageWorld) {
    const SENT: usize = 60;
    let mut world = make(4, SEED);
    for _ in 0..SENT {
        world.send(1, 0, 5, &[1; 24]);
        world.send(3, 0, 5, &[3; 24]);
    }
    world.send(2, 0, 5, &[2; 24]);
    (1..4).for_each(|peer| world.run_until_one_has_come(0, peer));
    let mut sources = Vec::new();
    for _ in 0..2 * SENT + 1 {
        let place = world.recv(0, ANY, 5, 24);
        world.run_until(|world| world.is_done(0, place)).unwrap();
        let source = world.source(0, place).unwrap();
        assert_eq!(world.bytes(0, place), [source as u8; 24]);
        sources.push(source);
    }
    let patience = sources.iter().position(|source| *source == 2);
    assert!(patience.unwrap() < 6, "{sources:?}");
}

/// A message with another type or count than its receive is a mismatch; the receive's buffer is not
/// written.
fn another_length_is_a_mismatch(make: impl Fn(usize, u64) -> MessageWorld) {
    for kept in [false, true] {
        let mut world = make(2, SEED);
        world.send(0, 1, 7, &[1; 40]);
        world.send(0, 1, 8, &[2; 40]);
        if kept {
            let behind = world.recv(1, 0, 8, 40);
            world.run_until(|world| world.is_done(1, behind)).unwrap();
        }
        let place = world.recv(1, 0, 7, 32);
        let error = world.run().unwrap_err();
        let text = error.to_string();
        assert_eq!(error.class(), "Mismatch", "{text}");
        assert!(text.contains("recv of 32 uint8 tag 7"), "{text}");
        assert!(
            text.contains("rank 0 in #1 send of 40 uint8 tag 7"),
            "{text}"
        );
        assert_eq!(world.bytes(1, place), [0; 32]);
    }
}

/// A receive from any source may fail once no rank is left that could send, and not before.
fn any_source_waits_for_the_ranks_that_are_left(make: impl Fn(usize, u64) -> MessageWorld) {
    let mut world = make(3, SEED);
    let place = world.recv(0, ANY, 1, 16);
    for _ in 0..50 {
        assert!(!world.is_done(0, place));
        world.attempt(0).unwrap();
    }
    assert_eq!(world.engines[0].waiting_for(), [1, 2]);
    world.engines.truncate(2);
    for _ in 0..50 {
        world.attempt(0).unwrap();
    }
    world.send(1, 0, 1, &[1; 16]);
    world.run().unwrap();
    assert_eq!(world.source(0, place), Some(1));
    let place = world.recv(0, ANY, 1, 16);
    world.engines.truncate(1);
    world.postings.truncate(1);
    for _ in 0..50 {
        world.attempt(0).unwrap();
    }
    // Until the program waits, it may still send to itself.
    let gone = |world: &mut MessageWorld, waits| world.engines[0].missed(waits, |_, rank| rank > 0);
    assert_eq!(gone(&mut world, false), None);
    assert_eq!(gone(&mut world, true), Some(1));
    world.send(0, 0, 1, &[2; 16]);
    world.run().unwrap();
    assert_eq!(world.source(0, place), Some(0));
}

macro_rules! over_transports {
    ($($name:ident: $make:expr, $runs:expr;)*) => { $(
        mod $name {
            use super::*;

            fn make(ranks: usize, seed: u64) -> MessageWorld {
                let make: fn(usize, u64) -> MessageWorld = $make;
                make(ranks, seed)
            }

            #[test]
            fn messages_find_their_receives_in_any_order() {
                messages_find_their_receives(make, $runs);
            }

            #[test]
            fn tags_choose() {
                tags_choose_among_what_was_sent(make);
            }

            #[test]
            fn large_messages_may_cross() {
                large_messages_cross(make);
            }

            #[test]
            fn no_rank_starves() {
                no_source_starves(make);
            }

            #[test]
            fn lengths_are_compared() {
                another_length_is_a_mismatch(make);
            }

            #[test]
            fn any_source_ends_with_the_last_peer() {
                any_source_waits_for_the_ranks_that_are_left(make);
            }
        }
    )* };
}

over_transports! {
    over_local: |n, seed| MessageWorld::new(local(n), seed), 12;
    over_rendezvous: |n, seed| MessageWorld::new(rendezvous(n), seed), 12;
    over_shm: |n, seed| MessageWorld::new(shm(n), seed), 12;
    over_tcp: |n, seed| MessageWorld::new(tcp(n), seed), 10;
    over_rdma: |n, seed| MessageWorld::new(rdma::tests::ranks(n), seed), 10;
    over_sim_eager: |n, seed| MessageWorld::new(sim(n, Sending::Eager), seed), 12;
    over_sim_rendezvous: |n, seed| MessageWorld::new(sim(n, Sending::Rendezvous), seed), 12;
    over_delays: |n, seed| MessageWorld::new(faulty(n, delays(seed)), seed), 12;
}
