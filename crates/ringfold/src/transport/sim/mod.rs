//! Messages in virtual time, over links of known latency and bandwidth.
//!
//! # Model
//!
//! Every rank has one port, full duplex. A message of `m` bytes occupies the sender's transmitting side for `m·β`, its
//! first byte is at the receiver after another `α`, and it occupies the receiving side for `m·β`; whoever finds a side
//! occupied waits, first come first served. So a message between idle ports takes exactly `α + m·β`. Headers weigh
//! nothing. All times are whole picoseconds.
//!
//! Whether a message leaves at once or when its receive was posted makes a difference that must be chosen
//! ([`Sending`]): with a slow rank the two disagree by a third.
//!
//! # Use
//!
//! Time moves only by the `now` of [`Transport::poll`]. A driver polls all ranks at one time until none gets on, then
//! goes on to the least [`Transport::next_event`]. What is posted counts from the latest time polled. Payloads are
//! real, so the same run gives a time and a result; runs are deterministic.
//!
//! Does not know: what computing costs, more than one kind of link, packets, congestion.

pub mod model;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{HEADER_BYTES, Head, Header, Posted, Sink, Stream, Ticket, Time, Transport, Waker};
use crate::error::{Error, Result};
use crate::memory::{Owned, Region};

/// When a message sets off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sending {
    /// When it is posted. The send is complete when the port is free of it.
    Eager,
    /// When its receive was posted, too. The send is complete when the message has arrived.
    Rendezvous,
}

/// What all links are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Links {
    /// The latency α.
    pub alpha_ps: u64,
    /// The inverse of the bandwidth, β. 100 Gbit/s are 80.
    pub ps_per_byte: u64,
    /// When a message sets off.
    pub sending: Sending,
}

/// The network that the simulated ranks share.
pub struct SimNetwork {
    links: Links,
    now: Time,
    ports: Vec<Port>,
    /// Messages whose first byte is under way, by when it arrives; the second number keeps ties in order.
    flights: BTreeMap<(Time, u64), Message>,
    next_flight: u64,
    /// Messages with a known time of arrival, by receiver and stream, in order of that time.
    arrivals: BTreeMap<Route, VecDeque<(Time, Message)>>,
    /// Posted sends whose receive is missing, or the number of receives whose send is.
    meetings: BTreeMap<Route, Meeting>,
}

/// An ordered stream as the whole network sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    to: usize,
    from: usize,
    channel: usize,
}

#[derive(Default)]
struct Port {
    transmits_until: Time,
    receives_until: Time,
    /// When the sends of this rank are complete.
    sent: BTreeSet<(Time, Ticket)>,
    left: bool,
}

#[derive(Default)]
struct Meeting {
    sends: VecDeque<Message>,
    receives: usize,
}

struct Message {
    route: Route,
    ticket: Ticket,
    header: [u8; HEADER_BYTES],
    payload: Owned,
    /// How long it occupies a port.
    duration_ps: u128,
}

/// One simulated rank.
pub struct Sim {
    rank: usize,
    network: Arc<Mutex<SimNetwork>>,
    /// What was posted; no empty queues.
    receives: BTreeMap<Route, VecDeque<Receive>>,
    /// What is listened to.
    listened: BTreeSet<Route>,
}

struct Receive {
    ticket: Ticket,
    header: Header,
    sink: Sink,
}

