//! One suite for every transport: what the contract promises, told as tests.
//!
//! A transport's tests call [`transport_tests`] with a function from a world size to its ranks. The suite drives all ranks
//! on one thread; where time is simulated it moves to the next event as soon as nobody gets on.

use std::time::{Duration, Instant};

use super::{Head, Header, Posted, Sink, Stream, Ticket, Time, Transport};
use crate::call::Call;
use crate::error::{Error, Result};
use crate::memory::{Owned, Region};
use crate::reduce::Kernel;
use crate::types::{Algorithm, Collective, DType, Op, Protocol};

/// How long a test may take before it counts as hung.
const WATCHDOG: Duration = Duration::from_secs(30);

/// Lengths around every border that a transport may have: none, lines, pages, pieces.
const SIZES: [usize; 14] = [
    0,
    1,
    16,
    17,
    63,
    64,
    65,
    4095,
    4096,
    65_537,
    131_071,
    131_072,
    131_073,
    (1 << 20) + 3,
];

/// Makes the suite's tests for the ranks that `$make` (a function of the world size) gives.
macro_rules! transport_tests {
    ($make:expr) => {
        suite::transport_tests!($make;
            messages_of_every_odd_size_arrive,
            a_receive_may_be_posted_before_its_send,
            a_send_may_be_posted_before_its_receive,
            many_messages_of_a_stream_keep_their_order,
            streams_do_not_wait_for_each_other,
            everyone_sends_to_everyone_at_once,
            a_reduced_message_equals_the_whole_fold,
            a_different_call_is_a_mismatch_that_names_both,
            a_different_protocol_is_a_mismatch,
            a_wrong_slice_is_corrupt,
            a_peer_that_left_fails_its_receives,
            what_was_sent_before_leaving_arrives,
            a_head_is_seen_before_its_receive_is_posted,
            heads_of_messages_in_a_row_are_seen_one_after_the_other,
            a_head_leaves_other_streams_alone,
            the_end_of_a_stream_is_seen_behind_its_last_message,
            a_different_receive_than_the_head_is_a_mismatch,
            a_waker_ends_a_block,
        );
    };
    ($make:expr; $($test:ident,)*) => {
        $(#[test] fn $test() { suite::$test($make) })*
    };
}
pub(crate) use transport_tests;

/// All ranks of a transport, driven by one thread.
pub struct World<T> {
    pub ranks: Vec<T>,
    pub now: Time,
    done: Vec<Vec<Ticket>>,
    next_ticket: Ticket,
    /// The error of a post, which a transport may give at once or by its next poll.
    refused: Option<Error>,
}

/// A message under way: the rank that posted it, and its ticket.
#[derive(Clone, Copy, Debug)]
pub struct Posting(usize, Ticket);

impl<T: Transport> World<T> {
    pub fn new(ranks: Vec<T>) -> World<T> {
        let done = ranks.iter().map(|_| Vec::new()).collect();
        World {
            ranks,
            now: Time(0),
            done,
            next_ticket: 1,
            refused: None,
        }
    }

    /// Posts message `index` of the usual call from rank `from` on a stream to rank `to`.
    pub fn send(
        &mut self,
        from: usize,
        to: (usize, usize),
        index: u32,
        payload: Region,
    ) -> Posting {
        self.send_with(from, to, header(index, payload.bytes()), payload)
    }

    pub fn send_with(
        &mut self,
        from: usize,
        (peer, channel): (usize, usize),
        header: Header,
        payload: Region,
    ) -> Posting {
        let stream = Stream { peer, channel };
        let ticket = self.ticket();
        let posted = self.ranks[from].post_send(stream, ticket, header, payload);
        self.note(from, ticket, posted)
    }

    /// Posts the receive of message `index` of the usual call at rank `at` on a stream from rank `from`.
    pub fn recv(&mut self, at: usize, from: (usize, usize), index: u32, sink: Sink) -> Posting {
        self.recv_with(at, from, header(index, sink.bytes()), sink)
    }

    pub fn recv_with(
        &mut self,
        at: usize,
        (peer, channel): (usize, usize),
        header: Header,
        sink: Sink,
    ) -> Posting {
        let stream = Stream { peer, channel };
        let ticket = self.ticket();
        let posted = self.ranks[at].post_recv(stream, ticket, header, sink);
        self.note(at, ticket, posted)
    }

    pub fn is_done(&self, posting: Posting) -> bool {
        self.done[posting.0].contains(&posting.1)
    }

    /// Polls every rank once; gives the first error, or whether anything was completed.
    pub fn round(&mut self) -> Result<bool> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        let mut any = false;
        for (rank, done) in self.ranks.iter_mut().zip(&mut self.done) {
            let before = done.len();
            rank.poll(self.now, done)?;
            any |= done.len() > before;
        }
        Ok(any)
    }

    /// Polls until all of `postings` are done, or somebody fails.
    pub fn run(&mut self, postings: &[Posting]) -> Result<()> {
        let begin = Instant::now();
        while !postings.iter().all(|posting| self.is_done(*posting)) {
            assert!(begin.elapsed() < WATCHDOG, "hung; missing of {postings:?}");
            if !self.round()? {
                self.pass();
            }
        }
        for done in &self.done {
            let mut unique = done.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), done.len(), "a ticket was reported twice");
        }
        Ok(())
    }

    /// Lets time pass when nobody gets on.
    fn pass(&mut self) {
        let next = self.ranks.iter().filter_map(Transport::next_event).min();
        match next {
            Some(next) => self.now = self.now.max(next),
            None => self.ranks[0].block(Duration::from_millis(1)).unwrap(),
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    fn note(&mut self, rank: usize, ticket: Ticket, posted: Result<Posted>) -> Posting {
        match posted {
            Ok(Posted::Done) => self.done[rank].push(ticket),
            Ok(Posted::Pending) => {}
            Err(error) => self.refused = Some(error),
        }
        Posting(rank, ticket)
    }
}

/// A call that differs from others by its count.
pub fn call(count: u64) -> Call {
    Call {
        collective: Collective::AllReduce,
        dtype: DType::F32,
        op: Op::Sum.wire(),
        algorithm: Algorithm::Ring,
        protocol: Protocol::Simple,
        root: 0,
        count,
        lists: 0,
        sequence: 5,
        cut: 0,
    }
}

/// The header of a message of the usual call.
pub fn header(index: u32, bytes: usize) -> Header {
    Header {
        call: call(7),
        slice: 0,
        index,
        bytes: u32::try_from(bytes).expect("a test message"),
    }
}

/// The same of a call in which every other message goes by `ll`.
fn in_turn(index: u32, bytes: usize) -> Header {
    let mut header = header(index, bytes);
    if index % 2 == 1 {
        header.call.protocol = Protocol::Ll;
    }
    header
}

/// `bytes` bytes that look random and depend on `seed`.
pub fn pattern(bytes: usize, seed: u64) -> Owned {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let content: Vec<u8> = (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect();
    let owned = Owned::zeroed(bytes);
    owned.region().write(&content);
    owned
}

/// A copy of what is in a region.
pub fn bytes_of(region: Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes()];
    region.read(&mut bytes);
    bytes
}

pub fn messages_of_every_odd_size_arrive<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    let by_both_protocols = SIZES.into_iter().flat_map(|bytes| [bytes; 2]);
    for (index, bytes) in by_both_protocols.enumerate() {
        let (source, target) = (pattern(bytes, index as u64), Owned::zeroed(bytes));
        let header = in_turn(index as u32, bytes);
        let send = world.send_with(0, (1, 0), header, source.region());
        let recv = world.recv_with(1, (0, 0), header, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "{bytes} bytes came wrong"
        );
    }
}

