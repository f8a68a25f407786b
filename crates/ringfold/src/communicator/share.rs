//! The links between the ranks of a group: who shares memory, who is reached by TCP, and the set-up of both.
//!
//! Each rank tells the others in a *card* where it can be met; what a card says is a claim, and whoever follows it proves
//! who it is by a handshake under the job's secret.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::group::{Group, Verdict};
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
use crate::tune::channels::Bounds;

/// What connects a rank with the others.
pub struct Links {
    /// The transport over all of it.
    pub transport: Box<dyn Transport>,
    /// `shm`, `tcp`, `shm+tcp` or `self`.
    pub name: &'static str,
    /// Says in shared memory that this rank leaves in good order.
    pub depart: Option<Box<dyn Fn() + Send + Sync>>,
}

/// How the ranks of a group are divided, as this rank sees it.
struct Division {
    /// The ranks that share memory with this one, itself among them; only itself where none do.
    sharing: Vec<usize>,
    /// The ranks that are reached by TCP.
    remote: Vec<usize>,
    /// Whether some of those are on this host.
    is_loopback_needed: bool,
    /// Whether all of them are.
    is_loopback_enough: bool,
}

impl Division {
    fn new(group: &Group) -> Division {
        let by_tcp_only = group.settings.transport == TransportChoice::Tcp;
        let shares = |rank: &usize| {
            *rank == group.rank || (!by_tcp_only && group.is_same_host(group.rank, *rank))
        };
        let (sharing, remote): (Vec<_>, Vec<_>) = (0..group.world_ranks.len()).partition(shares);
        let is_here = |rank: &usize| group.is_same_host(group.rank, *rank);
        Division {
            is_loopback_needed: remote.iter().any(is_here),
            is_loopback_enough: remote.iter().all(is_here),
            sharing,
            remote,
        }
    }

    /// The number of this rank on the segment.
    fn own_number(&self, rank: usize) -> usize {
        self.sharing
            .iter()
            .take_while(|sharer| **sharer < rank)
            .count()
    }
}

/// Sets the links up; a verdict ends that early.
/// The ranks of this host have `cores` cores together, and sit in `domains` domains.
pub fn link(
    group: &Group,
    cores: usize,
    domains: usize,
    cancelled: Verdict<'_>,
    deadline: Instant,
) -> Result<Links> {
    let world_size = group.world_ranks.len();
    if world_size == 1 {
        let alone = local::local(1).pop().ok_or(Error::Closed)?;
        return Ok(Links {
            transport: Box::new(alone),
            name: "self",
            depart: None,
        });
    }
    let division = Division::new(group);
    let mesh = listen(group, &division)?;
    let memory = lead(group, &division)?;
    let card = Card {
        addresses: mesh
            .as_ref()
            .map_or(Vec::new(), |listener| listener.addresses().to_vec()),
        memory: memory
            .as_ref()
            .map(|memory| memory.listener.name().to_owned()),
        channels: group.settings.channels,
    };
    let cards = group.exchange("card", card.encode().as_bytes(), deadline, cancelled)?;
    let cards = cards
        .iter()
        .enumerate()
        .map(|(peer, blob)| Card::decode(peer, blob))
        .collect::<Result<Vec<_>>>()?;
    compare_channels(&cards)?;
    let segment = share_memory(group, &division, memory, &cards, deadline, cancelled)?;
    let tcp = connect(group, &division, mesh, &cards, deadline, cancelled)?;
    combine(group, &division, (cores, domains), segment, tcp)
}

/// All ranks have the same bounds, else some would wait for connections that the others never make.
fn compare_channels(cards: &[Card]) -> Result<()> {
    let first = cards[0].channels;
    let Some(peer) = cards.iter().position(|card| card.channels != first) else {
        return Ok(());
    };
    let other = cards[peer].channels;
    Err(Error::InvalidArgument(format!(
        "{first} on rank 0 and {other} on rank {peer}; set RINGFOLD_MIN_CHANNELS, RINGFOLD_MAX_CHANNELS and RINGFOLD_CHANNELS \
         alike on all ranks"
    )))
}