impl SimNetwork {
    /// The ranks of a new network.
    #[expect(
        clippy::new_ret_no_self,
        reason = "the network is only reached through its ranks"
    )]
    pub fn new(world_size: usize, links: Links) -> Vec<Sim> {
        let network = Arc::new(Mutex::new(SimNetwork {
            links,
            now: Time::default(),
            ports: (0..world_size).map(|_| Port::default()).collect(),
            flights: BTreeMap::new(),
            next_flight: 0,
            arrivals: BTreeMap::new(),
            meetings: BTreeMap::new(),
        }));
        let rank = |rank| Sim {
            rank,
            network: network.clone(),
            receives: BTreeMap::new(),
            listened: BTreeSet::new(),
        };
        (0..world_size).map(rank).collect()
    }

    /// Lets a message wait for its receive, or go.
    fn offer(&mut self, message: Message) {
        if self.links.sending == Sending::Rendezvous {
            let meeting = self.meetings.entry(message.route).or_default();
            if meeting.receives == 0 {
                meeting.sends.push_back(message);
                return;
            }
            meeting.receives -= 1;
        }
        self.launch(message);
    }

    /// Notes that a receive was posted.
    fn expect(&mut self, route: Route) {
        if self.links.sending == Sending::Rendezvous {
            let meeting = self.meetings.entry(route).or_default();
            match meeting.sends.pop_front() {
                Some(message) => self.launch(message),
                None => meeting.receives += 1,
            }
        }
    }

    /// Puts a message on the sender's port.
    fn launch(&mut self, message: Message) {
        let port = &mut self.ports[message.route.from];
        let start = self.now.max(port.transmits_until);
        port.transmits_until = Time(start.0 + message.duration_ps);
        if self.links.sending == Sending::Eager {
            port.sent.insert((port.transmits_until, message.ticket));
        }
        let first_byte = Time(start.0 + u128::from(self.links.alpha_ps));
        self.flights.insert((first_byte, self.next_flight), message);
        self.next_flight += 1;
    }

    /// Moves time on to `now`: first bytes that have come by then take their turn at the receivers' ports.
    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(flight) = self.flights.first_entry() {
            let (first_byte, _) = *flight.key();
            if first_byte > self.now {
                break;
            }
            let message = flight.remove();
            let port = &mut self.ports[message.route.to];
            let start = first_byte.max(port.receives_until);
            let arrival = Time(start.0 + message.duration_ps);
            port.receives_until = arrival;
            if self.links.sending == Sending::Rendezvous {
                let sent = (arrival, message.ticket);
                self.ports[message.route.from].sent.insert(sent);
            }
            self.arrivals
                .entry(message.route)
                .or_default()
                .push_back((arrival, message));
        }
    }

    /// The next message of a stream, if it has arrived.
    fn take(&mut self, route: Route) -> Option<Message> {
        let queue = self.arrivals.get_mut(&route)?;
        let (arrival, _) = queue.front()?;
        if *arrival > self.now {
            return None;
        }
        queue.pop_front().map(|(_, message)| message)
    }

    /// The header of the next message of a stream: once it has arrived, or as soon as it waits for its receive, as headers
    /// weigh nothing.
    fn head(&self, route: Route) -> Option<&[u8; HEADER_BYTES]> {
        let arrived = self.arrivals.get(&route).and_then(VecDeque::front);
        let offered = || self.meetings.get(&route)?.sends.front();
        match arrived {
            Some((arrival, message)) => (*arrival <= self.now).then_some(&message.header),
            None => offered().map(|message| &message.header),
        }
    }

    /// Whether nothing can come on a stream any more.
    fn is_over(&self, route: Route) -> bool {
        let waits = self
            .arrivals
            .get(&route)
            .is_some_and(|queue| !queue.is_empty());
        self.ports[route.from].left
            && !waits
            && !self.flights.values().any(|message| message.route == route)
    }

    /// The next time that matters to `rank`, who waits on `routes`.
    fn next_event<'a>(&self, rank: usize, routes: impl Iterator<Item = &'a Route>) -> Option<Time> {
        let arrivals = routes
            .filter_map(|route| self.arrivals.get(route)?.front())
            .map(|(arrival, _)| *arrival)
            .filter(|arrival| *arrival > self.now);
        let sent = self.ports[rank].sent.first().map(|(time, _)| *time);
        let mut flights = self.flights.iter();
        let flight = flights.find(|(_, message)| message.route.to == rank);
        arrivals
            .chain(sent)
            .chain(flight.map(|((time, _), _)| *time))
            .min()
    }
}