pub fn a_receive_may_be_posted_before_its_send<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    let (source, target) = (pattern(300_000, 1), Owned::zeroed(300_000));
    let recv = world.recv(1, (0, 1), 0, Sink::Store(target.region()));
    for _ in 0..3 {
        world.round().unwrap();
    }
    assert!(!world.is_done(recv));
    let send = world.send(0, (1, 1), 0, source.region());
    world.run(&[send, recv]).unwrap();
    assert!(bytes_of(source.region()) == bytes_of(target.region()));
}

pub fn a_send_may_be_posted_before_its_receive<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    let (source, target) = (pattern(3_000_000, 1), Owned::zeroed(3_000_000));
    let send = world.send(0, (1, 1), 0, source.region());
    for _ in 0..3 {
        world.round().unwrap();
    }
    let recv = world.recv(1, (0, 1), 0, Sink::Store(target.region()));
    world.run(&[send, recv]).unwrap();
    assert!(bytes_of(source.region()) == bytes_of(target.region()));
}

pub fn many_messages_of_a_stream_keep_their_order<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    let sources: Vec<_> = (0..300)
        .map(|i| pattern((i * 37) % 2000, i as u64))
        .collect();
    let targets: Vec<_> = (0..300).map(|i| Owned::zeroed((i * 37) % 2000)).collect();
    let mut postings = Vec::new();
    for (index, (source, target)) in sources.iter().zip(&targets).enumerate() {
        postings.push(world.send(0, (1, 0), index as u32, source.region()));
        postings.push(world.recv(1, (0, 0), index as u32, Sink::Store(target.region())));
    }
    world.run(&postings).unwrap();
    for (index, (source, target)) in sources.iter().zip(&targets).enumerate() {
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "message {index} came wrong"
        );
    }
}

