//! Messages between ranks over RDMA: InfiniBand, RoCE.
//!
//! # Model
//!
//! Every stream has a queue pair of a reliable connection ([`link`]). A short message is one packet
//! with its header. The sender writes a long message to the memory that the receiver has granted:
//! to its destination, if that is registered, or to pieces of the transport's memory. A grant
//! contains the expected header, so a different message is found before a byte of it is written. A
//! sender without a grant announces its message, so that the receiver sees the header. A write has
//! a number, which notifies the receiver.
//!
//! A send is complete when the peer's device has its payload, or when the payload was copied.
//!
//! # Failure
//!
//! A request that the device could not execute means a failed peer. A device reports nothing to a
//! rank that only waits, so the control plane reports deaths. A rank that leaves sends a goodbye on
//! each stream, behind everything else, and waits until the peers' devices have received it.
//!
//! When the engine withdraws posted memory, all queue pairs are ended and all registrations of it
//! dropped: afterwards a late write of a peer changes nothing ([`Transport::withdraw`]).
//!
//! *Source.* The receiver's grants are those of NCCL's `net_ib` and of MVAPICH's rendezvous by
//! write (Liu, Wu, Panda: High Performance RDMA-Based MPI Implementation over InfiniBand, 2004),
//! which is also the source of the credits for short messages.

mod cells;
pub mod fuzz;
mod incoming;
mod link;
mod memory;
mod options;
mod outgoing;
mod packet;
mod rail;
#[cfg(test)]
pub(crate) mod tests;

use std::time::{Duration, Instant};

pub use self::options::{RdmaOptions, RegisterBytes};
pub use self::packet::WHOLE_BYTES_MAX;
pub use self::rail::RailPort;

use self::link::{RECEIVE_DEPTH, RdmaLink, SEND_DEPTH};
use self::rail::Rail;
use super::bell::{Bell, new_bell};
use super::readiness::Readiness;
use super::{
    Head, Header, P2P_CHANNEL, Post, Posted, Sink, StreamId, Term, Ticket, Time, Transport, Waker,
};
use crate::error::{Error, Result};
use crate::memory::{Hold, Region};
use crate::verbs::{Depths, QueuePair, Route, WorkCompletion, WorkOutcome};

/// Maximum time for the peers' devices to acknowledge the goodbye.
const GOODBYE: Duration = Duration::from_millis(500);

/// `IBV_EVENT_CQ_ERR` and `IBV_EVENT_DEVICE_FATAL`.
const FATAL_EVENTS: [u32; 2] = [0, 8];

/// One rank's links to its peers.
pub struct Rdma {
    rank: usize,
    // Queue pairs are dropped before the memory that they use.
    links: Vec<RdmaLink>,
    /// Index of each link, by peer and channel.
    places: Vec<Vec<usize>>,
    rails: Vec<Rail>,
    readiness: Readiness,
    /// Tickets of completed operations that are not reported.
    completed: Vec<Ticket>,
    /// Reused for its allocation.
    batch: Vec<WorkCompletion>,
    /// Links with something new in this poll; empty between polls.
    touched: Vec<usize>,
    /// Whether nothing more will be sent, after an error or a withdrawal of memory.
    is_ended: bool,
}

/// Queue pairs that are not yet connected to the peers'.
pub struct UnconnectedPairs {
    rank: usize,
    links: Vec<RdmaLink>,
    places: Vec<Vec<usize>>,
    rails: Vec<Rail>,
    options: RdmaOptions,
}

impl UnconnectedPairs {
    /// Creates `channels` queue pairs from `rank` to each of the `peers`, which are flagged by
    /// rank; the channels take turns on the `ports`.
    ///
    /// # Errors
    /// `System` if a device has too few queue pairs or too little memory may be locked.
    pub fn new(
        rank: usize,
        peers: &[bool],
        channels: usize,
        ports: &[RailPort],
        options: RdmaOptions,
    ) -> Result<UnconnectedPairs> {
        let rail_with = |peer: usize, channel: usize| rail_of(channel, [rank, peer], ports.len());
        let of_rail = |rail: usize| {
            let remote = (0..peers.len()).filter(|peer| peers[*peer]);
            let rails = remote.flat_map(|peer| (0..channels).map(move |c| rail_with(peer, c)));
            rails.filter(|number| *number == rail).count()
        };
        let depths = (SEND_DEPTH, RECEIVE_DEPTH);
        let mut rails = Vec::with_capacity(ports.len());
        for (rail, port) in ports.iter().enumerate() {
            let links = of_rail(rail).max(1);
            rails.push(Rail::new(port.clone(), links, depths, &options)?);
        }
        let mut links = Vec::new();
        let mut places = vec![Vec::new(); peers.len()];
        let depths = Depths {
            send: SEND_DEPTH,
            receive: RECEIVE_DEPTH,
        };
        for peer in (0..peers.len()).filter(|peer| peers[*peer]) {
            for channel in 0..channels {
                let number = rail_with(peer, channel);
                let rail = &mut rails[number];
                let RailPort { domain, port, .. } = &rail.port;
                let pkey = options.link.pkey_index;
                let pair = QueuePair::new(domain, &rail.queue, depths, *port, pkey)?;
                let place = links.len();
                places[peer].push(place);
                links.push(RdmaLink::new(pair, (number, place), [peer, rank], rail)?);
            }
        }
        Ok(UnconnectedPairs {
            rank,
            links,
            places,
            rails,
            options,
        })
    }