impl Sim {
    /// A test's panic in one rank must not hide behind a poisoned lock in another.
    fn network(&self) -> MutexGuard<'_, SimNetwork> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way of what comes to this rank on `stream`.
    fn route_from(&self, stream: Stream) -> Route {
        Route {
            to: self.rank,
            from: stream.peer,
            channel: stream.channel,
        }
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
        let route = Route {
            to: stream.peer,
            from: self.rank,
            channel: stream.channel,
        };
        let mut network = self.network();
        if network.ports[stream.peer].left {
            return Err(has_left(stream.peer));
        }
        let duration_ps = u128::from(network.links.ps_per_byte) * payload.bytes() as u128;
        network.offer(Message {
            route,
            ticket,
            header: header.encode(0),
            payload: Owned::copy_of(payload),
            duration_ps,
        });
        Ok(Posted::Pending)
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
        let route = self.route_from(stream);
        self.network().expect(route);
        let queue = self.receives.entry(route).or_default();
        queue.push_back(Receive {
            ticket,
            header,
            sink,
        });
        Ok(Posted::Pending)
    }

    fn listen(&mut self, stream: Stream, is_wanted: bool) -> Result<()> {
        let route = self.route_from(stream);
        if is_wanted {
            self.listened.insert(route);
        } else {
            self.listened.remove(&route);
        }
        Ok(())
    }

    fn head(&mut self, stream: Stream) -> Result<Head> {
        let route = self.route_from(stream);
        assert!(!self.receives.contains_key(&route), "a receive is posted");
        let network = self.network();
        match network.head(route) {
            Some(header) => Header::claimed(header, stream.peer).map(Head::Message),
            None if network.is_over(route) => Ok(Head::End(LEFT)),
            None => Ok(Head::Nothing),
        }
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        let mut network = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        network.advance(now);
        let now = network.now;
        let sent = &mut network.ports[self.rank].sent;
        while let Some((time, ticket)) = sent.first().copied()
            && time <= now
        {
            sent.pop_first();
            done.push(ticket);
        }
        for (route, queue) in &mut self.receives {
            while let Some(receive) = queue.front() {
                let Some(message) = network.take(*route) else {
                    break;
                };
                receive
                    .header
                    .expect(&message.header, route.from, self.rank)?;
                receive.sink.absorb(0, message.payload.region());
                done.push(receive.ticket);
                queue.pop_front();
            }
            if !queue.is_empty() && network.is_over(*route) {
                return Err(has_left(route.from));
            }
        }
        self.receives.retain(|_, queue| !queue.is_empty());
        let abandoned = network.meetings.iter().find(|(route, meeting)| {
            route.from == self.rank && !meeting.sends.is_empty() && network.ports[route.to].left
        });
        match abandoned {
            Some((route, _)) => Err(has_left(route.to)),
            None => Ok(()),
        }
    }

