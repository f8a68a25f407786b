//! A transport on which reductions take longer in real time, for experiments on real processes.
//!
//! # Model
//!
//! Data is combined at once, and its completion is reported later. Each reduction takes a fixed
//! time, and some take longer ([`Slow`]), as if a device performed them in parallel while this
//! rank's thread continues. Reductions are counted anew in each call, in the order in which their
//! data arrived. Transfers are not delayed, and neither is published memory: use an algorithm over
//! messages.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::delay_spec::Slow;
use crate::error::Result;
use crate::memory::{BufferHandle, Hold, PeerMemory, Region};
use crate::random::SplitMix64;
use crate::transport::{
    EngineWork, Head, Header, Post, Posted, Sink, StreamId, Term, Ticket, Time, Transport, Waker,
    Windows, WorkKind,
};

/// The injected delays of reductions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Injection {
    /// The duration of every reduction.
    pub reduce: Duration,
    /// Reductions that take longer.
    pub slow: Vec<Slow>,
    /// The seed of all random choices, together with the rank.
    pub seed: u64,
}

/// A transport with slow reductions.
pub struct DelayInjector {
    inner: Box<dyn Transport>,
    rank: usize,
    injection: Injection,
    random: SplitMix64,
    /// The call in which reductions are counted, and their number.
    sequence: u64,
    reductions: u32,
    /// Receives that combine, until the inner transport has completed them.
    receives: BTreeSet<Ticket>,
    /// Reductions that are done and not reported yet.
    held: BTreeSet<(Instant, Ticket)>,
    inner_done: Vec<Ticket>,
}

impl DelayInjector {
    /// Wraps `inner`, the transport of `rank`.
    pub fn new(inner: Box<dyn Transport>, rank: usize, injection: Injection) -> DelayInjector {
        DelayInjector {
            inner,
            rank,
            random: SplitMix64::stream(injection.seed, rank as u64),
            injection,
            sequence: 0,
            reductions: 0,
            receives: BTreeSet::new(),
            held: BTreeSet::new(),
            inner_done: Vec::new(),
        }
    }

    fn note_call(&mut self, header: &Header) {
        if self.sequence != header.call.sequence {
            (self.sequence, self.reductions) = (header.call.sequence, 0);
        }
    }

    /// Delays the completion of a reduction that begins now.
    fn delay(&mut self, ticket: Ticket) {
        self.reductions += 1;
        let (rank, step, random) = (self.rank, self.reductions, &mut self.random);
        let slow = self.injection.slow.iter();
        let delay_ps: u64 = slow.map(|slow| slow.delay_ps(rank, step, random)).sum();
        let takes = self.injection.reduce + Duration::from_nanos(delay_ps / 1000);
        self.held.insert((Instant::now() + takes, ticket));
    }

    fn release(&mut self, done: &mut Vec<Ticket>) {
        if self.held.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((due, ticket)) = self.held.first().copied()
            && due <= now
        {
            self.held.pop_first();
            done.push(ticket);
        }
    }
}

impl Transport for DelayInjector {
    fn post_send(&mut self, post: Post, payload: Region) -> Result<Posted> {
        self.note_call(&post.2);
        self.inner.post_send(post, payload)
    }

    fn post_lent(&mut self, post: Post, payload: Region, place: BufferHandle) -> Result<Posted> {
        self.note_call(&post.2);
        self.inner.post_lent(post, payload, place)
    }

    fn is_readable(&self, memory: Region) -> bool {
        self.inner.is_readable(memory)
    }

    fn post_readable(&mut self, post: Post, payload: Region) -> Result<Posted> {
        self.note_call(&post.2);
        self.inner.post_readable(post, payload)
    }

    fn lent_bytes_min(&self) -> Option<usize> {
        self.inner.lent_bytes_min()
    }

    fn set_peer_memory(&mut self, memory: PeerMemory) {
        self.inner.set_peer_memory(memory);
    }

    fn can_read_peers(&mut self) -> bool {
        self.inner.can_read_peers()
    }

    fn hold(&mut self, memory: Region, term: Term) -> Option<Hold> {
        self.inner.hold(memory, term)
    }

    fn post_recv(&mut self, Post(stream, ticket, header): Post, sink: Sink) -> Result<Posted> {
        self.note_call(&header);
        let combines = matches!(sink, Sink::Reduce { .. });
        let posted = self.inner.post_recv(Post(stream, ticket, header), sink)?;
        match posted {
            Posted::Done if combines => self.delay(ticket),
            Posted::Pending if combines => {
                self.receives.insert(ticket);
            }
            other => return Ok(other),
        }
        Ok(Posted::Pending)
    }