/// The number of channels that every transport under test offers.
pub const CHANNELS: usize = 3;

pub fn streams_do_not_wait_for_each_other<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    let (source, target) = (pattern(5000, 1), Owned::zeroed(5000));
    let stuck = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    for channel in 1..CHANNELS {
        let target = Owned::zeroed(5000);
        let send = world.send(0, (1, channel), 9, source.region());
        let recv = world.recv(1, (0, channel), 9, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
        assert!(bytes_of(source.region()) == bytes_of(target.region()));
    }
    assert!(!world.is_done(stuck));
    let send = world.send(0, (1, 0), 0, source.region());
    world.run(&[send, stuck]).unwrap();
}

pub fn everyone_sends_to_everyone_at_once<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    const BYTES: usize = 700_001;
    let mut world = World::new(make(4));
    let sources: Vec<_> = (0..4).map(|rank| pattern(BYTES, rank)).collect();
    let mut targets = Vec::new();
    let mut postings = Vec::new();
    for (rank, source) in sources.iter().enumerate() {
        for peer in (0..4).filter(|peer| *peer != rank) {
            let target = Owned::zeroed(BYTES);
            postings.push(world.send(rank, (peer, 2), 3, source.region()));
            postings.push(world.recv(rank, (peer, 2), 3, Sink::Store(target.region())));
            targets.push((peer, target));
        }
    }
    world.run(&postings).unwrap();
    for (peer, target) in &targets {
        assert!(bytes_of(sources[*peer].region()) == bytes_of(target.region()));
    }
}

pub fn a_reduced_message_equals_the_whole_fold<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    let kernel = Kernel::new(Op::Sum, DType::I32).unwrap();
    let sizes = [0, 4, 16, 4092, 131_076, (1 << 20) + 4];
    let by_both_protocols = sizes.into_iter().flat_map(|bytes| [bytes; 2]);
    for (index, bytes) in by_both_protocols.enumerate() {
        let (source, mine) = (pattern(bytes, 1), pattern(bytes, 2));
        let (into, whole) = (Owned::zeroed(bytes), Owned::zeroed(bytes));
        let sink = Sink::Reduce {
            with: mine.region(),
            into: into.region(),
            kernel,
        };
        let header = in_turn(index as u32, bytes);
        let send = world.send_with(0, (1, 0), header, source.region());
        let recv = world.recv_with(1, (0, 0), header, sink);
        world.run(&[send, recv]).unwrap();
        kernel.fold(whole.region(), &[mine.region(), source.region()]);
        assert!(
            bytes_of(into.region()) == bytes_of(whole.region()),
            "{bytes} bytes were reduced wrong"
        );
    }
}

