//! What a rank opens for the others before it knows them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nix::sys::resource::Resource;

use super::endpoint::Endpoint;
use super::fabric::Fabric;
use super::placement::ROOT;

use crate::communicator::group::Group;
use crate::config::TransportChoice;
use crate::control::fd::FdListener;
use crate::control::mesh::MeshListener;
use crate::error::{Error, Result, limit_of};
use crate::topology::interfaces::{self, Candidates, Interface};
use crate::transport::bell::Bells;
use crate::transport::shm::{Segment, Shape};
use crate::transport::tcp::SOCKETS_MAX;
use crate::tune::bounds::Bounds;

/// How the ranks of a group are divided, as this rank sees it.
pub(super) struct Division {
    /// The ranks that share memory with this one, itself among them; only itself where none do.
    pub sharing: Vec<usize>,
    /// This rank's place among them, which is its number on the segment.
    pub place: usize,
    /// The ranks that are reached by a network: TCP or RDMA.
    pub remote: Vec<usize>,
    /// Whether some of those are in this network namespace.
    is_loopback_needed: bool,
    /// Whether all of them are.
    is_loopback_enough: bool,
}

impl Division {
    pub fn new(group: &Group) -> Division {
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

    /// The shape of the memory that they share, of which the first one has said how many channels
    /// it was told and how many `ports` for RDMA it has.
    pub fn shape(&self, group: &Group, told: Option<Bounds>, ports: usize) -> Shape {
        let bounds = told.unwrap_or_else(|| Bounds::of_rails(ports));
        let channels = group.settings.streams(bounds);
        Shape::new(self.sharing.len(), channels, group.settings.shm_bytes)
    }
}

/// What a rank has open for the others before it knows them.
pub(super) struct Offer {
    /// The devices for RDMA.
    pub fabric: Option<Fabric>,
    /// Where ranks connect that come by TCP.
    pub mesh: Option<MeshListener>,
    /// The same with what is known of the links.
    pub endpoints: Vec<Endpoint>,
    /// Memory that this rank, the first of its host, hands to the others.
    pub memory: Option<OfferedMemory>,
}

/// Shared memory, and where it is handed out.
pub(super) struct OfferedMemory {
    pub segment: Arc<Segment>,
    pub fd: OwnedFd,
    pub listener: FdListener,
}

impl Offer {
    pub fn new(group: &Group, division: &Division) -> Result<Offer> {
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

    /// The name of the socket at which the memory is handed out.
    pub fn memory_name(&self) -> Option<String> {
        let memory = self.memory.as_ref()?;
        Some(memory.listener.name().to_owned())
    }
}

/// How many sockets a channel may have so that this process' connections take half of its
/// descriptors.
pub(super) fn sockets_max(group: &Group, division: &Division) -> u32 {
    let limit = limit_of(Resource::RLIMIT_NOFILE).unwrap_or(u64::MAX);
    let bounds = group.settings.channels.unwrap_or_default();
    let streams = group.settings.streams(bounds) * division.remote.len().max(1);
    let each = limit / 2 / streams as u64;
    each.clamp(1, SOCKETS_MAX as u64) as u32
}

/// Opens a listener for the ranks that come by TCP; where it is reached.
fn listen(group: &Group, division: &Division) -> Result<Option<(MeshListener, Vec<Endpoint>)>> {
    if division.remote.is_empty() || group.settings.transport == TransportChoice::Rdma {
        return Ok(None);
    }
    let choice = group.settings.socket_ifname.as_deref();
    let secret = group.session.secret();
    let congestion = group.settings.tcp_congestion.decide()?;
    if let Some(name) = congestion.first() {
        log::info!(
            target: "ringfold::init",
            "data by TCP uses {name} instead of the kernel's default congestion control; see \
             RINGFOLD_TCP_CONGESTION"
        );
    }
    let bind = |candidates: &Candidates| {
        let mesh = MeshListener::bind(&candidates.addresses(), secret, congestion.clone())?;
        let endpoints = Endpoint::list(Path::new(ROOT), candidates, mesh.addresses());
        Ok::<_, Error>((mesh, endpoints))
    };
    if division.is_loopback_enough {
        log::info!(
            target: "ringfold::init",
            "data by TCP comes by loopback: all these ranks are on this host"
        );
        let bound = bind(&loopback(Ipv4Addr::LOCALHOST.into()));
        // A host that speaks IPv6 only has the other.
        let other = loopback(Ipv6Addr::LOCALHOST.into());
        let bound = bound.or_else(|error| bind(&other).map_err(|_| error));
        return bound.map(Some);
    }
    let candidates = interfaces::candidates(choice, division.is_loopback_needed)?;
    let why = choice.unwrap_or("all interfaces that are up");
    let addresses = candidates.addresses();
    log::info!(target: "ringfold::init", "data by TCP may come to {addresses:?}: {why}");
    bind(&candidates).map(Some)
}

/// The loopback's address alone.
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

/// Makes the shared memory, if this rank is the first of several that share it.
fn offer_memory(group: &Group, division: &Division, ports: usize) -> Result<Option<OfferedMemory>> {
    if division.sharing.len() < 2 || division.place != 0 {
        return Ok(None);
    }
    // Ranks with peers of both kinds sleep on descriptors.
    let bells = match division.remote.is_empty() {
        true => Bells::default(),
        false => Bells::new(division.sharing.len())?,
    };
    let (segment, fd) =
        Segment::create(division.shape(group, group.settings.channels, ports), bells)?;
    Ok(Some(OfferedMemory {
        segment,
        fd,
        listener: FdListener::bind()?,
    }))
}
