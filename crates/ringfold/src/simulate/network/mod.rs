//! Messages and computation in virtual time, on machines described by a [`Model`].
//!
//! # Model
//!
//! Every rank has one port. A message of `m` bytes occupies the sender's side for `m·β`, its first
//! byte reaches the receiver after another `α`, and it occupies the receiving side for `m·β`; if a
//! side is occupied, messages wait, first come, first served. So a message between idle ports takes
//! exactly `α + m·β`. Headers have no cost. Reducing a message begins when it has arrived, its
//! receive is posted, and a processor is free. All times are whole picoseconds.
//!
//! Whether a message departs at once or when its receive was posted makes a difference that must be
//! chosen ([`Sending`](model::Sending)): with a slow rank the two differ by a third.
//!
//! The files: `model` has the parameters, `world` the state and time, `rank` one rank's part of it,
//! `traffic` the path of a message, `processors` computation, `share` links used by several
//! messages, `record` data for reports.
//!
//! # Use
//!
//! Time advances only by the `now` of [`Transport::poll`], or [`SimNetwork::advance`]. A driver
//! polls the ranks concerned by events ([`SimNetwork::take_touched`]; polling others is harmless)
//! until none makes progress, then proceeds to the next event. Posted operations count from the
//! latest time. The same calls give the same times.
//!
//! Not modelled: packets, congestion, retransmission, the cost of headers and of control messages.

mod message;
pub mod model;
mod processors;
mod rank;
pub(crate) mod record;
mod share;
mod traffic;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::memory::Region;
use crate::transport::{Head, Header, Posted, Sink, Stream, Ticket, Time, Transport, Waker, Work};
use model::Model;
pub use rank::Account;
use record::{ORIGIN, PathPart, TraceEvent};
use world::World;

/// All simulated machines, as seen by the driver of the ranks.
#[derive(Clone)]
pub struct SimNetwork {
    world: Arc<Mutex<World>>,
}

/// One simulated rank.
pub struct Sim {
    rank: usize,
    network: SimNetwork,
}

/// What went from one rank to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Their payload.
    pub bytes: u64,
    /// How long the sender's port was busy with them.
    pub busy_ps: u64,
}

impl SimNetwork {
    /// The ranks of new machines; `model` was checked for their number.
    #[expect(
        clippy::new_ret_no_self,
        reason = "the machines are reached through their ranks"
    )]
    pub fn new(world_size: usize, model: Model) -> Vec<Sim> {
        let network = SimNetwork {
            world: Arc::new(Mutex::new(World::new(model, world_size))),
        };
        let rank = |rank| Sim {
            rank,
            network: network.clone(),
        };
        (0..world_size).map(rank).collect()
    }

    /// A test's panic in one rank must not hide behind a poisoned lock in another.
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next thing happens.
    pub fn next_event(&self) -> Option<Time> {
        self.world().next_event_ps().map(|ps| Time(ps.into()))
    }

    /// Lets everything happen that happens until `now`.
    pub fn advance(&self, now: Time) {
        self.world().advance(picoseconds(now));
    }

    /// Appends the ranks for which something is to be seen since this was last asked.
    pub fn take_touched(&self, into: &mut Vec<usize>) {
        self.world().take_touched(into);
    }

    /// From now on nothing is delivered to `rank`, and it computes nothing. Its peers see no
    /// difference.
    pub fn stop(&self, rank: usize) {
        self.world().stop(rank);
    }

    /// The process of `rank` is gone, which its peers see from now on.
    pub fn leave(&self, rank: usize) {
        self.world().leave(rank);
    }

    /// The messages with data that came to ranks and were never taken in.
    pub fn left_over(&self) -> Vec<(usize, usize)> {
        self.world().left_over()
    }

    /// How many things have happened.
    pub fn events(&self) -> u64 {
        self.world().events_passed
    }

    /// What `rank` has done, until now.
    pub fn account(&self, rank: usize) -> Account {
        self.world().ranks[rank].account
    }

    /// What has been sent so far: from, to, and what.
    pub fn traffic(&self) -> Vec<(usize, usize, Traffic)> {
        let world = self.world();
        let mut all: Vec<(usize, usize, Traffic)> = Vec::new();
        for (to, rank) in world.ranks.iter().enumerate() {
            for ((from, _), incoming) in &rank.incoming {
                let own = Traffic {
                    messages: incoming.messages,
                    bytes: incoming.bytes,
                    busy_ps: incoming.busy_ps,
                };
                match all.last_mut() {
                    Some((sender, receiver, sum))
                        if (*sender, *receiver) == (*from as usize, to) =>
                    {
                        sum.messages += own.messages;
                        sum.bytes += own.bytes;
                        sum.busy_ps += own.busy_ps;
                    }
                    _ => all.push((*from as usize, to, own)),
                }
            }
        }
        all.retain(|(.., traffic)| traffic.messages > 0);
        all.sort_unstable_by_key(|(from, to, _)| (*from, *to));
        all
    }

    /// The chain of what was waited for, from time 0 to what was last reported to `rank`.
    pub fn path(&self, rank: usize) -> Vec<PathPart> {
        let world = self.world();
        let cause = world.ranks[rank].cause;
        match cause {
            ORIGIN => Vec::new(),
            part => world.record.path(part),
        }
    }

    /// Takes what was noted on timelines.
    pub fn take_trace(&self) -> Vec<TraceEvent> {
        std::mem::take(&mut self.world().record.trace)
    }
}

/// Virtual time as it is kept: more than half a year of picoseconds.
fn picoseconds(time: Time) -> u64 {
    u64::try_from(time.0).unwrap_or(u64::MAX)
}

impl Sim {
    /// The machines that this rank is on.
    pub fn network(&self) -> &SimNetwork {
        &self.network
    }
}

impl Transport for Sim {
    fn post_send(
        &mut self,
        stream: Stream,
        ticket: Ticket,
        header: Header,
        payload: Region,
    ) -> Result<Posted> {
        assert_eq!(header.bytes as usize, payload.bytes());
        assert_ne!(stream.peer, self.rank, "a message to oneself");
        let mut world = self.network.world();
        world.post_send(self.rank, stream, ticket, header, payload)
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
        let mut world = self.network.world();
        world.post_recv(self.rank, stream, ticket, header, sink)
    }

    fn post_work(&mut self, ticket: Ticket, work: Work) -> Result<Posted> {
        Ok(self.network.world().post_work(self.rank, ticket, &work))
    }

    fn listen(&mut self, stream: Stream, is_wanted: bool) -> Result<()> {
        self.network.world().listen(self.rank, stream, is_wanted);
        Ok(())
    }

    fn head(&mut self, stream: Stream) -> Result<Head> {
        Ok(self.network.world().head(self.rank, stream))
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        let mut world = self.network.world();
        world.advance(picoseconds(now));
        world.poll(self.rank, done)
    }

    fn next_event(&self) -> Option<Time> {
        self.network.next_event()
    }

    /// Nothing happens while time stands still.
    fn block(&mut self, _timeout: Duration) -> Result<()> {
        Ok(())
    }

    fn waker(&self) -> Waker {
        Arc::new(|| ())
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.network.world().leave(self.rank);
    }
}

#[cfg(test)]
mod tests;
