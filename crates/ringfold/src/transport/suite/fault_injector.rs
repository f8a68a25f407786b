//! A transport that damages messages at random, reproducibly for each seed.
//!
//! # Model
//!
//! The injector wraps another transport; all ranks of a world are wrapped. Every message travels in
//! an envelope, so that damage is found even if the inner transport checks nothing:
//!
//! ```text
//! offset 0: header, 40 bytes   40: payload   40 + its length: digest of both, u64
//! ```
//!
//! For each posted message, at most one fault is drawn. The property under test: a call that
//! succeeds has the correct result, and any other call ends with an error, by the deadline at the
//! latest. Nothing hangs or panics.
//!
//! The injector offers no published memory, because that bypasses messages. It copies and allocates
//! on the data path, unlike other transports.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Owned, Region};
use crate::random::SplitMix64;
use crate::reduce::Digest;
use crate::transport::{
    EngineWork, HEADER_BYTES, Head, Header, Post, Posted, Sink, StreamId, Ticket, Time, Transport,
    Waker,
};

/// Bytes that the envelope adds to a message.
const ENVELOPE_BYTES: usize = HEADER_BYTES + CHECKSUM_BYTES;

const CHECKSUM_BYTES: usize = 8;

/// Frequencies and limits of faults. By default, no faults are injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The seed of all random choices, different for each rank.
    pub seed: u64,
    /// Messages per mille that are delayed; later messages of their stream wait behind them.
    pub delay: u16,
    /// Messages per mille that are not sent, though the send is reported complete.
    pub drop: u16,
    /// Messages per mille that are sent twice.
    pub duplicate: u16,
    /// Messages per mille whose end is missing; their headers state the shorter length.
    pub truncate: u16,
    /// Messages per mille with one bit flipped, anywhere in the envelope.
    pub flip: u16,
    /// Messages per mille after which sending stops: such a message and all later ones are dropped.
    pub half_close: u16,
    /// Maximum delay of a message.
    pub delay_limit: Duration,
    /// Maximum number of faults, not counting delays.
    pub fault_limit: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InjectedFault {
    Delay,
    Drop,
    Duplicate,
    Truncate,
    Flip,
    HalfClose,
}

/// A transport that adds faults to another one.
pub struct FaultInjector<T> {
    // Dropped before the buffers that `inner` may still access.
    inner: T,
    rank: usize,
    faults: Faults,
    random: SplitMix64,
    faults_made: u32,
    half_closed: bool,
    now: Time,
    next_ticket: Ticket,
    /// Operations posted on the inner transport, by the inner transport's tickets.
    under_way: BTreeMap<Ticket, InjectedOperation>,
    /// Delayed messages and the messages behind them, by peer and channel; no queue is empty.
    held: BTreeMap<(usize, usize), VecDeque<HeldMessage>>,
    /// Delayed sends that were complete as soon as they were released.
    released: Vec<Ticket>,
    /// Buffer for the inner transport's tickets.
    inner_done: Vec<Ticket>,
}

enum InjectedOperation {
    Send {
        /// `None` for the second copy of a duplicated message.
        ticket: Option<Ticket>,
        _envelope: Owned,
    },
    Recv {
        ticket: Ticket,
        peer: usize,
        header: Header,
        sink: Sink,
        envelope: Owned,
    },
    Work(Ticket),
}

struct HeldMessage {
    release: Time,
    ticket: Ticket,
    header: Header,
    envelope: Owned,
}

impl<T: Transport> FaultInjector<T> {
    /// Adds faults to `inner`, the transport of `rank`.
    pub fn new(inner: T, rank: usize, faults: Faults) -> FaultInjector<T> {
        FaultInjector {
            inner,
            rank,
            faults,
            random: SplitMix64(faults.seed),
            faults_made: 0,
            half_closed: false,
            now: Time::default(),
            next_ticket: 0,
            under_way: BTreeMap::new(),
            held: BTreeMap::new(),
            released: Vec::new(),
            inner_done: Vec::new(),
        }
    }

