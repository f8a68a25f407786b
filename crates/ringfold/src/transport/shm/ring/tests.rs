//! Tests of messages lent from registered memory, which the receiver has mapped, and from ordinary
//! memory, which the receiver reads.

use std::sync::Arc;

use super::RingId;
use crate::error::Error;
use crate::memory::{BufferHandle, Owned, Region, Registry};
use crate::random::SplitMix64;
use crate::reduce::ReductionKernel;
use crate::transport::bell::Bells;
use crate::transport::shm::{LENT_BYTES_MIN, Segment, SegmentShape, Shm, reading};
use crate::transport::suite::{CHANNELS, bytes_of, header, pattern};
use crate::transport::{Post, Posted, Sink, StreamId, Ticket, Time, Transport};
use crate::types::{DType, Op};

/// Channel of the tests' messages.
const CHANNEL: usize = 1;

/// Ring of the tests' messages.
const RING: RingId = RingId {
    from: 0,
    to: 1,
    channel: CHANNEL,
};

/// Two ranks, the first of which has registered memory.
struct RankPair {
    segment: Arc<Segment>,
    ranks: [Shm; 2],
    done: [Vec<Ticket>; 2],
    memory: Owned,
    registration: u32,
}

impl RankPair {
    /// Creates a pair with `bytes` registered bytes, of which the second rank has mapped `mapped`.
    fn new(bytes: usize, mapped: usize) -> RankPair {
        let shape = SegmentShape::new(2, CHANNELS, 8 << 20);
        let (segment, _fd) = Segment::create(shape, Bells::default()).expect("shared memory");
        let memory = pattern(bytes, 1);
        let mut registry = Registry::new(1);
        let regions = vec![memory.region().part(0..mapped), Region::EMPTY];
        let registration = registry.add(regions);
        let mut ranks = [0, 1].map(|rank| Shm::new(segment.clone(), rank, false));
        ranks[1].set_peer_memory(registry.peer_memory());
        RankPair {
            segment,
            ranks,
            done: [Vec::new(), Vec::new()],
            memory,
            registration,
        }
    }

    /// Lends part of the memory; returns whether the send is complete.
    fn lend(&mut self, ticket: Ticket, index: u32, range: std::ops::Range<usize>) -> bool {
        let place = BufferHandle {
            registration: self.registration,
            offset: range.start as u64,
        };
        let payload = self.memory.region().part(range);
        let post = self.post(1, ticket, index, payload.bytes());
        let posted = self.ranks[0].post_lent(post, payload, place);
        self.note(0, ticket, posted.expect("a post"))
    }

    fn recv(&mut self, ticket: Ticket, index: u32, sink: Sink) -> Result<bool, Error> {
        let post = self.post(0, ticket, index, sink.bytes());
        let posted = self.ranks[1].post_recv(post, sink)?;
        Ok(self.note(1, ticket, posted))
    }

    fn post(&self, peer: usize, ticket: Ticket, index: u32, bytes: usize) -> Post {
        let channel = CHANNEL;
        Post(StreamId { peer, channel }, ticket, header(index, bytes))
    }

    fn note(&mut self, rank: usize, ticket: Ticket, posted: Posted) -> bool {
        if posted == Posted::Done {
            self.done[rank].push(ticket);
        }
        posted == Posted::Done
    }

    fn poll(&mut self, rank: usize) -> Result<(), Error> {
        self.ranks[rank].poll(Time(0), &mut self.done[rank])
    }

    /// Returns the number of cells that the receiver has emptied.
    fn cells(&self) -> u64 {
        super::flag::height(self.segment.ring_consumed(RING))
    }
}

#[test]
fn a_lent_message_takes_one_cell_and_its_bytes_pass_by_the_ring() {
    let bytes = (1 << 20) + 3;
    let mut pair = RankPair::new(2 * bytes, 2 * bytes);
    let target = Owned::zeroed(bytes);
    assert!(
        !pair.lend(1, 0, 64..64 + bytes),
        "a lent message must wait for its receiver"
    );
    pair.poll(0).expect("no error");
    assert!(pair.done[0].is_empty());
    let sink = Sink::Store(target.region().part(0..bytes));
    assert!(
        !pair.recv(1, 0, sink).expect("a receive"),
        "a long read must not delay this rank's own posts"
    );
    pair.poll(1).expect("no error");
    assert_eq!(pair.done[1], [1]);
    assert_eq!(pair.cells(), 1);
    pair.poll(0).expect("no error");
    assert_eq!(pair.done[0], [1]);
    let sent = pair.memory.region().part(64..64 + bytes);
    assert!(bytes_of(sent) == bytes_of(target.region().part(0..bytes)));
}