fn combine(
    group: &Group,
    division: &Division,
    (cores, domains): (usize, usize),
    segment: Option<Arc<Segment>>,
    tcp: Option<Tcp>,
) -> Result<Links> {
    let own = division.own_number(group.rank);
    let shm = segment
        .as_ref()
        .map(|segment| Shm::new(segment.clone(), own, cores).in_domains(domains));
    let depart =
        segment.map(|segment| Box::new(move || segment.depart(own)) as Box<dyn Fn() + Send + Sync>);
    let (transport, name): (Box<dyn Transport>, _) = match (shm, tcp) {
        (Some(shm), None) => (Box::new(shm), "shm"),
        (None, Some(tcp)) => (Box::new(tcp), "tcp"),
        (Some(shm), Some(tcp)) => {
            let number = |rank| division.sharing.iter().position(|sharer| *sharer == rank);
            let local = (0..group.world_ranks.len()).map(number).collect();
            (Box::new(Routes::new(shm, tcp, local)), "shm+tcp")
        }
        (None, None) => return Err(Error::Bootstrap("no transport between the ranks".into())),
    };
    Ok(Links {
        transport,
        name,
        depart,
    })
}

/// Opens a listener for the ranks that come by TCP.
fn listen(group: &Group, division: &Division) -> Result<Option<MeshListener>> {
    if division.remote.is_empty() {
        return Ok(None);
    }
    let choice = group.settings.socket_ifname.as_deref();
    let secret = group.session.secret();
    if division.is_loopback_enough {
        log::info!(target: "ringfold::init", "data by TCP comes by loopback: all these ranks are on this host");
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

/// Memory that this rank, the first of its host, hands to the others.
struct Memory {
    segment: Arc<Segment>,
    fd: OwnedFd,
    listener: FdListener,
}

fn shape(group: &Group, division: &Division) -> Shape {
    let channels = group.settings.streams();
    Shape::new(division.sharing.len(), channels, group.settings.shm_bytes)
}

/// Makes the shared memory, if that is this rank's part.
fn lead(group: &Group, division: &Division) -> Result<Option<Memory>> {
    if division.sharing.len() < 2 || division.sharing[0] != group.rank {
        return Ok(None);
    }
    let (segment, fd) = Segment::create(shape(group, division))?;
    Ok(Some(Memory {
        segment,
        fd,
        listener: FdListener::bind()?,
    }))
}

/// Hands the memory over, or fetches it.
fn share_memory(
    group: &Group,
    division: &Division,
    memory: Option<Memory>,
    cards: &[Card],
    deadline: Instant,
    cancelled: Verdict<'_>,
) -> Result<Option<Arc<Segment>>> {
    let [leader, members @ ..] = division.sharing.as_slice() else {
        return Ok(None);
    };
    if members.is_empty() {
        return Ok(None);
    }
    let handover = Handover {
        communicator: group.id,
        world_size: group.world_ranks.len(),
        leader: *leader,
        secret: group.session.secret(),
    };
    let segment = match memory {
        Some(memory) => {
            handover
                .serve(
                    &memory.listener,
                    memory.fd.as_fd(),
                    members,
                    deadline,
                    cancelled,
                )
                .map_err(Failure::to_error)?;
            memory.segment
        }
        None => {
            let name = cards[*leader].memory.as_deref().ok_or_else(|| {
                Error::Bootstrap(format!("rank {leader} offers no shared memory; set RINGFOLD_TRANSPORT alike on all ranks"))
            })?;
            let fetched = handover.fetch(name, group.rank, deadline, cancelled);
            Segment::open(fetched.map_err(Failure::to_error)?, shape(group, division))?
        }
    };
    segment.populate(division.own_number(group.rank));
    Ok(Some(segment))
}

/// Connects to the ranks that are reached by TCP.
fn connect(
    group: &Group,
    division: &Division,
    listener: Option<MeshListener>,
    cards: &[Card],
    deadline: Instant,
    cancelled: Verdict<'_>,
) -> Result<Option<Tcp>> {
    let Some(listener) = listener else {
        return Ok(None);
    };
    let peer = |rank: &usize| Peer {
        rank: *rank,
        addresses: cards[*rank].addresses.clone(),
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
    let sockets = mesh.connect(listener, deadline, cancelled)?;
    let options = TcpOptions {
        silence: group.session.silence(),
        ..TcpOptions::default()
    };
    Tcp::new(group.rank, sockets, options).map(Some)
}

/// Where a rank can be met. As text, a line each: `address 10.0.0.1:4242`, `memory` and a socket's name,
/// `channels` and their bounds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Card {
    addresses: Vec<SocketAddr>,
    memory: Option<String>,
    channels: Bounds,
}

impl Card {
    fn encode(&self) -> String {
        let addresses = self
            .addresses
            .iter()
            .map(|address| format!("address {address}\n"));
        let channels = format!(
            "channels {} {}\n",
            self.channels.least(),
            self.channels.most()
        );
        addresses
            .chain(self.memory.iter().map(|name| format!("memory {name}\n")))
            .chain([channels])
            .collect()
    }

    fn decode(peer: usize, blob: &[u8]) -> Result<Card> {
        let nonsense = || Error::Corrupt {
            peer,
            what: "a card that means nothing".into(),
            site: None,
        };
        let text = std::str::from_utf8(blob).map_err(|_| nonsense())?;
        let mut card = Card::default();
        let mut channels = None;
        for line in text.lines() {
            match line.split_once(' ').ok_or_else(nonsense)? {
                ("address", address) => card
                    .addresses
                    .push(address.parse().map_err(|_| nonsense())?),
                ("memory", name) if name.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    card.memory = Some(name.to_owned());
                }
                ("channels", bounds) => {
                    channels = Some(Card::bounds(bounds).ok_or_else(nonsense)?);
                }
                _ => return Err(nonsense()),
            }
        }
        card.channels = channels.ok_or_else(nonsense)?;
        Ok(card)
    }

    fn bounds(text: &str) -> Option<Bounds> {
        let (least, most) = text.split_once(' ')?;
        Bounds::new(Some(least.parse().ok()?), Some(most.parse().ok()?)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_says_what_was_written_on_it() {
        let addresses = vec![
            "10.1.2.3:4".parse().expect("an address"),
            "[::1]:5".parse().expect("an address"),
        ];
        let card = Card {
            addresses,
            memory: Some("00ff".into()),
            channels: Bounds::new(Some(2), Some(8)).expect("bounds"),
        };
        assert_eq!(
            Card::decode(1, card.encode().as_bytes()).expect("a card"),
            card
        );
    }

    #[test]
    fn ranks_with_different_channels_are_told() {
        let card = |least, most| Card {
            channels: Bounds::new(Some(least), Some(most)).expect("bounds"),
            ..Card::default()
        };
        compare_channels(&[card(1, 2), card(1, 2)]).expect("the same");
        let error = compare_channels(&[card(1, 2), card(1, 2), card(1, 4)]).unwrap_err();
        let text = error.to_string();
        let due = "1 to 2 channels on rank 0 and 1 to 4 channels on rank 2";
        assert!(text.contains(due), "{text}");
    }

    #[test]
    fn a_card_of_nonsense_names_its_rank() {
        for text in [
            "address nowhere",
            "memory ../x",
            "channels 4",
            "channels 4 2",
            "channels 1 65",
            "memory 00ff",
            "what is this",
            "\u{0}",
        ] {
            let error = Card::decode(3, text.as_bytes()).unwrap_err();
            assert!(matches!(error, Error::Corrupt { peer: 3, .. }), "{text}");
        }
    }
}
