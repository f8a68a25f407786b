//! Listeners that rank 0 opens before the other ranks know their addresses.
//!
//! A job that can pass on a line of text itself (by a store, a queue, a launcher's environment)
//! needs no agreed port that may be taken. Rank 0 opens a [`RendezvousListener`] on free ports,
//! passes on its address, and joins with the listener; the others join by that address. The address
//! is a list, tried in order, because rank 0 cannot know which entry the others reach.
//!
//! The first entry is an abstract UNIX name, usable only on rank 0's host. Next are the local
//! address on the route to the machine that the caller names, and the addresses of [`interfaces`].
//! A rank without the job's secret is refused; one that connects before rank 0 joins waits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use log::{debug, info};

use super::address::RendezvousAddress;
use super::connect;
use super::limit::Limit;
use super::socket::{Listener, random};
use crate::error::{Error, Result};
use crate::topology::interface_choice::InterfaceChoice;
use crate::topology::interfaces;

/// An arbitrary port to ask the kernel for a route; no packet is sent.
const SOME_PORT: u16 = 9;

/// Listeners at which the other ranks will reach rank 0; see [the module](self).
///
/// Dropping the value without joining closes the listeners.
#[derive(Debug)]
pub struct RendezvousListener {
    listeners: Vec<Listener>,
    addresses: Vec<RendezvousAddress>,
}

impl RendezvousListener {
    /// Opens listeners on free ports of the interfaces that `choice` selects (see [`interfaces`]);
    /// the local address on the route to `toward` is first.
    pub fn on(
        choice: Option<&InterfaceChoice>,
        toward: Option<&str>,
    ) -> Result<RendezvousListener> {
        let mut candidates = interfaces::candidates(choice, false)?.addresses();
        if let Some(first) = toward.and_then(route_toward) {
            prefer(&mut candidates, first, choice.is_some());
        }
        if candidates.is_empty() {
            candidates.push(Ipv4Addr::LOCALHOST.into());
        }
        RendezvousListener::at(&candidates)
    }

    /// Listens on a new UNIX name and on `candidates`.
    fn at(candidates: &[IpAddr]) -> Result<RendezvousListener> {
        let number = u64::from_le_bytes(random()?);
        let user = rustix::process::getuid().as_raw();
        let name = format!("ringfold-{user}-meeting-{number:016x}");
        let (mut listeners, bound) = Listener::bind_free(candidates).map_err(|why| {
            Error::Bootstrap(format!(
                "no address for rank 0 to listen on ({why}); see RINGFOLD_SOCKET_IFNAME"
            ))
        })?;
        let host = |bound: &SocketAddr| RendezvousAddress::Tcp {
            host: bound.ip().to_string(),
            port: bound.port(),
        };
        let mut addresses: Vec<RendezvousAddress> = bound.iter().map(host).collect();
        match Listener::bind_name(&name) {
            Ok(listener) => {
                listeners.insert(0, listener);
                addresses.insert(0, RendezvousAddress::Unix { name });
            }
            // The name is only a shortcut; some sandboxes have no abstract names.
            Err(error) => {
                debug!(target: "ringfold::control", "cannot listen on a UNIX name: {error}");
            }
        }
        let rendezvous = RendezvousListener {
            listeners,
            addresses,
        };
        info!(target: "ringfold::control", "rank 0 listens at {rendezvous}");
        Ok(rendezvous)
    }

    /// Returns the `address` by which the other ranks join: candidates separated by commas.
    pub fn address(&self) -> String {
        self.to_string()
    }

    pub(super) fn addresses(&self) -> &[RendezvousAddress] {
        &self.addresses
    }

    pub(super) fn into_listeners(self) -> Vec<Listener> {
        self.listeners
    }
}

impl fmt::Display for RendezvousListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self
            .addresses
            .iter()
            .map(RendezvousAddress::to_string)
            .collect();
        f.write_str(&texts.join(","))
    }
}

/// Moves `first` to the front; an address outside a choice of interfaces is not added.
fn prefer(candidates: &mut Vec<IpAddr>, first: IpAddr, is_chosen: bool) {
    let place = candidates.iter().position(|candidate| *candidate == first);
    match place {
        Some(place) => candidates[..=place].rotate_right(1),
        None if !is_chosen => candidates.insert(0, first),
        None => {}
    }
}

/// Returns this host's address on the route to `host`; `None` if the host is unknown, or reached by
/// loopback.
fn route_toward(host: &str) -> Option<IpAddr> {
    let limit = Limit::from(Instant::now() + connect::LOOKUP);
    let addresses = match connect::resolve(host, SOME_PORT, limit) {
        Ok(addresses) => addresses,
        Err(error) => {
            debug!(target: "ringfold::control", "`{host}` is not known here: {error}");
            return None;
        }
    };
    let own = |there: SocketAddr| {
        let any: IpAddr = match there {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(there).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let needs_scope = |own: &IpAddr| matches!(own, IpAddr::V6(v6) if v6.is_unicast_link_local());
    addresses
        .into_iter()
        .filter_map(own)
        .find(|own| !own.is_loopback() && !own.is_unspecified() && !needs_scope(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::socket::CANDIDATES_MAX;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_way_that_is_named_comes_first_and_the_others_keep_their_order() {
        let mut candidates = addresses(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        prefer(&mut candidates, "10.0.0.3".parse().unwrap(), true);
        assert_eq!(candidates, addresses(&["10.0.0.3", "10.0.0.1", "10.0.0.2"]));
        prefer(&mut candidates, "10.0.0.9".parse().unwrap(), false);
        assert_eq!(candidates[0].to_string(), "10.0.0.9");
    }

    #[test]
    fn who_chooses_interfaces_gets_no_others() {
        let mut candidates = addresses(&["10.0.0.1"]);
        prefer(&mut candidates, "10.0.0.9".parse().unwrap(), true);
        assert_eq!(candidates, addresses(&["10.0.0.1"]));
    }

    #[test]
    fn loopback_and_unknown_names_lead_nowhere() {
        for host in ["localhost", "127.0.1.1", "::1", "no-such-host.invalid", ""] {
            assert_eq!(route_toward(host), None, "{host}");
        }
    }

    #[test]
    fn the_address_reads_back_as_a_list_of_open_places() {
        let rendezvous = RendezvousListener::open(Some("localhost")).unwrap();
        let places = crate::control::address::addresses(&rendezvous.address()).unwrap();
        assert_eq!(places, rendezvous.addresses);
        assert!(matches!(places[0], RendezvousAddress::Unix { .. }));
        assert!(places.len() > 1 && places.len() <= CANDIDATES_MAX + 1);
        for place in &places[1..] {
            assert!(matches!(place, RendezvousAddress::Tcp { .. }), "{place}");
        }
    }
}