/// Each rank lends several messages before it reads any.
#[test]
fn lent_messages_are_announced_before_the_first_is_taken() {
    let bytes = LENT_BYTES_MIN;
    let mut pair = RankPair::new(3 * bytes, 3 * bytes);
    for index in 0..3 {
        let begin = index as usize * bytes;
        pair.lend(index.into(), index, begin..begin + bytes);
    }
    let heights: Vec<u64> = (0..3)
        .map(|cell| super::flag::height(pair.segment.cell_stamp(RING, cell)))
        .collect();
    assert_eq!(heights, [1, 2, 3]);
}

/// Whether this system lets processes read memory by the kernel; some sandboxes do not.
fn kernel_reads() -> bool {
    let reads = reading::is_readable(pattern(1, 1).region());
    println!("the kernel reads memory: {reads}");
    reads
}

#[test]
fn ordinary_memory_is_read_in_whole_pieces() {
    if !kernel_reads() {
        return;
    }
    for bytes in [1, 4097, (1 << 20) - 1, (2 << 20) + 4] {
        let mut pair = RankPair::new(0, 0);
        let can_read = [0, 1].map(|rank| pair.ranks[rank].can_read_peers());
        assert_eq!(
            can_read, [true; 2],
            "this system forbids reading one's own memory"
        );
        let (payload, target) = (pattern(bytes, 3), Owned::zeroed(bytes));
        let post = pair.post(1, 1, 0, bytes);
        let posted = pair.ranks[0].post_readable(post, payload.region());
        assert_eq!(posted.expect("a post"), Posted::Pending);
        pair.recv(1, 0, Sink::Store(target.region()))
            .expect("a receive");
        pair.poll(1).expect("no error");
        pair.poll(0).expect("no error");
        assert_eq!(pair.done, [[1], [1]]);
        assert!(
            bytes_of(payload.region()) == bytes_of(target.region()),
            "{bytes} bytes"
        );
    }
}

#[test]
fn memory_that_the_kernel_does_not_read_is_recognised() {
    let rank = &RankPair::new(0, 0).ranks[0];
    let memory = pattern(3 * 4096, 1);
    assert_eq!(rank.is_readable(memory.region()), kernel_reads());
    assert!(rank.is_readable(Region::EMPTY));
    assert!(!rank.is_readable(nowhere(4096)));
}

/// Returns memory that does not exist.
fn nowhere(bytes: usize) -> Region {
    // SAFETY: the kernel alone uses the address, and finds nothing there.
    unsafe { Region::new(std::ptr::without_provenance_mut(64), bytes) }
}

/// A process that ended, and whose number another process has, no longer has its token.
#[test]
fn memory_counts_only_if_its_owners_token_is_there() {
    if !kernel_reads() {
        return;
    }
    let mut pair = RankPair::new(0, 0);
    assert!(pair.ranks[1].can_read_peers());
    let (payload, target) = (pattern(4096, 3), Owned::zeroed(4096));
    let post = pair.post(1, 1, 0, 4096);
    pair.ranks[0]
        .post_readable(post, payload.region())
        .expect("a post");
    let token = pair.ranks[0].token();
    token.write(&[0; 8]);
    pair.recv(1, 0, Sink::Store(target.region()))
        .expect("a receive");
    pair.poll(1).expect("no error");
    assert!(pair.done[1].is_empty());
    let mut late = Shm::new(pair.segment.clone(), 1, false);
    assert!(!late.can_read_peers());
}

#[test]
fn memory_that_cannot_be_read_is_an_error_that_says_how_to_go_on() {
    if !kernel_reads() {
        return;
    }
    let mut pair = RankPair::new(0, 0);
    assert!(pair.ranks[1].can_read_peers());
    let target = Owned::zeroed(4096);
    let post = pair.post(1, 1, 0, 4096);
    pair.ranks[0]
        .post_readable(post, nowhere(4096))
        .expect("a post");
    pair.recv(1, 0, Sink::Store(target.region()))
        .expect("a receive");
    let error = pair.poll(1).expect_err("no memory").to_string();
    assert!(
        error.contains("rank 0") && error.contains("read_bytes_min=never"),
        "{error}"
    );
}

