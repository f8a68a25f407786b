//! Addresses at which a rank accepts data, and the links behind them.

use std::net::SocketAddr;
use std::path::Path;

use ipnet::IpNet;

use crate::control::wire::wire_struct;
use crate::topology::interfaces::Candidates;
use crate::topology::link::{self, Link};

/// An address at which a rank accepts data, and the link behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the socket.
    pub address: SocketAddr,
    /// Number of leading bits of the address that are the network's.
    pub prefix: u32,
    /// Number of the rank's interface that has the address.
    pub interface: u32,
    /// Link of the interface.
    pub link: Link,
    /// Whether the endpoint may be used beside others.
    pub is_rail: bool,
}

impl Endpoint {
    /// Returns the endpoints at these addresses, which are some of the `candidates`, with the links
    /// as described by the `sys` below `root`.
    pub fn list(root: &Path, candidates: &Candidates, addresses: &[SocketAddr]) -> Vec<Endpoint> {
        let interfaces = &candidates.interfaces;
        let links = interfaces.iter();
        let links: Vec<Link> = links.map(|one| Link::read(root, &one.name)).collect();
        let rails = link::rails(candidates, &links);
        let endpoint = |address: &SocketAddr| {
            let place = interfaces
                .iter()
                .position(|interface| interface.address == address.ip())?;
            let name = &interfaces[place].name;
            Some(Endpoint {
                address: *address,
                prefix: interfaces[place].prefix.into(),
                interface: interfaces.iter().position(|other| other.name == *name)? as u32,
                link: links[place],
                is_rail: rails[place],
            })
        };
        addresses.iter().filter_map(endpoint).collect()
    }

    /// Returns the network of the address.
    fn network(&self) -> Option<IpNet> {
        let network = IpNet::new(self.address.ip(), self.prefix.try_into().ok()?);
        network.ok().map(|network| network.trunc())
    }

    fn has_network(&self) -> bool {
        self.network().is_some()
    }

    /// Whether both endpoints are in one network, and have different addresses.
    pub fn shares_network(&self, other: &Endpoint) -> bool {
        self.network() == other.network() && self.address.ip() != other.address.ip()
    }
}

wire_struct!(Endpoint { address, prefix, interface, link, is_rail } if Endpoint::has_network);
wire_struct!(Link { rate_mbps, sockets });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::interfaces::Interface;

    #[test]
    fn an_endpoint_has_the_network_and_the_number_of_its_interface() {
        let interface = |name: &str, address: &str, prefix: u8| Interface {
            name: name.into(),
            address: address.parse().expect("an address"),
            prefix,
            is_loopback: false,
        };
        let candidates = Candidates {
            interfaces: vec![
                interface("a", "10.1.0.1", 24),
                interface("b", "10.2.0.1", 16),
                interface("a", "fd00::1", 64),
            ],
            are_named: true,
        };
        let addresses = ["10.2.0.1:7", "[fd00::1]:8", "10.9.0.1:9"];
        let addresses = addresses.map(|text| text.parse().expect("an address"));
        let root = Path::new("/no/such/root");
        let found = Endpoint::list(root, &candidates, &addresses);
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.address, one.prefix, one.interface, one.is_rail))
            .collect();
        assert_eq!(
            found,
            [(addresses[0], 16, 1, true), (addresses[1], 64, 0, true)]
        );
    }
}