    /// Returns the numbers of the queue pairs for the streams with a peer, by channel.
    pub fn pairs(&self, peer: usize) -> Vec<u32> {
        let places = self.places[peer].iter();
        places
            .map(|place| self.links[*place].pair.number())
            .collect()
    }

    /// Connects each stream by the route that `route` returns for its peer, channel and rail. No
    /// rank may use the transport before all have connected.
    ///
    /// # Errors
    /// `System` if a device refuses the route.
    pub fn connect(
        self,
        bell: Option<Bell>,
        mut route: impl FnMut(usize, usize, usize) -> Result<Route>,
    ) -> Result<Rdma> {
        for (peer, places) in self.places.iter().enumerate() {
            for (channel, place) in places.iter().enumerate() {
                let link = &self.links[*place];
                let route = route(peer, channel, link.rail)?;
                link.pair.connect(&route, &self.options.link)?;
            }
        }
        let readiness = Readiness::new(bell.map_or_else(new_bell, Ok)?)?;
        for (number, rail) in self.rails.iter().enumerate() {
            readiness.watch(rail.queue.descriptor(), number)?;
            readiness.watch(rail.port.domain.events(), number)?;
        }
        Ok(Rdma {
            rank: self.rank,
            links: self.links,
            places: self.places,
            rails: self.rails,
            readiness,
            completed: Vec::new(),
            batch: Vec::new(),
            touched: Vec::new(),
            is_ended: false,
        })
    }
}

/// Returns the rail of a channel between two ranks. Channels of collectives take turns, and so do
/// pairs of ranks. So the ranks of a host that each have one peer on another host use all rails,
/// and a rank in a ring uses two.
fn rail_of(channel: usize, [one, other]: [usize; 2], rails: usize) -> usize {
    let pair = usize::midpoint(one, other);
    (channel.saturating_sub(P2P_CHANNEL + 1) + pair) % rails.max(1)
}

impl Rdma {
    /// Returns the link of a stream, its rail, and the completed tickets.
    fn link(&mut self, stream: StreamId) -> Result<(&mut RdmaLink, &mut Rail, &mut Vec<Ticket>)> {
        assert_ne!(
            stream.peer, self.rank,
            "a message between a rank and itself"
        );
        let channels = &self.places[stream.peer];
        let Some(place) = channels.get(stream.channel) else {
            return Err(Error::InvalidArgument(format!(
                "channel {} to rank {} does not exist ({} connections); use fewer channels",
                stream.channel,
                stream.peer,
                channels.len()
            )));
        };
        let link = &mut self.links[*place];
        let rail = &mut self.rails[link.rail];
        Ok((link, rail, &mut self.completed))
    }

    /// Returns whether the message posted with `ticket` is complete.
    fn posted(&mut self, ticket: Ticket) -> Posted {
        let place = self.completed.iter().position(|done| *done == ticket);
        match place.map(|place| self.completed.swap_remove(place)) {
            Some(_) => Posted::Done,
            None => Posted::Pending,
        }
    }

    /// Handles the completed requests; returns whether there were any.
    fn handle(&mut self) -> Result<bool> {
        let mut any = false;
        for number in 0..self.rails.len() {
            let rail = &mut self.rails[number];
            let mut batch = std::mem::take(&mut self.batch);
            batch.append(&mut rail.ended);
            rail.queue.poll(&mut batch)?;
            any |= !batch.is_empty();
            let handled = batch.iter().try_for_each(|ended| self.note(number, ended));
            batch.clear();
            self.batch = batch;
            handled?;
        }
        Ok(any)
    }

    /// Handles one completed request.
    fn note(&mut self, rail: usize, ended: &WorkCompletion) -> Result<()> {
        let place = (ended.id >> 32) as usize;
        let (link, rail) = (&mut self.links[place], &mut self.rails[rail]);
        self.touched.push(place);
        match ended.outcome {
            WorkOutcome::Sent => link.sent(rail, &mut self.completed),
            WorkOutcome::Received { bytes, number } => {
                let cell = (ended.id as u32, bytes as usize);
                link.received(cell, number, rail, &mut self.completed)?;
            }
            WorkOutcome::Failed { status } => {
                let words = rail.queue.words(status);
                let device = rail.port.domain.device().name();
                let reason = format!("connection over {device} failed: {words}");
                link.failed(ended.id as u32, reason, rail)?;
            }
        }
        Ok(())
    }