pub fn a_different_call_is_a_mismatch_that_names_both<T: Transport>(
    make: impl Fn(usize) -> Vec<T>,
) {
    let mut world = World::new(make(2));
    let (source, target) = (pattern(64, 1), Owned::zeroed(64));
    let theirs = Header {
        call: call(1234),
        ..header(0, 64)
    };
    let send = world.send_with(0, (1, 0), theirs, source.region());
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    match world.run(&[send, recv]) {
        Err(Error::Mismatch {
            ranks: [1, 0],
            calls: [mine, other],
            ..
        }) => {
            assert!(mine.contains("of 7 "), "not this rank's call: {mine}");
            assert!(other.contains("of 1234 "), "not the peer's call: {other}");
        }
        other => panic!("not a mismatch of ranks 1 and 0: {other:?}"),
    }
    assert_eq!(bytes_of(target.region()), [0; 64], "delivered all the same");
}

/// Else one of them would look for the payload where the other has not put it.
pub fn a_different_protocol_is_a_mismatch<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    for (sent, due) in [(0, 1), (1, 0)] {
        let mut world = World::new(make(2));
        let (source, target) = (pattern(8, 1), Owned::zeroed(8));
        let by = |index| Header {
            index: 0,
            ..in_turn(index, 8)
        };
        let send = world.send_with(0, (1, 0), by(sent), source.region());
        let recv = world.recv_with(1, (0, 0), by(due), Sink::Store(target.region()));
        let refused = world.run(&[send, recv]);
        assert!(
            matches!(refused, Err(Error::Mismatch { .. })),
            "{refused:?}"
        );
        assert_eq!(bytes_of(target.region()), [0; 8], "delivered all the same");
    }
}

pub fn a_wrong_slice_is_corrupt<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    let (source, target) = (pattern(64, 1), Owned::zeroed(64));
    let theirs = Header {
        slice: 3,
        ..header(0, 64)
    };
    let send = world.send_with(0, (1, 0), theirs, source.region());
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    let error = world.run(&[send, recv]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { peer: 0, .. }), "{error}");
    assert_eq!(bytes_of(target.region()), [0; 64], "delivered all the same");
}

pub fn a_peer_that_left_fails_its_receives<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    let target = Owned::zeroed(64);
    let recv = world.recv(0, (1, 1), 0, Sink::Store(target.region()));
    world.round().unwrap();
    drop(world.ranks.pop());
    let error = world.run(&[recv]).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 1, .. }),
        "{error}"
    );
}

pub fn what_was_sent_before_leaving_arrives<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    let (source, target) = (pattern(5000, 1), Owned::zeroed(5000));
    let first = world.recv(0, (1, 1), 0, Sink::Store(target.region()));
    let send = world.send(1, (0, 1), 0, source.region());
    world.run(&[send]).unwrap();
    drop(world.ranks.pop());
    world.run(&[first]).unwrap();
    assert!(bytes_of(source.region()) == bytes_of(target.region()));
    let second = world.recv(0, (1, 1), 1, Sink::Store(target.region()));
    let error = world.run(&[second]).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 1, .. }),
        "{error}"
    );
}

/// The head of `at`'s stream from a peer, once there is one.
fn awaited_head<T: Transport>(world: &mut World<T>, at: usize, from: (usize, usize)) -> Head {
    let (peer, channel) = from;
    let stream = Stream { peer, channel };
    let begin = Instant::now();
    loop {
        world.round().unwrap();
        match world.ranks[at].head(stream).unwrap() {
            Head::Nothing => {}
            found => return found,
        }
        assert!(begin.elapsed() < WATCHDOG, "no head on {stream:?}");
        world.pass();
    }
}