    fn next_event(&self) -> Option<Time> {
        let routes = self.receives.keys().chain(&self.listened);
        self.network().next_event(self.rank, routes)
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
        let rank = self.rank;
        let mut network = self.network();
        network.ports[rank].left = true;
        network.meetings.retain(|route, _| route.from != rank);
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::{self, World, pattern};
    use super::*;

    /// The links of the slow-node paper: 5 µs and 100 Gbit/s.
    const LINKS: Links = Links {
        alpha_ps: 5_000_000,
        ps_per_byte: 80,
        sending: Sending::Eager,
    };

    const RENDEZVOUS: Links = Links {
        sending: Sending::Rendezvous,
        ..LINKS
    };

    suite::transport_tests!(|world_size| SimNetwork::new(world_size, LINKS));

    mod with_rendezvous {
        use super::super::super::suite;
        use super::{RENDEZVOUS, SimNetwork};
        suite::transport_tests!(|world_size| SimNetwork::new(world_size, RENDEZVOUS));
    }

    /// Polls everybody at `time_ps`.
    fn poll_at(world: &mut World<Sim>, time_ps: u128) {
        world.now = Time(time_ps);
        while world.round().unwrap() {}
    }

    #[test]
    fn a_message_takes_alpha_and_its_bytes_times_beta() {
        let mut world = World::new(SimNetwork::new(2, LINKS));
        let (source, target) = (pattern(8192, 1), Owned::zeroed(8192));
        let send = world.send(0, (1, 0), 0, source.region());
        let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
        poll_at(&mut world, 655_359);
        assert!(!world.is_done(send));
        poll_at(&mut world, 655_360);
        assert!(world.is_done(send));
        poll_at(&mut world, 5_655_359);
        assert!(!world.is_done(recv));
        assert_eq!(world.ranks[1].next_event(), Some(Time(5_655_360)));
        poll_at(&mut world, 5_655_360);
        assert!(world.is_done(recv));
        assert_eq!(world.ranks[1].next_event(), None);
    }

    #[test]
    fn messages_of_one_sender_queue_at_its_port() {
        let mut world = World::new(SimNetwork::new(3, LINKS));
        let (source, targets) = (pattern(1000, 1), [Owned::zeroed(1000), Owned::zeroed(1000)]);
        let first = world.recv(1, (0, 0), 0, Sink::Store(targets[0].region()));
        let second = world.recv(2, (0, 0), 0, Sink::Store(targets[1].region()));
        world.send(0, (1, 0), 0, source.region());
        world.send(0, (2, 0), 0, source.region());
        world.run(&[first]).unwrap();
        assert_eq!(world.now, Time(5_080_000));
        world.run(&[second]).unwrap();
        assert_eq!(world.now, Time(5_160_000));
    }

    #[test]
    fn messages_to_one_receiver_queue_at_its_port() {
        let mut world = World::new(SimNetwork::new(3, LINKS));
        let (source, targets) = (pattern(1000, 1), [Owned::zeroed(1000), Owned::zeroed(1000)]);
        let first = world.recv(0, (1, 0), 0, Sink::Store(targets[0].region()));
        let second = world.recv(0, (2, 0), 0, Sink::Store(targets[1].region()));
        world.send(1, (0, 0), 0, source.region());
        world.send(2, (0, 0), 0, source.region());
        world.run(&[first]).unwrap();
        assert_eq!(world.now, Time(5_080_000));
        world.run(&[second]).unwrap();
        assert_eq!(world.now, Time(5_160_000));
    }

    #[test]
    fn both_directions_are_used_at_once() {
        let mut world = World::new(SimNetwork::new(2, LINKS));
        let (source, targets) = (pattern(1000, 1), [Owned::zeroed(1000), Owned::zeroed(1000)]);
        let first = world.recv(0, (1, 0), 0, Sink::Store(targets[0].region()));
        let second = world.recv(1, (0, 0), 0, Sink::Store(targets[1].region()));
        world.send(0, (1, 0), 0, source.region());
        world.send(1, (0, 0), 0, source.region());
        world.run(&[first, second]).unwrap();
        assert_eq!(world.now, Time(5_080_000));
    }

    #[test]
    fn only_a_rendezvous_waits_for_the_receive() {
        for (links, expected_ps) in [(LINKS, 9_000_000), (RENDEZVOUS, 9_000_000 + 5_080_000)] {
            let mut world = World::new(SimNetwork::new(2, links));
            let (source, target) = (pattern(1000, 1), Owned::zeroed(1000));
            world.send(0, (1, 0), 0, source.region());
            poll_at(&mut world, 9_000_000);
            let recv = world.recv(1, (0, 0), 0, Sink::Store(target.region()));
            world.run(&[recv]).unwrap();
            assert_eq!(world.now, Time(expected_ps), "{:?}", links.sending);
        }
    }

    #[test]
    fn a_ring_reduce_scatter_takes_the_time_of_the_closed_form() {
        // The slow-node paper without a slow node: N - 1 steps of transfer and 3 µs of reduction.
        const REDUCE_PS: u128 = 3_000_000;
        for (world_size, expected_ps) in [(4, 25_966_080), (8, 60_587_520)] {
            let mut world = World::new(SimNetwork::new(world_size, LINKS));
            let (source, target) = (pattern(8192, 1), Owned::zeroed(8192));
            for step in 0..world_size as u32 - 1 {
                let ranks = 0..world_size;
                let receives: Vec<_> = ranks
                    .map(|rank| {
                        let next = (rank + 1) % world_size;
                        world.send(rank, (next, 0), step, source.region());
                        world.recv(next, (rank, 0), step, Sink::Store(target.region()))
                    })
                    .collect();
                world.run(&receives).unwrap();
                let reduced = world.now.0 + REDUCE_PS;
                poll_at(&mut world, reduced);
            }
            assert_eq!(world.now, Time(expected_ps), "{world_size} ranks");
        }
    }
}
