//! Shared memory to the ranks of this host and a network to the others, as one transport.
//!
//! Only waiting differs between the two: a futex cannot be waited for together with descriptors. A
//! rank that has both kinds of peers sleeps on the network's descriptors and on its bell, which the
//! peers of its host ring (see `bell`).

use std::time::Duration;

use super::shm::Shm;
use super::{Head, Header, Post, Posted, Sink, StreamId, Term, Ticket, Time, Transport, Waker};
use crate::error::Result;
use crate::memory::{BufferHandle, Hold, PeerMemory, Region};

/// Maximum sleep of a rank without a bell, which notices peers of its host only afterwards. Hosts
/// with more ranks than can have bells have none.
const BLOCK_WITHOUT_BELL_MAX: Duration = Duration::from_micros(200);

/// A transport over shared memory and a network together, for a communicator on several hosts, some
/// of which have several ranks.
pub struct Routes<N> {
    shm: Shm,
    network: N,
    /// Number on the segment of each rank of this host.
    local: Vec<Option<usize>>,
    /// Rank of each number on the segment.
    ranks: Vec<usize>,
}

impl<N: Transport> Routes<N> {
    /// Combines two transports. `local` has each rank's number on the segment, for ranks of this
    /// host.
    pub fn new(shm: Shm, network: N, local: Vec<Option<usize>>) -> Routes<N> {
        let mut ranks = vec![0; local.iter().flatten().count()];
        for (rank, index) in local.iter().enumerate() {
            if let Some(index) = index {
                ranks[*index] = rank;
            }
        }
        Routes {
            shm,
            network,
            local,
            ranks,
        }
    }

    /// Calls `f` with the transport and the stream there that lead to `stream.peer`. Errors of the
    /// shared memory name ranks instead of numbers on the segment.
    fn on_route<R>(
        &mut self,
        stream: StreamId,
        f: impl FnOnce(&mut dyn Transport, StreamId) -> Result<R>,
    ) -> Result<R> {
        match self.local[stream.peer] {
            Some(peer) => f(&mut self.shm, StreamId { peer, ..stream })
                .map_err(|error| error.renumbered(&self.ranks)),
            None => f(&mut self.network, stream),
        }
    }
}

impl<N: Transport> Transport for Routes<N> {
    fn post_send(&mut self, Post(stream, ticket, header): Post, payload: Region) -> Result<Posted> {
        self.on_route(stream, |transport, stream| {
            transport.post_send(Post(stream, ticket, header), payload)
        })
    }

    fn post_lent(
        &mut self,
        Post(stream, ticket, header): Post,
        payload: Region,
        place: BufferHandle,
    ) -> Result<Posted> {
        self.on_route(stream, |transport, stream| {
            transport.post_lent(Post(stream, ticket, header), payload, place)
        })
    }

    fn is_readable(&self, memory: Region) -> bool {
        self.shm.is_readable(memory)
    }

    fn post_readable(
        &mut self,
        Post(stream, ticket, header): Post,
        payload: Region,
    ) -> Result<Posted> {
        self.on_route(stream, |transport, stream| {
            transport.post_readable(Post(stream, ticket, header), payload)
        })
    }

    fn lent_bytes_min(&self) -> Option<usize> {
        self.shm.lent_bytes_min()
    }

    #[cfg(test)]
    fn messages_lent(&self) -> u64 {
        self.shm.messages_lent()
    }

    fn set_peer_memory(&mut self, memory: PeerMemory) {
        self.shm.set_peer_memory(memory.renumbered(&self.ranks));
    }

    fn can_read_peers(&mut self) -> bool {
        self.shm.can_read_peers()
    }

    fn hold(&mut self, memory: Region, term: Term) -> Option<Hold> {
        self.network.hold(memory, term)
    }

    fn post_recv(&mut self, Post(stream, ticket, header): Post, sink: Sink) -> Result<Posted> {
        self.on_route(stream, |transport, stream| {
            transport.post_recv(Post(stream, ticket, header), sink)
        })
    }

    fn listen(&mut self, stream: StreamId, is_wanted: bool) -> Result<()> {
        self.on_route(stream, |transport, stream| {
            transport.listen(stream, is_wanted)
        })
    }

    fn head(&mut self, stream: StreamId) -> Result<Head> {
        self.on_route(stream, |transport, stream| transport.head(stream))
    }