fn listen<T: Transport>(world: &mut World<T>, at: usize, (peer, channel): (usize, usize)) {
    let stream = Stream { peer, channel };
    world.ranks[at].listen(stream, true).unwrap();
    assert_eq!(world.ranks[at].head(stream).unwrap(), Head::Nothing);
}

pub fn a_head_is_seen_before_its_receive_is_posted<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(2));
    listen(&mut world, 1, (0, 0));
    for (index, bytes) in SIZES.into_iter().enumerate() {
        let (source, target) = (pattern(bytes, index as u64), Owned::zeroed(bytes));
        let send = world.send(0, (1, 0), index as u32, source.region());
        let due = header(index as u32, bytes);
        // It stays where it is however often it is looked at.
        for _ in 0..2 {
            let head = awaited_head(&mut world, 1, (0, 0));
            assert_eq!(head, Head::Message(due), "{bytes} bytes");
        }
        let recv = world.recv(1, (0, 0), index as u32, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "{bytes} bytes came wrong"
        );
    }
}

pub fn heads_of_messages_in_a_row_are_seen_one_after_the_other<T: Transport>(
    make: impl Fn(usize) -> Vec<T>,
) {
    let bytes = |index: usize| [0, 10, 9000, 1, 300_000, 8192, 40][index % 7];
    let mut world = World::new(make(2));
    listen(&mut world, 1, (0, 2));
    let sources: Vec<_> = (0..50)
        .map(|index| pattern(bytes(index), index as u64))
        .collect();
    let sends: Vec<_> = (0..50)
        .map(|index| world.send(0, (1, 2), index as u32, sources[index].region()))
        .collect();
    for (index, source) in sources.iter().enumerate() {
        // Who does not listen for a while misses nothing.
        let stream = Stream {
            peer: 0,
            channel: 2,
        };
        world.ranks[1].listen(stream, index % 3 > 0).unwrap();
        world.round().unwrap();
        world.ranks[1].listen(stream, true).unwrap();
        let head = awaited_head(&mut world, 1, (0, 2));
        assert_eq!(head, Head::Message(header(index as u32, bytes(index))));
        let target = Owned::zeroed(bytes(index));
        world.ranks[1].listen(stream, index % 2 == 0).unwrap();
        let recv = world.recv(1, (0, 2), index as u32, Sink::Store(target.region()));
        world.run(&[recv]).unwrap();
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "message {index}"
        );
    }
    world.run(&sends).unwrap();
}

pub fn a_head_leaves_other_streams_alone<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut world = World::new(make(3));
    let source = pattern(100_000, 1);
    for peer in [0, 2] {
        listen(&mut world, 1, (peer, 0));
    }
    let waits = world.send(0, (1, 0), 0, source.region());
    for (from, to) in [(0, 1), (1, 0), (2, 1)] {
        let target = Owned::zeroed(100_000);
        let send = world.send(from, (to, 1), 7, source.region());
        let recv = world.recv(to, (from, 1), 7, Sink::Store(target.region()));
        world.run(&[send, recv]).unwrap();
        assert!(bytes_of(source.region()) == bytes_of(target.region()));
    }
    let head = awaited_head(&mut world, 1, (0, 0));
    assert_eq!(head, Head::Message(header(0, 100_000)));
    let stream = Stream {
        peer: 2,
        channel: 0,
    };
    assert_eq!(world.ranks[1].head(stream).unwrap(), Head::Nothing);
    let target = Owned::zeroed(100_000);
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    world.run(&[waits, recv]).unwrap();
}

