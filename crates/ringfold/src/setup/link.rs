//! The second stage of set-up: shared memory within a host, a network to the other ranks.

use std::iter;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::attempt::Attempt;
use super::discover::Discovered;
use super::fabric;
use super::offer::{Division, OfferedMemory};
use super::peer_info::{self, PeerInfo};
use super::placement::Placement;
use super::rails::{self, Bundle};
use crate::communicator::group::RankGroup;
use crate::communicator::membership::Depart;
use crate::control::fd::{Handover, HandoverFailure, ReceivedDescriptors};
use crate::control::mesh::{Mesh, MeshListener, MeshPeer};
use crate::error::{Error, Result};
use crate::transport::Transport;
use crate::transport::bell::{Bell, Bells};
use crate::transport::rdma::Rdma;
use crate::transport::routes::Routes;
use crate::transport::shm::{Segment, Shm};
use crate::transport::tcp::{Tcp, TcpOptions};

/// A rank that is linked to every other one.
pub(super) struct Linked<'a> {
    pub attempt: &'a Attempt<'a>,
    pub placement: Placement,
    pub links: RankLinks,
}

impl<'a> Discovered<'a> {
    /// Passes or fetches the shared memory, and connects to the ranks that do not share it.
    pub fn link(self) -> Result<Linked<'a>> {
        let Discovered {
            attempt,
            peers,
            division,
            offer,
            placement,
        } = self;
        let segment = share_memory(attempt, &division, offer.memory, &peers)?;
        let bell = segment.as_ref();
        let bell = bell.and_then(|segment| segment.bells().of(division.place).cloned());
        let cores = placement.spare_cores();
        let rails = fabric::rails(&peers);
        let rdma = match offer.fabric.filter(|_| rails > 0) {
            Some(fabric) => {
                fabric.connect(attempt, &division.remote, &peers, (rails, bell.clone()))?
            }
            None => None,
        };
        let rails = if rdma.is_some() { rails } else { 0 };
        let channels_max = peer_info::channels_max(&peers, rails);
        let (network, rate_mbps) = match rdma {
            Some(rdma) => (
                Some(NetworkTransport::Rdma(rdma)),
                fabric::rate_mbps(&peers, rails),
            ),
            None => {
                let bundle = |rank: &usize| (*rank, bundle(&attempt.group, *rank, &peers));
                let bundles: Vec<(usize, Bundle)> = division.remote.iter().map(bundle).collect();
                let tcp = connect(
                    attempt,
                    (&bundles, channels_max),
                    offer.mesh,
                    &peers,
                    (bell, cores),
                )?;
                (tcp.map(NetworkTransport::Tcp), rails::rate_mbps(&bundles))
            }
        };
        Ok(Linked {
            attempt,
            placement,
            links: RankLinks {
                division,
                segment,
                network,
                rate_mbps,
                channels_max,
            },
        })
    }
}

/// Passes the memory to the members, or fetches it from the leader.
fn share_memory(
    attempt: &Attempt<'_>,
    division: &Division,
    memory: Option<OfferedMemory>,
    peers: &[PeerInfo],
) -> Result<Option<Arc<Segment>>> {
    let [leader, members @ ..] = division.sharing.as_slice() else {
        return Ok(None);
    };
    if members.is_empty() {
        return Ok(None);
    }
    let group = &attempt.group;
    let handover = Handover {
        communicator: group.id,
        world_size: group.world_ranks.len(),
        leader: *leader,
        secret: group.session.secret(),
    };
    let segment = match memory {
        Some(memory) => {
            let bells = memory.segment.bells().as_fds();
            let fds: Vec<_> = iter::once(memory.fd.as_fd()).chain(bells).collect();
            let served = attempt
                .within_limit(|limit| handover.serve(&memory.listener, &fds, members, limit));
            served.map_err(HandoverFailure::into_error)?;
            memory.segment
        }
        None => {
            let name = peers[*leader].memory.as_ref().ok_or_else(|| {
                Error::Bootstrap(format!(
                    "rank {leader} offers no shared memory; set RINGFOLD_TRANSPORT to the same \
                     value on all ranks"
                ))
            })?;
            let fetched = attempt.within_limit(|limit| handover.fetch(name, group.rank, limit));
            let ReceivedDescriptors { memory, bells } =
                fetched.map_err(HandoverFailure::into_error)?;
            let leader = &peers[*leader];
            let shape = division.shape(group, leader.channels_max, leader.ports.len());
            Segment::open(memory, shape, Bells::from_fds(bells))?
        }
    };
    segment.populate(division.place);
    Ok(Some(segment))
}