#[test]
fn a_lent_message_is_combined_where_it_lies() {
    let bytes = LENT_BYTES_MIN + 4;
    let mut pair = RankPair::new(bytes, bytes);
    let (with, into) = (pattern(bytes, 2), Owned::zeroed(bytes));
    let kernel = ReductionKernel::new(Op::Bxor, DType::U32).expect("a kernel");
    let sink = Sink::Reduce {
        with: with.region().part(0..bytes),
        into: into.region().part(0..bytes),
        kernel,
    };
    assert!(!pair.recv(1, 0, sink).expect("a receive"));
    pair.lend(1, 0, 0..bytes);
    pair.poll(1).expect("no error");
    assert_eq!(pair.done[1], [1]);
    let operands = [
        with.region().part(0..bytes),
        pair.memory.region().part(0..bytes),
    ];
    let expected = Owned::zeroed(bytes);
    kernel.fold(expected.region().part(0..bytes), &operands);
    let result = bytes_of(into.region().part(0..bytes));
    assert!(result == bytes_of(expected.region().part(0..bytes)));
}

/// Sends lent and copied messages at random, more than a ring has cells. The sender overwrites lent
/// memory as soon as permitted.
#[test]
fn lent_and_copied_messages_of_a_stream_keep_their_order() {
    const MESSAGES: u32 = 300;
    let room = 4 * LENT_BYTES_MIN;
    let seed = 20_261_123;
    println!("seed {seed}");
    let mut random = SplitMix64(seed);
    let mut pair = RankPair::new(room, room);
    let expected: Vec<Owned> = (0..MESSAGES)
        .map(|index| pattern(1 + random.index(room), index.into()))
        .collect();
    let targets: Vec<Owned> = expected
        .iter()
        .map(|payload| Owned::zeroed(payload.region().bytes()))
        .collect();
    let (mut sent, mut received, mut idle) = (0, 0, 0);
    while pair.done[1].len() < MESSAGES as usize {
        idle += 1;
        assert!(idle < 100_000, "hung: {sent} sent, {received} to receive");
        // One message at a time uses the memory, and only until it is complete.
        if sent < MESSAGES && pair.done[0].len() == sent as usize && random.index(2) == 0 {
            let payload = expected[sent as usize].region();
            let begin = random.index(room - payload.bytes() + 1);
            let place = pair.memory.region().part(begin..begin + payload.bytes());
            place.copy_from(payload);
            pair.lend(sent.into(), sent, begin..begin + payload.bytes());
            sent += 1;
        }
        if received < MESSAGES && random.index(2) == 0 {
            let sink = Sink::Store(targets[received as usize].region());
            pair.recv(received.into(), received, sink)
                .expect("no error");
            received += 1;
        }
        pair.poll(random.index(2)).expect("no error");
    }
    for (index, (payload, target)) in expected.iter().zip(&targets).enumerate() {
        assert!(
            bytes_of(payload.region()) == bytes_of(target.region()),
            "{index}"
        );
    }
}

#[test]
fn a_claim_of_memory_that_is_not_mapped_is_corrupt_and_names_the_sender() {
    let bytes = 2 * LENT_BYTES_MIN;
    let target = Owned::zeroed(bytes);
    let sink = Sink::Store(target.region().part(0..bytes));
    // The memory's end is not mapped, or the registration does not exist.
    let cut = RankPair::new(bytes, bytes - 1);
    let mut unknown = RankPair::new(bytes, bytes);
    unknown.registration += 1;
    for mut pair in [cut, unknown] {
        pair.lend(1, 0, 0..bytes);
        pair.recv(1, 0, sink).expect("a receive");
        let error = pair.poll(1).expect_err("a false claim");
        assert!(matches!(error, Error::Corrupt { peer: 0, .. }), "{error}");
    }
}

#[test]
fn what_a_rank_has_withdrawn_is_never_a_message() {
    let bytes = LENT_BYTES_MIN;
    let mut pair = RankPair::new(bytes, bytes);
    pair.lend(1, 0, 0..bytes);
    pair.ranks[0].withdraw();
    let target = Owned::zeroed(bytes);
    let sink = Sink::Store(target.region().part(0..bytes));
    assert!(!pair.recv(1, 0, sink).expect("no error"));
    pair.poll(1).expect("no error");
    assert!(pair.done[1].is_empty());
}

#[test]
fn short_messages_are_copied_and_do_not_wait() {
    let mut pair = RankPair::new(LENT_BYTES_MIN, LENT_BYTES_MIN);
    assert!(pair.lend(1, 0, 0..LENT_BYTES_MIN - 1));
}
