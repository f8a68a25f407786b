//! RDMA between the ranks: the ports that each offers, the rails of all, and the connections.

use crate::communicator::group::RankGroup;
use crate::communicator::settings::RdmaSettings;
use crate::config::TransportChoice;
use crate::error::{Error, Result};
use crate::transport::Transport as _;
use crate::transport::bell::Bell;
use crate::transport::rdma::{RailPort, Rdma, RdmaOptions, RegisterBytes, UnconnectedPairs};
use crate::verbs::{OpenedPort, Route, Verbs};

use super::attempt::Attempt;
use super::memory_costs::memory_costs;
use super::peer_info::fabric_port::{FabricPort, PORTS_MAX};
use super::peer_info::{self, PeerInfo};

/// The ports that this rank offers for RDMA.
pub(super) struct Fabric(Vec<OpenedPort>);

impl Fabric {
    /// Opens the configured ports, if there are `remote` ranks and the settings allow RDMA.
    pub fn offer(group: &RankGroup, remote: &[usize]) -> Result<Option<Fabric>> {
        let settings = &group.settings;
        if remote.is_empty() {
            return Ok(None);
        }
        let is_demanded = match settings.transport {
            TransportChoice::Rdma => true,
            TransportChoice::Auto if !settings.rdma.is_disabled => false,
            _ => return Ok(None),
        };
        match open(&settings.rdma) {
            Ok(opened) => Ok(Some(Fabric(opened))),
            Err(error) if is_demanded => Err(error),
            Err(error) => {
                log::info!(target: "ringfold::init", "no RDMA between hosts: {error}");
                Ok(None)
            }
        }
    }

    /// Returns the descriptions of the ports for the other ranks.
    pub fn ports(&self) -> Vec<FabricPort> {
        self.0.iter().map(FabricPort::of).collect()
    }

    /// Connects to the ranks `remote` over `rails` rails; `bell` also wakes this rank. Returns
    /// `None` on all ranks if the devices of some rank fail and RDMA is not demanded.
    pub fn connect(
        self,
        attempt: &Attempt<'_>,
        remote: &[usize],
        peers: &[PeerInfo],
        (rails, bell): (usize, Option<Bell>),
    ) -> Result<Option<Rdma>> {
        let group = &attempt.group;
        let own = group.rank;
        let is_demanded = group.settings.transport == TransportChoice::Rdma;
        let is_peer: Vec<bool> = (0..peers.len())
            .map(|peer| remote.contains(&peer))
            .collect();
        let streams = group
            .settings
            .streams(peer_info::channels_max(peers, rails));
        let prepared = self.prepare(group, &is_peer, (rails, streams));
        let pairs = prepared.as_ref().map(|prepared| {
            let of = |peer: usize| prepared.pairs(peer);
            (0..peers.len()).map(of).collect::<Vec<Vec<u32>>>()
        });
        let theirs = attempt.agree("queue-pair numbers", &pairs.unwrap_or_default())?;
        // A rank that is ready sends a list for each rank.
        let unready = theirs.iter().position(Vec::is_empty);
        let Some(prepared) = settled(prepared, unready, is_demanded)? else {
            return Ok(None);
        };
        let mut connected = prepared.connect(bell, |peer, channel, rail| {
            let pair = theirs[peer].get(own).and_then(|pairs| pairs.get(channel));
            let pair = *pair.ok_or_else(|| Error::corrupt(peer, "too few queue-pair numbers"))?;
            let (mine, other) = (&self.0[rail], &peers[peer].ports[rail]);
            Ok(Route {
                port: mine.port.number,
                gid_index: mine.gid_index,
                is_global: mine.is_global(),
                pair,
                lid: other.lid,
                gid: other.gid,
                mtu_bytes: mine.port.mtu_bytes.min(other.mtu_bytes),
            })
        });
        // No rank may send before the other end can receive.
        let are_connected = attempt.agree("queue pairs' state", &connected.is_ok())?;
        let unready = are_connected.iter().position(|is_ready| !is_ready);
        if let (Ok(rdma), Some(_)) = (&mut connected, unready) {
            // No peer waits for a goodbye.
            rdma.withdraw();
        }
        let rdma = settled(connected, unready, is_demanded)?;
        if rdma.is_some() {
            log(&self.0[..rails], remote);
        }
        Ok(rdma)
    }

