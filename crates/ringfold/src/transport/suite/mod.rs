//! One test suite for every transport: the promises of the interface, as tests.
//!
//! A transport's tests call [`transport_tests`] with a function from a world size to its ranks. The
//! suite drives all ranks on one thread; simulated time moves to the next event as soon as no rank
//! makes progress. [`local`] is a transport for tests alone.

pub(crate) mod altered;
mod blocking;
pub(crate) mod fault_injector;
mod heads;
pub mod local;
mod messages;

pub use blocking::*;
pub use heads::*;
pub use messages::*;

use std::time::{Duration, Instant};

use super::{Header, Post, Posted, Sink, StreamId, Term, Ticket, Time, Transport};
use crate::call::Call;
use crate::error::{Error, Result};
use crate::memory::{Hold, Owned, Region};
use crate::random::SplitMix64;
use crate::types::{Algorithm, Collective, DType, Op};

/// Time after which a test counts as hung.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Lengths around every boundary that a transport may have: none, lines, pages, pieces.
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

/// Creates the suite's tests for the ranks that `$make` (a function of the world size) returns.
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
pub struct TransportWorld<T> {
    pub ranks: Vec<T>,
    pub now: Time,
    done: Vec<Vec<Ticket>>,
    next_ticket: Ticket,
    /// The error of a post, which a transport may return at once or by its next poll.
    refused: Option<Error>,
    /// Holds on the messages' memory; each message is a call of its own.
    held: Vec<Hold>,
}

/// A message in progress: the rank that posted it, and its ticket.
#[derive(Clone, Copy, Debug)]
pub struct RankTicket(usize, Ticket);

impl<T: Transport> TransportWorld<T> {
    pub fn new(ranks: Vec<T>) -> TransportWorld<T> {
        let done = ranks.iter().map(|_| Vec::new()).collect();
        TransportWorld {
            ranks,
            now: Time(0),
            done,
            next_ticket: 1,
            refused: None,
            held: Vec::new(),
        }
    }

    /// Posts message `index` of the usual call from rank `from` on a stream to rank `to`.
    pub fn send(
        &mut self,
        from: usize,
        to: (usize, usize),
        index: u32,
        payload: Region,
    ) -> RankTicket {
        self.send_with(from, to, header(index, payload.bytes()), payload)
    }

    pub fn send_with(
        &mut self,
        from: usize,
        (peer, channel): (usize, usize),
        header: Header,
        payload: Region,
    ) -> RankTicket {
        let stream = StreamId { peer, channel };
        let ticket = self.ticket();
        self.held
            .extend(self.ranks[from].hold(payload, Term::Input));
        let posted = self.ranks[from].post_send(Post(stream, ticket, header), payload);
        self.note(from, ticket, posted)
    }

    /// Posts the receive of message `index` of the usual call at rank `at` on a stream from rank
    /// `from`.
    pub fn recv(&mut self, at: usize, from: (usize, usize), index: u32, sink: Sink) -> RankTicket {
        self.recv_with(at, from, header(index, sink.bytes()), sink)
    }

    pub fn recv_with(
        &mut self,
        at: usize,
        (peer, channel): (usize, usize),
        header: Header,
        sink: Sink,
    ) -> RankTicket {
        let stream = StreamId { peer, channel };
        let ticket = self.ticket();
        if let Some(landing) = sink.landing() {
            self.held.extend(self.ranks[at].hold(landing, Term::Output));
        }
        let posted = self.ranks[at].post_recv(Post(stream, ticket, header), sink);
        self.note(at, ticket, posted)
    }

    pub fn is_done(&self, posting: RankTicket) -> bool {
        self.done[posting.0].contains(&posting.1)
    }

    /// Polls every rank once; returns the first error, or whether anything was completed.
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

    /// Polls until all of `postings` are done, or a rank fails.
    pub fn run(&mut self, postings: &[RankTicket]) -> Result<()> {
        let begin = Instant::now();
        while !postings.iter().all(|posting| self.is_done(*posting)) {
            assert!(
                begin.elapsed() < WATCHDOG,
                "hung; some of {postings:?} incomplete"
            );
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

    /// Lets time pass when no rank makes progress.
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

    fn note(&mut self, rank: usize, ticket: Ticket, posted: Result<Posted>) -> RankTicket {
        match posted {
            Ok(Posted::Done) => self.done[rank].push(ticket),
            Ok(Posted::Pending) => {}
            Err(error) => self.refused = Some(error),
        }
        RankTicket(rank, ticket)
    }
}

/// Returns a call that differs from others by its count.
pub fn call(count: u64) -> Call {
    Call {
        collective: Collective::AllReduce,
        dtype: DType::F32,
        op: Op::Sum.wire(),
        algorithm: Algorithm::Ring,
        access: crate::Access::Messages,
        assignment: crate::Assignment::Owner,
        is_inline: false,
        qualifier: crate::call::Qualifier::None,
        count,
        lists: 0,
        sequence: 5,
        cut: 0,
    }
}

/// Returns the header of a message of the usual call.
pub fn header(index: u32, bytes: usize) -> Header {
    Header {
        call: call(7),
        slice: 0,
        index,
        bytes: u32::try_from(bytes).expect("a test message"),
    }
}

/// Returns `bytes` bytes that look random and depend on `seed`.
pub fn pattern(bytes: usize, seed: u64) -> Owned {
    let mut random = SplitMix64(seed);
    let content: Vec<u8> = (0..bytes).map(|_| random.next_u64() as u8).collect();
    let owned = Owned::zeroed(bytes);
    owned.region().write(&content);
    owned
}

/// Returns a copy of a region's content.
pub fn bytes_of(region: Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes()];
    region.read(&mut bytes);
    bytes
}

/// Number of channels that every transport under test offers.
pub const CHANNELS: usize = 3;