pub fn the_end_of_a_stream_is_seen_behind_its_last_message<T: Transport>(
    make: impl Fn(usize) -> Vec<T>,
) {
    let mut world = World::new(make(2));
    let (source, target) = (pattern(5000, 1), Owned::zeroed(5000));
    listen(&mut world, 0, (1, 1));
    // A receive takes the first one; the second waits for nobody.
    let first = world.recv(0, (1, 1), 0, Sink::Store(target.region()));
    let send = world.send(1, (0, 1), 0, source.region());
    world.run(&[send, first]).unwrap();
    drop(world.ranks.pop());
    let head = awaited_head(&mut world, 0, (1, 1));
    assert!(matches!(head, Head::End(_)), "{head:?}");
    let second = world.recv(0, (1, 1), 1, Sink::Store(target.region()));
    let error = world.run(&[second]).unwrap_err();
    assert!(
        matches!(error, Error::PeerFailed { rank: 1, .. }),
        "{error}"
    );
}

pub fn a_different_receive_than_the_head_is_a_mismatch<T: Transport>(
    make: impl Fn(usize) -> Vec<T>,
) {
    let mut world = World::new(make(2));
    listen(&mut world, 1, (0, 0));
    let (source, target) = (pattern(64, 1), Owned::zeroed(64));
    let theirs = Header {
        call: call(1234),
        ..header(0, 64)
    };
    let send = world.send_with(0, (1, 0), theirs, source.region());
    assert_eq!(awaited_head(&mut world, 1, (0, 0)), Head::Message(theirs));
    let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
    let error = world.run(&[send, recv]).unwrap_err();
    assert_eq!(error.class(), "Mismatch", "{error}");
    assert_eq!(bytes_of(target.region()), [0; 64], "delivered all the same");
}

pub fn a_waker_ends_a_block<T: Transport>(make: impl Fn(usize) -> Vec<T>) {
    let mut ranks = make(2);
    let begin = Instant::now();
    // A wake before the block counts.
    ranks[0].waker()();
    ranks[0].block(WATCHDOG * 2).unwrap();
    // So does one during it, wherever the other thread is by then.
    let waker = ranks[0].waker();
    let other = std::thread::spawn(move || waker());
    ranks[0].block(WATCHDOG * 2).unwrap();
    other.join().unwrap();
    assert!(begin.elapsed() < WATCHDOG, "slept through a wake");
}

/// For transports that really block: ranks on threads of their own, each asleep until its transport wakes it. A lost wake
/// shows as a sleep that only the timeout ended.
pub fn sleepers_are_woken_by_their_peers<T: Transport + 'static>(make: impl Fn(usize) -> Vec<T>) {
    const LAPS: u32 = 100;
    let threads: Vec<_> = make(3)
        .into_iter()
        .enumerate()
        .map(|(rank, transport)| std::thread::spawn(move || run_laps(rank, transport, LAPS)))
        .collect();
    for thread in threads {
        thread.join().expect("a rank that saw all of its messages");
    }
}

/// Passes messages of changing length around a ring of three, one after the other.
fn run_laps<T: Transport>(rank: usize, mut transport: T, laps: u32) {
    let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
    let mut done = Vec::new();
    for lap in 0..laps {
        let bytes = [1, 5000, 0, 300_000][lap as usize % 4];
        let (source, target) = (pattern(bytes, lap.into()), Owned::zeroed(bytes));
        let header = header(lap, bytes);
        let to = Stream {
            peer: next,
            channel: 1,
        };
        let from = Stream {
            peer: previous,
            channel: 1,
        };
        let sink = Sink::Store(target.region());
        let recv = transport
            .post_recv(from, 0, header, sink)
            .expect("a receive");
        let send = transport
            .post_send(to, 1, header, source.region())
            .expect("a send");
        let mut due = [recv, send]
            .iter()
            .filter(|posted| **posted == Posted::Pending)
            .count();
        while due > 0 {
            done.clear();
            transport.poll(Time(0), &mut done).expect("living peers");
            due -= done.len();
            if done.is_empty() {
                let begin = Instant::now();
                transport.block(WATCHDOG).expect("a block");
                assert!(
                    begin.elapsed() < WATCHDOG,
                    "rank {rank} slept through lap {lap}"
                );
            }
        }
        assert!(
            bytes_of(source.region()) == bytes_of(target.region()),
            "lap {lap}"
        );
    }
}