    /// Draws the fault of the next message, if any.
    fn draw(&mut self) -> Option<InjectedFault> {
        let faults = self.faults;
        let mut left = self.random.below(1000) as u16;
        let odds = [
            (faults.delay, InjectedFault::Delay),
            (faults.drop, InjectedFault::Drop),
            (faults.duplicate, InjectedFault::Duplicate),
            (faults.truncate, InjectedFault::Truncate),
            (faults.flip, InjectedFault::Flip),
            (faults.half_close, InjectedFault::HalfClose),
        ];
        let fault = odds.into_iter().find_map(|(per_mille, fault)| {
            let hit = left < per_mille;
            left = left.saturating_sub(per_mille);
            hit.then_some(fault)
        })?;
        if fault != InjectedFault::Delay {
            if self.faults_made == faults.fault_limit {
                return None;
            }
            self.faults_made += 1;
        }
        Some(fault)
    }

    /// Posts an envelope on the inner transport.
    fn pass_on(
        &mut self,
        stream: StreamId,
        ticket: Option<Ticket>,
        mut header: Header,
        envelope: Owned,
    ) -> Result<Posted> {
        let region = envelope.region();
        header.bytes = envelope_bytes(region.bytes())?;
        let inside = self.ticket();
        let posted = self.inner.post_send(Post(stream, inside, header), region)?;
        if posted == Posted::Pending {
            let send = InjectedOperation::Send {
                ticket,
                _envelope: envelope,
            };
            self.under_way.insert(inside, send);
        }
        Ok(posted)
    }

    /// Passes on the delayed messages that are due.
    fn release(&mut self) -> Result<()> {
        let now = self.now;
        let streams: Vec<_> = self.held.keys().copied().collect();
        for (peer, channel) in streams {
            let Some(queue) = self.held.get_mut(&(peer, channel)) else {
                continue;
            };
            let due = queue.iter().take_while(|held| held.release <= now).count();
            let due: Vec<_> = queue.drain(..due).collect();
            if queue.is_empty() {
                self.held.remove(&(peer, channel));
            }
            for held in due {
                let stream = StreamId { peer, channel };
                let posted = self.pass_on(stream, Some(held.ticket), held.header, held.envelope)?;
                if posted == Posted::Done {
                    self.released.push(held.ticket);
                }
            }
        }
        Ok(())
    }

    fn next_release(&self) -> Option<Time> {
        self.held
            .values()
            .filter_map(|queue| Some(queue.front()?.release))
            .min()
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket
    }
}

impl<T: Transport> Transport for FaultInjector<T> {
    fn post_send(&mut self, Post(stream, ticket, header): Post, payload: Region) -> Result<Posted> {
        let fault = self.draw();
        self.half_closed |= fault == Some(InjectedFault::HalfClose);
        if self.half_closed || fault == Some(InjectedFault::Drop) {
            return Ok(Posted::Done);
        }
        let mut envelope = seal(&header, payload);
        match fault {
            Some(InjectedFault::Truncate) => {
                let bytes = self.random.below(envelope.region().bytes() as u64) as usize;
                envelope = Owned::copy_of(envelope.region().part(0..bytes));
            }
            Some(InjectedFault::Flip) => {
                let bit = self.random.below(envelope.region().bytes() as u64 * 8) as usize;
                let byte = envelope.region().part(bit / 8..bit / 8 + 1);
                let mut value = [0];
                byte.read(&mut value);
                byte.write(&[value[0] ^ 1 << (bit % 8)]);
            }
            _ => {}
        }
        let key = (stream.peer, stream.channel);
        if fault == Some(InjectedFault::Delay) || self.held.contains_key(&key) {
            let limit_ps = self.faults.delay_limit.as_nanos() as u64 * 1000;
            let delay_ps = self.random.below(limit_ps + 1);
            let queue = self.held.entry(key).or_default();
            // A message is never released before the message in front of it.
            let earliest = queue.back().map_or(Time::default(), |last| last.release);
            queue.push_back(HeldMessage {
                release: earliest.max(Time(self.now.0 + u128::from(delay_ps))),
                ticket,
                header,
                envelope,
            });
            return Ok(Posted::Pending);
        }
        if fault == Some(InjectedFault::Duplicate) {
            let copy = Owned::copy_of(envelope.region());
            let posted = self.pass_on(stream, Some(ticket), header, envelope)?;
            self.pass_on(stream, None, header, copy)?;
            return Ok(posted);
        }
        self.pass_on(stream, Some(ticket), header, envelope)
    }

