//! The second stage: shared memory with the ranks of this host, connections to the others.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::attempt::Attempt;
use super::discover::Discovered;
use super::peer_info::PeerInfo;
use super::placement::Placement;
use crate::communicator::group::Group;
use crate::communicator::membership::Depart;
use crate::config::TransportChoice;
use crate::control::fd::{Failure, FdListener, Handover};
use crate::control::mesh::{Mesh, MeshListener, Peer};
use crate::error::{Error, Result};
use crate::topology::interfaces;
use crate::transport::Transport;
use crate::transport::local;
use crate::transport::routes::Routes;
use crate::transport::shm::{Segment, Shape, Shm};
use crate::transport::tcp::{Tcp, TcpOptions};

/// How the ranks of a group are divided, as this rank sees it.
pub(super) struct Division {
    /// The ranks that share memory with this one, itself among them; only itself where none do.
    sharing: Vec<usize>,
    /// This rank's place among them, which is its number on the segment.
    place: usize,
    /// The ranks that are reached by TCP.
    remote: Vec<usize>,
    /// Whether some of those are on this host.
    is_loopback_needed: bool,
    /// Whether all of them are.
    is_loopback_enough: bool,
}

impl Division {
    pub fn new(group: &Group) -> Division {
        let by_tcp_only = group.settings.transport == TransportChoice::Tcp;
        let is_here = |rank: &usize| group.is_same_host(group.rank, *rank);
        let shares = |rank: &usize| *rank == group.rank || (!by_tcp_only && is_here(rank));
        let (sharing, remote): (Vec<_>, Vec<_>) = (0..group.world_ranks.len()).partition(shares);
        Division {
            place: sharing.partition_point(|sharer| *sharer < group.rank),
            is_loopback_needed: remote.iter().any(is_here),
            is_loopback_enough: remote.iter().all(is_here),
            sharing,
            remote,
        }
    }

    fn shape(&self, group: &Group) -> Shape {
        let channels = group.settings.streams();
        Shape::new(self.sharing.len(), channels, group.settings.shm_bytes)
    }
}

/// What a rank has open for the others before it knows them.
pub(super) struct Offer {
    /// Where ranks connect that come by TCP.
    mesh: Option<MeshListener>,
    /// Memory that this rank, the first of its host, hands to the others.
    memory: Option<OfferedMemory>,
}

struct OfferedMemory {
    segment: Arc<Segment>,
    fd: OwnedFd,
    listener: FdListener,
}

impl Offer {
    pub fn new(group: &Group, division: &Division) -> Result<Offer> {
        Ok(Offer {
            mesh: listen(group, division)?,
            memory: offer_memory(group, division)?,
        })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        let mesh = self.mesh.as_ref();
        mesh.map_or(Vec::new(), |mesh| mesh.addresses().to_vec())
    }

    /// The name of the socket at which the memory is handed out.
    pub fn memory_name(&self) -> Option<String> {
        let memory = self.memory.as_ref()?;
        Some(memory.listener.name().to_owned())
    }
}

/// Opens a listener for the ranks that come by TCP.
fn listen(group: &Group, division: &Division) -> Result<Option<MeshListener>> {
    if division.remote.is_empty() {
        return Ok(None);
    }
    let choice = group.settings.socket_ifname.as_deref();
    let secret = group.session.secret();
    if division.is_loopback_enough {
        log::info!(
            target: "ringfold::init",
            "data by TCP comes by loopback: all these ranks are on this host"
        );
        let bound = MeshListener::bind(&[Ipv4Addr::LOCALHOST.into()], secret);
        // A host that speaks IPv6 only has the other.
        let bound = bound.or_else(|error| {
            MeshListener::bind(&[Ipv6Addr::LOCALHOST.into()], secret).map_err(|_| error)
        });
        return bound.map(Some);
    }
    let candidates = interfaces::candidates(choice, division.is_loopback_needed)?;
    let why = choice.unwrap_or("all interfaces that are up");
    log::info!(target: "ringfold::init", "data by TCP may come to {candidates:?}: {why}");
    MeshListener::bind(&candidates, secret).map(Some)
}

/// Makes the shared memory, if this rank is the first of several that share it.
fn offer_memory(group: &Group, division: &Division) -> Result<Option<OfferedMemory>> {
    if division.sharing.len() < 2 || division.place != 0 {
        return Ok(None);
    }
    let (segment, fd) = Segment::create(division.shape(group))?;
    Ok(Some(OfferedMemory {
        segment,
        fd,
        listener: FdListener::bind()?,
    }))
}