    fn unexpected(&mut self, found: &mut Vec<(StreamId, Header)>) -> Result<()> {
        let first = found.len();
        let looked = self.shm.unexpected(found);
        looked.map_err(|error| error.renumbered(&self.ranks))?;
        for (stream, _) in &mut found[first..] {
            stream.peer = self.ranks[stream.peer];
        }
        self.network.unexpected(found)
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Ticket>) -> Result<()> {
        self.shm
            .poll(now, done)
            .map_err(|error| error.renumbered(&self.ranks))?;
        self.network.poll(now, done)
    }

    fn block(&mut self, timeout: Duration) -> Result<()> {
        if self.shm.bell().is_none() {
            return self.network.block(timeout.min(BLOCK_WITHOUT_BELL_MAX));
        }
        if !self.shm.announce_sleep() {
            return Ok(());
        }
        let slept = self.network.block(timeout);
        self.shm.end_sleep();
        slept
    }

    fn is_departure_final(&self, peer: usize) -> bool {
        self.local[peer].is_some()
    }

    fn withdraw(&mut self) {
        self.shm.withdraw();
        self.network.withdraw();
    }

    fn waker(&self) -> Waker {
        self.network.waker()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::transport::bell::Bells;
    use crate::transport::shm::{Segment, SegmentShape};
    use crate::transport::suite;
    use crate::transport::tcp::{Sockets, Tcp, TcpOptions, tests::mesh};

    fn connected(rank: usize, sockets: Sockets, shm: &Shm) -> Tcp {
        let options = TcpOptions {
            bell: shm.bell().cloned(),
            ..TcpOptions::default()
        };
        Tcp::new(rank, sockets, options).expect("sockets")
    }

    /// Returns ranks that alternate between two hosts. With two ranks, each has a host to itself.
    pub(crate) fn ranks(world_size: usize) -> Vec<Routes<Tcp>> {
        let hosts: Vec<usize> = (0..world_size).map(|rank| rank % 2).collect();
        ranks_on(&hosts)
    }

    /// Returns ranks on these hosts.
    pub(crate) fn ranks_on(hosts: &[usize]) -> Vec<Routes<Tcp>> {
        with_bells(hosts, |ranks| Bells::new(ranks).expect("bells"))
    }

    fn with_bells(hosts: &[usize], bells: impl Fn(usize) -> Bells) -> Vec<Routes<Tcp>> {
        let place = |rank: usize| hosts[..rank].iter().filter(|h| **h == hosts[rank]).count();
        let most = hosts.iter().max().expect("a rank");
        let segments: Vec<_> = (0..=*most)
            .map(|host| {
                let ranks = hosts.iter().filter(|other| **other == host).count();
                let shape = SegmentShape::new(ranks, suite::CHANNELS, 8 << 20);
                let segment = Segment::create(shape, bells(ranks));
                segment.expect("shared memory").0
            })
            .collect();
        let sockets = mesh(hosts.len(), 1).into_iter().enumerate();
        sockets
            .map(|(rank, sockets)| {
                let segment = segments[hosts[rank]].clone();
                let shm = Shm::new(segment, place(rank), false).lending_from(1);
                let tcp = connected(rank, sockets, &shm);
                let number = |peer: usize| (hosts[peer] == hosts[rank]).then(|| place(peer));
                Routes::new(shm, tcp, (0..hosts.len()).map(number).collect())
            })
            .collect()
    }

    /// Returns ranks that are all on one host.
    fn neighbours(world_size: usize) -> Vec<Routes<Tcp>> {
        let shape = SegmentShape::new(world_size, suite::CHANNELS, 8 << 20);
        let bells = Bells::new(world_size).expect("bells");
        let (segment, _fd) = Segment::create(shape, bells).expect("shared memory");
        let sockets = mesh(world_size, 1).into_iter().enumerate();
        sockets
            .map(|(rank, sockets)| {
                let shm = Shm::new(segment.clone(), rank, false);
                let tcp = connected(rank, sockets, &shm);
                Routes::new(shm, tcp, (0..world_size).map(Some).collect())
            })
            .collect()
    }

    suite::transport_tests!(ranks);
    suite::transport_tests!(ranks; an_unexpected_message_is_seen_and_stays,);

    /// Ranks without bells, which sleep only briefly, as on hosts with too many ranks.
    mod without_bells {
        use super::*;

        fn napping(world_size: usize) -> Vec<Routes<Tcp>> {
            let hosts: Vec<usize> = (0..world_size).map(|rank| rank % 2).collect();
            with_bells(&hosts, |_| Bells::default())
        }

        suite::transport_tests!(napping);
    }

    mod on_one_host {
        use super::{neighbours, suite};
        suite::transport_tests!(neighbours);
    }
}