    fn post_work(&mut self, ticket: Ticket, work: EngineWork) -> Result<Posted> {
        if work.kind != WorkKind::Reduce {
            return self.inner.post_work(ticket, work);
        }
        self.delay(ticket);
        Ok(Posted::Pending)
    }

    fn listen(&mut self, stream: StreamId, is_wanted: bool) -> Result<()> {
        self.inner.listen(stream, is_wanted)
    }

    fn head(&mut self, stream: StreamId) -> Result<Head> {
        self.inner.head(stream)
    }

    fn unexpected(&mut self, found: &mut Vec<(StreamId, Header)>) -> Result<()> {
        self.inner.unexpected(found)
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        self.inner_done.clear();
        self.inner.poll(now, &mut self.inner_done)?;
        for place in 0..self.inner_done.len() {
            let ticket = self.inner_done[place];
            if self.receives.remove(&ticket) {
                self.delay(ticket);
            } else {
                done.push(ticket);
            }
        }
        self.release(done);
        Ok(())
    }

    fn next_event(&self) -> Option<Time> {
        self.inner.next_event()
    }

    fn windows(&self) -> Option<Windows> {
        self.inner.windows()
    }

    fn is_departure_final(&self, peer: usize) -> bool {
        self.inner.is_departure_final(peer)
    }

    fn block(&mut self, timeout: Duration) -> Result<()> {
        let due = self.held.first().map(|(due, _)| *due);
        let left = due.map_or(timeout, |due| due.saturating_duration_since(Instant::now()));
        self.inner.block(timeout.min(left))
    }

    fn withdraw(&mut self) {
        self.inner.withdraw();
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;
    use crate::reduce::ReductionKernel;
    use crate::transport::local::local;
    use crate::transport::suite;
    use crate::types::{DType, Op};

    fn delayed(world_size: usize) -> Vec<DelayInjector> {
        let ranks = local(world_size).into_iter().enumerate();
        let wrap = |(rank, inner)| DelayInjector::new(Box::new(inner), rank, Injection::default());
        ranks.map(wrap).collect()
    }

    suite::transport_tests!(delayed);

    #[test]
    fn a_reduction_is_reported_when_its_time_is_over() {
        let reduce = Duration::from_millis(30);
        let injection = Injection {
            reduce,
            slow: vec!["rank=1,step=2,delay=30ms".parse().unwrap()],
            ..Injection::default()
        };
        let mut ranks = local(2).into_iter();
        let inner = ranks.next_back().expect("rank 1");
        let mut rank = DelayInjector::new(Box::new(inner), 1, injection);
        let work = EngineWork {
            kind: WorkKind::Reduce,
            dtype: DType::F32,
            bytes: 4,
        };
        for (ticket, least) in [(1, reduce), (2, 2 * reduce)] {
            let begin = Instant::now();
            assert_eq!(rank.post_work(ticket, work).unwrap(), Posted::Pending);
            let mut done = Vec::new();
            while done.is_empty() {
                rank.poll(Time(0), &mut done).unwrap();
                rank.block(Duration::from_millis(1)).unwrap();
            }
            assert_eq!(done, [ticket]);
            assert!(begin.elapsed() >= least);
        }
    }

    #[test]
    fn what_is_received_and_combined_takes_as_long() {
        let reduce = Duration::from_millis(20);
        let mut ranks: Vec<DelayInjector> = delayed(2);
        ranks[1].injection.reduce = reduce;
        let (one, sum) = (Owned::zeroed(64), Owned::zeroed(64));
        let header = suite::header(0, 64);
        let stream = |peer| StreamId { peer, channel: 1 };
        let kernel = ReductionKernel::new(Op::Sum, DType::F32).unwrap();
        let sink = Sink::Reduce {
            with: sum.region(),
            into: sum.region(),
            kernel,
        };
        let begin = Instant::now();
        let payload: Region = one.region();
        ranks[0]
            .post_send(Post(stream(1), 7, header), payload)
            .unwrap();
        let posted = ranks[1]
            .post_recv(Post(stream(0), 8, header), sink)
            .unwrap();
        assert_eq!(posted, Posted::Pending);
        let mut done = Vec::new();
        while done.is_empty() {
            ranks[0].poll(Time(0), &mut Vec::new()).unwrap();
            ranks[1].poll(Time(0), &mut done).unwrap();
        }
        assert_eq!(done, [8]);
        assert!(begin.elapsed() >= reduce);
    }
}