    /// Creates queue pairs to the peers, `streams` to each.
    fn prepare(
        &self,
        group: &RankGroup,
        is_peer: &[bool],
        (rails, streams): (usize, usize),
    ) -> Result<UnconnectedPairs> {
        let port = |opened: &OpenedPort| RailPort {
            domain: opened.domain.clone(),
            port: opened.port.number,
        };
        let ports: Vec<RailPort> = self.0[..rails].iter().map(port).collect();
        let settings = &group.settings;
        let options = RdmaOptions {
            link: settings.rdma.link,
            register_bytes_min: register_bytes_min(&settings.rdma, &ports)?,
            ..RdmaOptions::default()
        };
        UnconnectedPairs::new(group.rank, is_peer, streams, &ports, options)
    }
}

/// Returns this rank's own result, unless the devices of a rank failed (`unready` is the first such
/// rank). Such a failure is an error if RDMA is demanded.
fn settled<T>(own: Result<T>, unready: Option<usize>, is_demanded: bool) -> Result<Option<T>> {
    let Some(rank) = unready else {
        return own.map(Some);
    };
    let error = own.err().unwrap_or_else(|| {
        Error::Bootstrap(format!(
            "transport rdma, but the devices of rank {rank} failed; see rank {rank}'s error"
        ))
    });
    match is_demanded {
        true => Err(error),
        false => {
            log::warn!(target: "ringfold::init", "no RDMA between hosts: {error}");
            Ok(None)
        }
    }
}

/// Returns the minimum bytes of a call whose memory is registered.
fn register_bytes_min(settings: &RdmaSettings, ports: &[RailPort]) -> Result<usize> {
    if let RegisterBytes::From(bytes) = settings.register_bytes {
        return Ok(bytes);
    }
    let mut bytes_min = 0;
    for port in ports {
        let costs = memory_costs(&port.domain)?;
        bytes_min = bytes_min.max(costs.register_bytes_min());
        log::info!(
            target: "ringfold::init",
            "{}: registering memory takes {:.1} us and {:.3} us a KiB, copying it {:.3} us a KiB; \
             {}",
            port.domain.device().name(),
            costs.register_us,
            costs.register_us_per_byte * 1024.0,
            costs.staging_us_per_byte * 1024.0,
            match costs.register_bytes_min() {
                usize::MAX => "calls copy".into(),
                bytes => format!("calls register from {bytes} bytes on"),
            }
        );
    }
    Ok(bytes_min)
}

/// Opens the configured ports.
fn open(settings: &RdmaSettings) -> Result<Vec<OpenedPort>> {
    let verbs = Verbs::open(settings.library.as_deref())?;
    verbs.open_ports(&settings.devices, settings.gid_index, PORTS_MAX)
}

/// Returns the number of rails: the leading ports by which all ranks reach each other; 0 if a rank
/// has no port.
pub(super) fn rails(peers: &[PeerInfo]) -> usize {
    let count = peers.iter().map(|peer| peer.ports.len()).min().unwrap_or(0);
    let first = &peers[0].ports;
    let is_common = |rail: &usize| {
        let mut others = peers.iter().map(|peer| &peer.ports[*rail]);
        others.all(|port| port.reaches(&first[*rail]))
    };
    (0..count).take_while(is_common).count()
}

/// Checks that the demanded RDMA connects all ranks.
pub(super) fn demand(peers: &[PeerInfo]) -> Result<()> {
    if rails(peers) > 0 {
        return Ok(());
    }
    let without = peers.iter().position(|peer| peer.ports.is_empty());
    Err(Error::Bootstrap(match without {
        Some(rank) => format!(
            "transport rdma, but rank {rank} offers no device; set RINGFOLD_TRANSPORT to the same \
             value on all ranks, or use transport auto"
        ),
        None => "transport rdma, but the ranks' devices are not on one fabric (InfiniBand and \
                 Ethernet, or several subnets); choose others by RINGFOLD_IB_HCA, or use transport \
                 auto"
            .into(),
    }))
}

/// Returns the rate of all rails in Mbit/s, if known: that of the slowest port, times `rails`.
pub(super) fn rate_mbps(peers: &[PeerInfo], rails: usize) -> Option<u32> {
    let ports = peers.iter().flat_map(|peer| &peer.ports[..rails]);
    let rates: Option<Vec<u32>> = ports.map(|port| port.rate_mbps).collect();
    let slowest = rates?.into_iter().min()?;
    Some(slowest.saturating_mul(rails as u32)).filter(|rate| *rate > 0)
}

/// Logs the ports in use.
fn log(opened: &[OpenedPort], remote: &[usize]) {
    for port in opened {
        log::info!(
            target: "ringfold::init",
            "RDMA with ranks {remote:?} by {port}, address {}", port.gid_index
        );
    }
}