/// A rank with a link to every other one.
pub(super) struct Linked<'a> {
    pub attempt: &'a Attempt<'a>,
    pub placement: Placement,
    pub links: Links,
}

impl<'a> Discovered<'a> {
    /// Hands over or fetches the shared memory, and connects to the ranks of other hosts.
    pub fn link(self) -> Result<Linked<'a>> {
        let Discovered {
            attempt,
            peers,
            division,
            offer,
            placement,
        } = self;
        let segment = share_memory(attempt, &division, offer.memory, &peers)?;
        let tcp = connect(attempt, &division, offer.mesh, &peers)?;
        Ok(Linked {
            attempt,
            placement,
            links: Links {
                division,
                segment,
                tcp,
            },
        })
    }
}

/// Hands the memory over, or fetches it.
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
    let (group, deadline) = (&attempt.group, attempt.deadline);
    let verdict = || attempt.verdict();
    let handover = Handover {
        communicator: group.id,
        world_size: group.world_ranks.len(),
        leader: *leader,
        secret: group.session.secret(),
    };
    let segment = match memory {
        Some(memory) => {
            let fd = memory.fd.as_fd();
            handover
                .serve(&memory.listener, fd, members, deadline, &verdict)
                .map_err(Failure::to_error)?;
            memory.segment
        }
        None => {
            let name = peers[*leader].memory.as_deref().ok_or_else(|| {
                Error::Bootstrap(format!(
                    "rank {leader} offers no shared memory; set RINGFOLD_TRANSPORT alike on all \
                     ranks"
                ))
            })?;
            let fetched = handover.fetch(name, group.rank, deadline, &verdict);
            Segment::open(fetched.map_err(Failure::to_error)?, division.shape(group))?
        }
    };
    segment.populate(division.place);
    Ok(Some(segment))
}

/// Connects to the ranks that are reached by TCP.
fn connect(
    attempt: &Attempt<'_>,
    division: &Division,
    listener: Option<MeshListener>,
    peers: &[PeerInfo],
) -> Result<Option<Tcp>> {
    let Some(listener) = listener else {
        return Ok(None);
    };
    let group = &attempt.group;
    let peer = |rank: &usize| Peer {
        rank: *rank,
        addresses: peers[*rank].addresses.clone(),
        is_same_host: group.is_same_host(group.rank, *rank),
    };
    let peers: Vec<Peer> = division.remote.iter().map(peer).collect();
    let mesh = Mesh {
        communicator: group.id,
        rank: group.rank,
        world_size: group.world_ranks.len(),
        channels: group.settings.streams(),
        secret: group.session.secret(),
        peers: &peers,
    };
    let sockets = mesh.connect(listener, attempt.deadline, &|| attempt.verdict())?;
    let options = TcpOptions {
        silence: group.session.silence(),
        ..TcpOptions::default()
    };
    Tcp::new(group.rank, sockets, options).map(Some)
}

/// What connects a rank with the others.
pub(super) struct Links {
    division: Division,
    segment: Option<Arc<Segment>>,
    tcp: Option<Tcp>,
}

impl Links {
    /// Whether all ranks share memory.
    pub fn is_shared(&self) -> bool {
        self.tcp.is_none()
    }

    /// The transport over the links of a rank whose host has `cores` cores, among ranks in `domains`
    /// domains; its name; and what says in shared memory that this rank leaves in good order.
    pub fn into_transport(
        self,
        cores: usize,
        domains: usize,
    ) -> Result<(Box<dyn Transport>, &'static str, Option<Depart>)> {
        let own = self.division.place;
        let shm = self.segment.as_ref();
        let shm = shm.map(|segment| Shm::new(segment.clone(), own, cores).in_domains(domains));
        let depart = self.segment;
        let depart = depart.map(|segment| Box::new(move || segment.depart(own)) as Depart);
        let (transport, name): (Box<dyn Transport>, _) = match (shm, self.tcp) {
            (Some(shm), None) => (Box::new(shm), "shm"),
            (None, Some(tcp)) => (Box::new(tcp), "tcp"),
            (Some(shm), Some(tcp)) => {
                let sharing = self.division.sharing;
                let ranks = sharing.len() + self.division.remote.len();
                let number = |rank| sharing.iter().position(|sharer| *sharer == rank);
                let local = (0..ranks).map(number).collect();
                (Box::new(Routes::new(shm, tcp, local)), "shm+tcp")
            }
            // Where there are other ranks, there is one of them.
            (None, None) => {
                let alone = local::local(1).pop().ok_or(Error::Closed)?;
                (Box::new(alone), "self")
            }
        };
        Ok((transport, name, depart))
    }
}