/// Connects to the ranks of `bundles` by TCP, with streams for `channels_max` channels; `bell` also
/// wakes this rank, which has `cores` spare cores.
fn connect(
    attempt: &Attempt<'_>,
    (bundles, channels_max): (&[(usize, Bundle)], usize),
    listener: Option<MeshListener>,
    peers: &[PeerInfo],
    (bell, cores): (Option<Bell>, usize),
) -> Result<Option<Tcp>> {
    let Some(listener) = listener else {
        return Ok(None);
    };
    let group = &attempt.group;
    let addresses = |rank: usize| {
        let endpoints = peers[rank].endpoints.iter();
        endpoints.map(|endpoint| endpoint.address).collect()
    };
    let peer = |(rank, bundle): &(usize, Bundle)| MeshPeer {
        rank: *rank,
        addresses: addresses(*rank),
        shares_loopback: group.shares_loopback(*rank),
        sockets: bundle.sockets,
        rails: bundle.rails.clone(),
    };
    let peers: Vec<MeshPeer> = bundles.iter().map(peer).collect();
    let mesh = Mesh {
        communicator: group.id,
        rank: group.rank,
        world_size: group.world_ranks.len(),
        channels: group.settings.streams(channels_max),
        secret: group.session.secret(),
        peers: &peers,
    };
    let sockets = attempt.within_limit(|limit| mesh.connect(listener, limit))?;
    let threads = rails::threads(bundles, cores);
    rails::log(bundles, group.settings.sockets.is_some(), threads);
    let options = TcpOptions {
        silence: group.session.silence(),
        bell,
        threads,
        ..TcpOptions::default()
    };
    Tcp::new(group.rank, sockets, options).map(Some)
}

/// Returns the sockets and rails between this rank and rank `peer`.
fn bundle(group: &RankGroup, peer: usize, peers: &[PeerInfo]) -> Bundle {
    let own = &peers[group.rank];
    if group.shares_loopback(peer) {
        return Bundle::on_one_host(own);
    }
    match group.rank < peer {
        true => Bundle::between(own, &peers[peer]),
        false => Bundle::between(&peers[peer], own),
    }
}

/// The links of a rank to the others.
pub(super) struct RankLinks {
    division: Division,
    segment: Option<Arc<Segment>>,
    network: Option<NetworkTransport>,
    rate_mbps: Option<u32>,
    channels_max: usize,
}

/// The network to the ranks that share no memory with this one.
enum NetworkTransport {
    Tcp(Tcp),
    Rdma(Rdma),
}

impl RankLinks {
    /// Returns the maximum number of channels of calls over messages.
    pub fn channels_max(&self) -> usize {
        self.channels_max
    }

    /// Returns the rate of the links to other ranks in Mbit/s, if known.
    pub fn rate_mbps(&self) -> Option<u32> {
        self.rate_mbps
    }

    /// Whether the network to other ranks is RDMA.
    pub fn is_rdma(&self) -> bool {
        matches!(self.network, Some(NetworkTransport::Rdma(_)))
    }

    /// Whether all ranks share memory.
    pub fn is_shared(&self) -> bool {
        self.network.is_none()
    }

    /// Converts the links to a transport, for a rank among ranks in `domains` domains, which
    /// outnumber their cores if `is_oversubscribed`. Also returns its name, and a callback that
    /// marks in shared memory that this rank leaves cleanly.
    pub fn into_transport(
        self,
        is_oversubscribed: bool,
        domains: usize,
    ) -> Result<(Box<dyn Transport>, &'static str, Option<Depart>)> {
        let own = self.division.place;
        let shm = self.segment.as_ref();
        let shm = shm.map(|segment| {
            let shm = Shm::new(segment.clone(), own, is_oversubscribed);
            shm.in_domains(domains)
        });
        let depart = self.segment.as_ref().map(|segment| {
            let segment = Arc::downgrade(segment);
            let depart = move || segment.upgrade().map_or((), |segment| segment.depart(own));
            Box::new(depart) as Depart
        });
        let sharing = self.division.sharing;
        let ranks = sharing.len() + self.division.remote.len();
        let number = |rank| sharing.iter().position(|sharer| *sharer == rank);
        let local = || (0..ranks).map(number).collect();
        let (transport, name): (Box<dyn Transport>, _) = match (shm, self.network) {
            (Some(shm), None) => (Box::new(shm), "shm"),
            (None, Some(NetworkTransport::Tcp(tcp))) => (Box::new(tcp), "tcp"),
            (None, Some(NetworkTransport::Rdma(rdma))) => (Box::new(rdma), "rdma"),
            (Some(shm), Some(NetworkTransport::Tcp(tcp))) => {
                (Box::new(Routes::new(shm, tcp, local())), "shm+tcp")
            }
            (Some(shm), Some(NetworkTransport::Rdma(rdma))) => {
                (Box::new(Routes::new(shm, rdma, local())), "shm+rdma")
            }
            // With other ranks, there is memory or a network.
            (None, None) => {
                let alone = Shm::threads(1, 1, 1).next().ok_or(Error::Closed)?;
                (Box::new(alone), "self")
            }
        };
        Ok((transport, name, depart))
    }
}