    /// Makes progress on the links with something new, and on those that lack memory.
    fn pump(&mut self) -> Result<()> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.extend((0..self.links.len()).filter(|place| self.links[*place].is_starved));
        touched.sort_unstable();
        touched.dedup();
        let mut outcome = Ok(());
        for place in &touched {
            let link = &mut self.links[*place];
            outcome = link.pump(&mut self.rails[link.rail], &mut self.completed);
            if outcome.is_err() {
                break;
            }
        }
        touched.clear();
        self.touched = touched;
        outcome
    }

    /// Handles the devices' asynchronous events.
    fn read_events(&self) -> Result<()> {
        for rail in &self.rails {
            let domain = &rail.port.domain;
            while let Some((kind, name)) = domain.event() {
                let device = domain.device().name();
                if FATAL_EVENTS.contains(&kind) {
                    let what = format!("the device {device} has failed: {name}");
                    return Err(Error::system(what, rustix::io::Errno::IO));
                }
                log::warn!(target: "ringfold::transport", "device {device}: {name}");
            }
        }
        Ok(())
    }

    /// Whether this transport is a copy in a forked child: the connections belong to the parent.
    fn is_inherited(&self) -> bool {
        let mut rails = self.rails.iter();
        rails.any(|rail| rail.port.domain.device().is_inherited())
    }

    /// Sends a goodbye on every stream, and waits until the peers' devices have received it.
    fn leave(&mut self) -> Result<()> {
        for link in &mut self.links {
            link.leave(&mut self.rails[link.rail])?;
        }
        let deadline = Instant::now() + GOODBYE;
        while self.links.iter().any(RdmaLink::is_busy) && Instant::now() < deadline {
            let mut ended = Vec::new();
            for rail in &mut self.rails {
                rail.queue.poll(&mut ended)?;
            }
            for ended in &ended {
                let link = &mut self.links[(ended.id >> 32) as usize];
                let rail = &mut self.rails[link.rail];
                match ended.outcome {
                    WorkOutcome::Sent => link.sent(rail, &mut self.completed),
                    // The peer may have left, too.
                    WorkOutcome::Failed { .. } => link.forget(),
                    WorkOutcome::Received { .. } => {}
                }
                link.flush(rail)?;
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Transport for Rdma {
    fn post_send(&mut self, post: Post, payload: Region) -> Result<Posted> {
        let Post(stream, ticket, header) = post;
        assert_eq!(header.bytes as usize, payload.bytes());
        let (link, rail, completed) = self.link(stream)?;
        link.send(post, payload)?;
        link.pump(rail, completed)?;
        Ok(self.posted(ticket))
    }

    fn hold(&mut self, memory: Region, term: Term) -> Option<Hold> {
        if memory.is_empty() || self.is_ended {
            return None;
        }
        let mut held = self
            .rails
            .iter_mut()
            .filter_map(|rail| rail.hold(memory, term))
            .peekable();
        held.peek()?;
        Some(Hold::new(held.collect::<Vec<_>>()))
    }

    fn post_recv(&mut self, post: Post, sink: Sink) -> Result<Posted> {
        let Post(stream, ticket, header) = post;
        assert_eq!(header.bytes as usize, sink.bytes());
        let (link, rail, completed) = self.link(stream)?;
        link.recv(post, sink, rail, completed)?;
        link.pump(rail, completed)?;
        Ok(self.posted(ticket))
    }

    fn listen(&mut self, stream: StreamId, _is_wanted: bool) -> Result<()> {
        // Arrivals are always noticed.
        self.link(stream).map(|_| ())
    }

    fn head(&mut self, stream: StreamId) -> Result<Head> {
        let (link, ..) = self.link(stream)?;
        link.incoming().head(stream.peer)
    }

    fn unexpected(&mut self, found: &mut Vec<(StreamId, Header)>) -> Result<()> {
        for (peer, channels) in self.places.iter().enumerate() {
            for (channel, place) in channels.iter().enumerate().skip(P2P_CHANNEL + 1) {
                let incoming = self.links[*place].incoming();
                let is_idle = incoming.queue.is_empty();
                if let Some(first) = incoming.arrived.front().filter(|_| is_idle) {
                    let header = Header::claimed(&first.header, peer)?;
                    found.push((StreamId { peer, channel }, header));
                }
            }
        }
        Ok(())
    }

    fn poll(&mut self, _now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        if self.is_ended {
            // Late completions belong to forgotten messages.
            return Ok(());
        }
        let handled = match self.handle() {
            Ok(true) => self.pump(),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        done.append(&mut self.completed);
        self.is_ended |= handled.is_err();
        handled
    }

    fn block(&mut self, timeout: Duration) -> Result<()> {
        if !self.completed.is_empty() {
            return Ok(());
        }
        let mut any = false;
        for rail in &mut self.rails {
            rail.queue.arm()?;
            any |= rail.queue.poll(&mut rail.ended)?;
        }
        if any {
            return Ok(());
        }
        self.readiness.wait(timeout, |_, _| {})?;
        self.read_events()
    }

    fn waker(&self) -> Waker {
        self.readiness.waker()
    }

    fn withdraw(&mut self) {
        self.is_ended = true;
        for link in &mut self.links {
            link.end();
        }
        for rail in &mut self.rails {
            rail.end_held();
        }
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        if !self.is_ended && !std::thread::panicking() {
            // A device that fails now no longer matters.
            let _ = self.leave();
        }
        self.withdraw();
    }
}
