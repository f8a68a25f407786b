//! Messages and computation in virtual time, on machines described by a [`Scenario`].
//!
//! # Model
//!
//! Every rank has one port. A message of `m` bytes occupies the sender's side for `m·β`. Its first
//! byte arrives `α` after leaving, and the message occupies the receiving side for `m·β`. If a side
//! is occupied, messages wait, first come, first served. So a message between idle ports takes
//! exactly `α + m·β`. Headers have no cost. The reduction of a message begins when the message has
//! arrived, its receive is posted, and a processor is free. All times are whole picoseconds.
//!
//! A message departs either at once or when its receive is posted. The scenario must choose
//! ([`Sending`](crate::simulate::Sending)): with a slow rank, the times differ by a third.
//!
//! The files: `world` has the state and time, `rank` the state of one rank, `traffic` the path of a
//! message, `grants` the permission that long messages wait for, `processors` the execution of a
//! `job`, `share` links used by several messages, `slow_links` links with reduced bandwidth,
//! `lanes` the program that devices carry out in `streams` over `device_links`, `record` data for
//! reports. The parameters are in [`model`](crate::simulate::model) and
//! [`devices`](crate::simulate::devices).
//!
//! # Use
//!
//! Time advances only by the `now` of [`Transport::poll`], or `World::advance`. A driver polls the
//! ranks concerned by events (`World::take_touched`; polling others is harmless) until none makes
//! progress, then proceeds to the next event. An operation counts as posted at the current virtual
//! time. The same calls yield the same times.
//!
//! Not modelled: packets, congestion, retransmission, the cost of headers and of control messages.

mod device_links;
mod event;
mod grants;
mod job;
pub(super) mod lanes;
mod message;
mod processors;
mod rank;
pub(crate) mod record;
mod share;
pub(super) mod slow_links;
pub(super) mod streams;
mod traffic;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::memory::Region;
use crate::simulate::scenario::Scenario;
use crate::transport::{
    EngineWork, Head, Post, Posted, Sink, StreamId, Ticket, Time, Transport, Waker,
};
pub(super) use rank::Account;
pub(super) use world::World;

/// All simulated machines, as seen by the driver of the ranks.
#[derive(Clone)]
pub struct SimNetwork {
    world: Arc<Mutex<World>>,
}

/// One simulated rank.
pub struct Sim {
    rank: usize,
    /// The simulated machines, of which this rank is a part.
    pub(super) network: SimNetwork,
}

impl SimNetwork {
    /// Returns the ranks of a scenario, which must have been checked.
    #[expect(
        clippy::new_ret_no_self,
        reason = "the machines are reached through their ranks"
    )]
    pub fn new(scenario: &Scenario) -> Vec<Sim> {
        let world = Arc::new(Mutex::new(World::new(scenario)));
        let rank = |rank| Sim {
            rank,
            network: SimNetwork {
                world: world.clone(),
            },
        };
        (0..scenario.ranks).map(rank).collect()
    }

    /// Locks the world. A test's panic in one rank must not hide behind a poisoned lock in another.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts a time to the world's clock: 64-bit picoseconds, more than half a year.
fn picoseconds(time: Time) -> u64 {
    u64::try_from(time.0).unwrap_or(u64::MAX)
}

impl Transport for Sim {
    fn post_send(&mut self, Post(stream, ticket, header): Post, payload: Region) -> Result<Posted> {
        assert_eq!(header.bytes as usize, payload.bytes());
        assert_ne!(stream.peer, self.rank, "a message to the sender itself");
        let mut world = self.network.world();
        world.post_send(self.rank, Post(stream, ticket, header), payload)
    }

    fn post_recv(&mut self, Post(stream, ticket, header): Post, sink: Sink) -> Result<Posted> {
        assert_eq!(header.bytes as usize, sink.bytes());
        assert_ne!(stream.peer, self.rank, "a message from the receiver itself");
        let mut world = self.network.world();
        world.post_recv(self.rank, Post(stream, ticket, header), sink)
    }

    fn post_work(&mut self, ticket: Ticket, work: EngineWork) -> Result<Posted> {
        Ok(self.network.world().post_work(self.rank, ticket, &work))
    }

    fn listen(&mut self, stream: StreamId, is_wanted: bool) -> Result<()> {
        self.network.world().listen(self.rank, stream, is_wanted);
        Ok(())
    }

    fn head(&mut self, stream: StreamId) -> Result<Head> {
        Ok(self.network.world().head(self.rank, stream))
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        let mut world = self.network.world();
        world.advance(picoseconds(now));
        world.poll(self.rank, done)
    }

    fn next_event(&self) -> Option<Time> {
        let next_ps = self.network.world().next_event_ps();
        next_ps.map(|ps| Time(ps.into()))
    }

    /// Returns at once: nothing happens while virtual time stands still.
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
