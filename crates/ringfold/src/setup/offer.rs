//! Resources that a rank opens for the others before it knows them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nix::sys::resource::Resource;

use super::fabric::Fabric;
use super::peer_info::endpoint::Endpoint;
use super::placement::ROOT;

use crate::communicator::group::RankGroup;
use crate::config::TransportChoice;
use crate::control::fd::{FdListener, ListenerName};
use crate::control::mesh::MeshListener;
use crate::error::{Error, Result, limit_of};
use crate::topology::interface_choice::InterfaceChoice;
use crate::topology::interfaces::{self, Candidates, Interface};
use crate::transport::bell::Bells;
use crate::transport::shm::{Segment, SegmentShape};
use crate::transport::tcp::SOCKETS_MAX;
use crate::tune::channels;

/// The division of a group's ranks, as this rank sees it.
pub(super) struct Division {
    /// Ranks that share memory with this one, including itself.
    pub sharing: Vec<usize>,
    /// Position of this rank in `sharing`, which is its number in the segment.
    pub place: usize,
    /// Ranks that are reached over a network, TCP or RDMA.
    pub remote: Vec<usize>,
    /// Whether some remote ranks are in this network namespace.
    is_loopback_needed: bool,
    /// Whether all remote ranks are in this network namespace.
    is_loopback_enough: bool,
}

impl Division {
    pub fn new(group: &RankGroup) -> Division {
        let is_here = |rank: &usize| group.shares_loopback(*rank);
        let shares = |rank: &usize| group.shares_memory(*rank);
        let (sharing, remote): (Vec<_>, Vec<_>) = (0..group.world_ranks.len()).partition(shares);
        Division {
            place: sharing.partition_point(|sharer| *sharer < group.rank),
            is_loopback_needed: remote.iter().any(is_here),
            is_loopback_enough: remote.iter().all(is_here),
            sharing,
            remote,
        }
    }

    /// Returns the shape of the shared memory. The first rank that shares it has announced its
    /// configured maximum of channels, `told`, and its number of RDMA `ports`.
    pub fn shape(&self, group: &RankGroup, told: Option<usize>, ports: usize) -> SegmentShape {
        let channels_max = told.unwrap_or_else(|| channels::of_rails(ports));
        let streams = group.settings.streams(channels_max);
        SegmentShape::new(self.sharing.len(), streams, group.settings.shm_bytes)
    }
}

/// The resources that a rank has open before it knows the others.
pub(super) struct Offer {
    /// Devices for RDMA.
    pub fabric: Option<Fabric>,
    /// Listeners for ranks that connect by TCP.
    pub mesh: Option<MeshListener>,
    /// Addresses of the listeners, with their links.
    pub endpoints: Vec<Endpoint>,
    /// Memory that this rank, as the first of its host, passes to the others.
    pub memory: Option<OfferedMemory>,
}

/// Shared memory, and the listener for passing it.
pub(super) struct OfferedMemory {
    pub segment: Arc<Segment>,
    pub fd: OwnedFd,
    pub listener: FdListener,
}

impl Offer {
    pub fn new(group: &RankGroup, division: &Division) -> Result<Offer> {
        let (mesh, endpoints) = listen(group, division)?.unzip();
        let fabric = Fabric::offer(group, &division.remote)?;
        let ports = fabric.as_ref().map_or(0, |fabric| fabric.ports().len());
        Ok(Offer {
            memory: offer_memory(group, division, ports)?,
            fabric,
            mesh,
            endpoints: endpoints.unwrap_or_default(),
        })
    }

    /// Returns the name of the socket at which the memory is passed.
    pub fn memory_name(&self) -> Option<ListenerName> {
        let memory = self.memory.as_ref()?;
        Some(memory.listener.name())
    }
}

/// Returns the maximum number of sockets of a channel with which this process' connections use half
/// of its descriptors.
pub(super) fn sockets_max(group: &RankGroup, division: &Division) -> usize {
    let limit = limit_of(Resource::RLIMIT_NOFILE).unwrap_or(u64::MAX);
    let channels_max = group.settings.channels_max.unwrap_or(1);
    let streams = group.settings.streams(channels_max) * division.remote.len().max(1);
    let each = limit / 2 / streams as u64;
    each.clamp(1, SOCKETS_MAX as u64) as usize
}

/// Opens a listener for the ranks that connect by TCP; returns its endpoints, too.
fn listen(group: &RankGroup, division: &Division) -> Result<Option<(MeshListener, Vec<Endpoint>)>> {
    if division.remote.is_empty() || group.settings.transport == TransportChoice::Rdma {
        return Ok(None);
    }
    let choice = group.settings.socket_ifname.as_ref();
    let secret = group.session.secret();
    let congestion = group.settings.tcp_congestion.decide()?;
    if let Some(name) = congestion.first() {
        log::info!(
            target: "ringfold::init",
            "TCP data uses congestion control {name} (RINGFOLD_TCP_CONGESTION)"
        );
    }
    let bind = |candidates: &Candidates| {
        let mesh = MeshListener::bind(&candidates.addresses(), secret, congestion.clone())?;
        let endpoints = Endpoint::list(Path::new(ROOT), candidates, mesh.addresses());
        Ok::<_, Error>((mesh, endpoints))
    };
    if division.is_loopback_enough {
        log::debug!(
            target: "ringfold::init",
            "TCP data uses the loopback: all remote ranks are on this host"
        );
        let bound = bind(&loopback(Ipv4Addr::LOCALHOST.into()));
        // An IPv6-only host has only the other address.
        let other = loopback(Ipv6Addr::LOCALHOST.into());
        let bound = bound.or_else(|error| bind(&other).map_err(|_| error));
        return bound.map(Some);
    }
    let candidates = interfaces::candidates(choice, division.is_loopback_needed)?;
    let why = choice.map(InterfaceChoice::to_string);
    let why = why.unwrap_or_else(|| "all interfaces that are up".into());
    let addresses = candidates.addresses();
    log::info!(target: "ringfold::init", "addresses for TCP data: {addresses:?} ({why})");
    bind(&candidates).map(Some)
}

/// Returns the loopback interface with this address as the only candidate.
fn loopback(address: IpAddr) -> Candidates {
    Candidates {
        interfaces: vec![Interface {
            name: "lo".into(),
            address,
            prefix: if address.is_ipv4() { 8 } else { 128 },
            is_loopback: true,
        }],
        are_named: false,
    }
}

/// Creates the shared memory, if this rank is the first of several that share it.
fn offer_memory(
    group: &RankGroup,
    division: &Division,
    ports: usize,
) -> Result<Option<OfferedMemory>> {
    if division.sharing.len() < 2 || division.place != 0 {
        return Ok(None);
    }
    // Ranks with both local and remote peers sleep on descriptors.
    let bells = match division.remote.is_empty() {
        true => Bells::default(),
        false => Bells::new(division.sharing.len())?,
    };
    let (segment, fd) = Segment::create(
        division.shape(group, group.settings.channels_max, ports),
        bells,
    )?;
    Ok(Some(OfferedMemory {
        segment,
        fd,
        listener: FdListener::bind()?,
    }))
}