    fn post_recv(&mut self, Post(stream, ticket, header): Post, sink: Sink) -> Result<Posted> {
        let envelope = Owned::zeroed(header.bytes as usize + ENVELOPE_BYTES);
        let outer = Header {
            bytes: envelope_bytes(envelope.region().bytes())?,
            ..header
        };
        let inside = self.ticket();
        let into = Sink::Store(envelope.region());
        let posted = self.inner.post_recv(Post(stream, inside, outer), into)?;
        if posted == Posted::Done {
            open(envelope.region(), [stream.peer, self.rank], &header, &sink)?;
        } else {
            let recv = InjectedOperation::Recv {
                ticket,
                peer: stream.peer,
                header,
                sink,
                envelope,
            };
            self.under_way.insert(inside, recv);
        }
        Ok(posted)
    }

    fn post_work(&mut self, ticket: Ticket, work: EngineWork) -> Result<Posted> {
        let inside = self.ticket();
        let posted = self.inner.post_work(inside, work)?;
        if posted == Posted::Pending {
            self.under_way
                .insert(inside, InjectedOperation::Work(ticket));
        }
        Ok(posted)
    }

    fn listen(&mut self, stream: StreamId, is_wanted: bool) -> Result<()> {
        self.inner.listen(stream, is_wanted)
    }

    fn head(&mut self, stream: StreamId) -> Result<Head> {
        let outer = match self.inner.head(stream)? {
            Head::Message(outer) => outer,
            other => return Ok(other),
        };
        match outer.bytes.checked_sub(ENVELOPE_BYTES as u32) {
            Some(bytes) => Ok(Head::Message(Header { bytes, ..outer })),
            None => Err(Error::corrupt(
                stream.peer,
                "a message shorter than its envelope",
            )),
        }
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        self.now = self.now.max(now);
        self.release()?;
        done.append(&mut self.released);
        self.inner_done.clear();
        self.inner.poll(now, &mut self.inner_done)?;
        for inside in &self.inner_done {
            match self.under_way.remove(inside) {
                Some(InjectedOperation::Send { ticket, .. }) => done.extend(ticket),
                Some(InjectedOperation::Recv {
                    ticket,
                    peer,
                    header,
                    sink,
                    envelope,
                }) => {
                    open(envelope.region(), [peer, self.rank], &header, &sink)?;
                    done.push(ticket);
                }
                Some(InjectedOperation::Work(ticket)) => done.push(ticket),
                None => unreachable!("ticket {inside} was never posted"),
            }
        }
        Ok(())
    }

    fn next_event(&self) -> Option<Time> {
        self.next_release()
            .into_iter()
            .chain(self.inner.next_event())
            .min()
    }

    fn block(&mut self, timeout: Duration) -> Result<()> {
        let release = self.next_release().map(|release| release.since(self.now));
        self.inner
            .block(release.map_or(timeout, |release| release.min(timeout)))
    }

    fn withdraw(&mut self) {
        self.inner.withdraw();
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}

/// Returns the envelope of a message.
fn seal(header: &Header, payload: Region) -> Owned {
    let bytes = payload.bytes();
    let envelope = Owned::zeroed(bytes + ENVELOPE_BYTES);
    let region = envelope.region();
    region.write(&header.encode(0));
    region
        .part(HEADER_BYTES..HEADER_BYTES + bytes)
        .copy_from(payload);
    let sum = sum(region.part(0..HEADER_BYTES + bytes));
    region
        .part(HEADER_BYTES + bytes..region.bytes())
        .write(&sum.to_le_bytes());
    envelope
}

/// Checks the envelope of the message `due` from one rank to another, and passes its payload to
/// `sink`.
fn open(envelope: Region, [from, to]: [usize; 2], due: &Header, sink: &Sink) -> Result<()> {
    let end = envelope.bytes() - CHECKSUM_BYTES;
    let mut claimed = [0; CHECKSUM_BYTES];
    envelope.part(end..envelope.bytes()).read(&mut claimed);
    if u64::from_le_bytes(claimed) != sum(envelope.part(0..end)) {
        return Err(Error::corrupt(from, "wrong message checksum"));
    }
    let mut header = [0; HEADER_BYTES];
    envelope.part(0..HEADER_BYTES).read(&mut header);
    due.expect(&header, from, to)?;
    sink.absorb(0, envelope.part(HEADER_BYTES..end));
    Ok(())
}

fn sum(region: Region) -> u64 {
    let mut checksum = Digest::new();
    checksum.extend(region);
    checksum.value().into()
}

/// Returns the length of an envelope as a header contains it.
fn envelope_bytes(bytes: usize) -> Result<u32> {
    u32::try_from(bytes)
        .map_err(|_| Error::InvalidArgument(format!("a message of {bytes} bytes is too long")))
}
