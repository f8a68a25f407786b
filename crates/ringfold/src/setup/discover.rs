//! The first stage of set-up: the ranks exchange their offers, and bind to their cores.

use super::attempt::Attempt;
use super::fabric::{self, Fabric};
use super::offer::{self, Division, Offer};
use super::peer_info::{self, CoreList, PeerInfo};
use super::placement::Placement;
use crate::config::TransportChoice;
use crate::error::{Error, Result};
use crate::topology::cores;

/// A rank that knows the others, listens for them, and is bound to its cores.
pub(super) struct Discovered<'a> {
    pub attempt: &'a Attempt<'a>,
    pub peers: Vec<PeerInfo>,
    pub division: Division,
    pub offer: Offer,
    pub placement: Placement,
}

impl<'a> Discovered<'a> {
    /// Exchanges the ranks' descriptions of themselves, in the first of two exchanges.
    pub fn new(attempt: &'a Attempt<'a>) -> Result<Discovered<'a>> {
        let group = &attempt.group;
        let hosts = group.hosts().count();
        if group.settings.transport == TransportChoice::Shm && hosts > 1 {
            return Err(Error::Bootstrap(format!(
                "transport shm, but the {} ranks are on {hosts} hosts (or in different network or \
                 process namespaces); use transport auto",
                group.world_ranks.len()
            )));
        }
        let division = Division::new(group);
        let offer = Offer::new(group, &division)?;
        let own = cores::affinity();
        let info = PeerInfo {
            endpoints: offer.endpoints.clone(),
            ports: offer.fabric.as_ref().map_or_else(Vec::new, Fabric::ports),
            sockets: group.settings.sockets,
            sockets_max: offer::sockets_max(group, &division),
            memory: offer.memory_name(),
            affinity: CoreList(own.clone()),
            channels_max: group.settings.channels_max,
            straggler: group.settings.straggler_policy(),
            slice_bytes: group.settings.slice_bytes,
        };
        let peers = attempt.agree("peer info", &info)?;
        peer_info::compare(&peers)?;
        if group.settings.transport == TransportChoice::Rdma && !division.remote.is_empty() {
            fabric::demand(&peers)?;
        }
        let placement = Placement::bind(group, &own, &peers)?;
        Ok(Discovered {
            attempt,
            peers,
            division,
            offer,
            placement,
        })
    }
}
