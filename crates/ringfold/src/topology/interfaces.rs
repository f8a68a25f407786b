//! Network interfaces, and the choice of the addresses that carry data between hosts.
//!
//! The interfaces are those of this network namespace, from `getifaddrs`. The choice is a list of
//! names and networks: `eth0,10.0.0.0/8` selects matching interfaces, in the list's order. `^eth0`
//! excludes, and `^` in front of the whole list excludes all of it. `=eth0` matches this name
//! alone, `eth*` all names that begin with `eth`. `eth` matches the name `eth` if an interface has
//! it, and otherwise all names that begin with `eth`. A name without a match is reported in a
//! warning. Loopback is never used between hosts. Addresses that need a scope (IPv6 link-local) are
//! omitted.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};

use ipnet::{IpNet, ip_mask_to_prefix};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use super::interface_choice::InterfaceChoice;
use crate::error::{Error, Result};

/// One address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// Number of leading bits of the address that are the network's.
    pub prefix: u8,
    /// Whether the interface is a loopback.
    pub is_loopback: bool,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.name, self.address, self.prefix)
    }
}

/// Name prefixes of the bridges of container engines and virtual machines. These have the same
/// addresses on every host, so they come last.
const LOCAL_BRIDGES: [&str; 4] = ["docker", "virbr", "br-", "cni"];

/// The addresses on which data may arrive.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// The interfaces, best first.
    pub interfaces: Vec<Interface>,
    /// Whether the choice names interfaces to use, rather than only interfaces to exclude.
    pub are_named: bool,
}

impl Candidates {
    /// Returns the addresses alone.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let addresses = self.interfaces.iter().map(|interface| interface.address);
        addresses.collect()
    }
}

/// Returns the addresses on which data may arrive. With `with_loopback`, loopback comes before all
/// others, for the ranks of this host.
pub fn candidates(choice: Option<&InterfaceChoice>, with_loopback: bool) -> Result<Candidates> {
    let all = interfaces()?;
    let filter = choice.map(|choice| InterfaceFilter::parse(&choice.list));
    let filter = filter.transpose()?.unwrap_or_default();
    if let (Some(choice), Some(missing)) = (choice, filter.missing(&all)) {
        log::warn!(target: "ringfold::init", "{choice}: {missing}");
    }
    let chosen = filter.select(&all);
    if let (Some(choice), true) = (choice, chosen.is_empty()) {
        return Err(Error::InvalidArgument(format!(
            "{choice} selects no interface of {}{}",
            listed(&all),
            choice.remedy()
        )));
    }
    let loopback = all.iter().filter(|i| with_loopback && i.is_loopback);
    Ok(Candidates {
        interfaces: loopback.chain(&chosen).cloned().collect(),
        are_named: !filter.wanted.is_empty(),
    })
}

/// The choice in `RINGFOLD_SOCKET_IFNAME`; by default all interfaces.
#[derive(Debug, Default)]
pub struct InterfaceFilter {
    wanted: Vec<Pattern>,
    unwanted: Vec<Pattern>,
}

#[derive(Debug, PartialEq, Eq)]
enum Pattern {
    /// The interface of this name or, if none has it, all whose names begin with it.
    Name(String),
    /// The interface of this name.
    Exact(String),
    /// All interfaces whose names begin with this.
    Prefix(String),
    Network(IpNet),
}

impl InterfaceFilter {
    /// Parses a list.
    pub fn parse(text: &str) -> Result<InterfaceFilter> {
        let mut filter = InterfaceFilter::default();
        let excludes_all = text.trim_start().starts_with('^');
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            match item.strip_prefix('^') {
                Some(rest) => filter.unwanted.push(Pattern::parse(rest)?),
                None if excludes_all => filter.unwanted.push(Pattern::parse(item)?),
                None => filter.wanted.push(Pattern::parse(item)?),
            }
        }
        Ok(filter)
    }

    /// Returns the warning about a wanted name that matches none of `all`: mistyped, or one of
    /// other hosts. Networks and excluded names need no match.
    pub fn missing(&self, all: &[Interface]) -> Option<String> {
        let is_missing = |pattern: &&Pattern| {
            let is_there = all.iter().any(|i| pattern.matches(i, all));
            !matches!(pattern, Pattern::Network(_)) && !is_there
        };
        let (text, what) = match self.wanted.iter().find(is_missing)? {
            Pattern::Name(name) => (
                name.clone(),
                "of this name, or of a name that begins with it",
            ),
            Pattern::Exact(name) => (format!("={name}"), "of this name"),
            Pattern::Prefix(start) => (format!("{start}*"), "of a name that begins with it"),
            Pattern::Network(_) => return None,
        };
        Some(format!(
            "no interface of this host that is up is {what}: `{text}`; there are {}",
            listed(all)
        ))
    }

    /// Returns the interfaces of `all` that the filter admits, best first.
    pub fn select(&self, all: &[Interface]) -> Vec<Interface> {
        let is_unwanted = |i: &Interface| {
            let mut unwanted = self.unwanted.iter();
            unwanted.any(|pattern| pattern.matches(i, all))
        };
        let usable = all.iter().filter(|i| !i.is_loopback && !is_unwanted(i));
        let mut ranked: Vec<(usize, &Interface)> = usable
            .filter_map(|interface| Some((self.preference(interface, all)?, interface)))
            .collect();
        ranked.sort_by_key(|(preference, _)| *preference);
        ranked
            .into_iter()
            .map(|(_, interface)| interface.clone())
            .collect()
    }

    /// Returns the preference of an interface, smaller is better; `None` if it is not wanted.
    fn preference(&self, interface: &Interface, all: &[Interface]) -> Option<usize> {
        if self.wanted.is_empty() {
            let mut bridges = LOCAL_BRIDGES.iter();
            return Some(bridges.any(|prefix| interface.name.starts_with(prefix)) as usize);
        }
        self.wanted
            .iter()
            .position(|pattern| pattern.matches(interface, all))
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Pattern> {
        if let Some(name) = text.strip_prefix('=') {
            return Ok(Pattern::Exact(name.into()));
        }
        if let Some(start) = text.strip_suffix('*') {
            return Ok(Pattern::Prefix(start.into()));
        }
        let network = text.parse::<IpNet>();
        let network = network.or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        match network {
            Ok(network) => Ok(Pattern::Network(network)),
            Err(_) if text.contains('/') => Err(wrong(text)),
            Err(_) => Ok(Pattern::Name(text.into())),
        }
    }

    /// Whether the pattern matches `interface`, which is one of `all`.
    fn matches(&self, interface: &Interface, all: &[Interface]) -> bool {
        match self {
            Pattern::Name(name) => match all.iter().any(|other| other.name == *name) {
                true => interface.name == *name,
                false => interface.name.starts_with(name.as_str()),
            },
            Pattern::Exact(name) => interface.name == *name,
            Pattern::Prefix(start) => interface.name.starts_with(start.as_str()),
            Pattern::Network(network) => network.contains(&interface.address),
        }
    }
}

/// Lists the interfaces, for a message.
fn listed(all: &[Interface]) -> String {
    let there: Vec<String> = all.iter().map(Interface::to_string).collect();
    there.join(", ")
}

fn wrong(text: &str) -> Error {
    Error::InvalidArgument(format!(
        "`{text}` in RINGFOLD_SOCKET_IFNAME is neither a name like `eth0` nor a network like \
         `10.0.0.0/8`"
    ))
}

/// Returns the usable addresses of all interfaces that are up.
pub fn interfaces() -> Result<Vec<Interface>> {
    let all = getifaddrs();
    let all = all.map_err(|error| Error::system("cannot list network interfaces", error))?;
    Ok(all.filter_map(usable).collect())
}

/// Returns the interface of an entry, if the address may be used.
fn usable(entry: InterfaceAddress) -> Option<Interface> {
    let address = ip(entry.address?)?;
    let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    if !entry.flags.contains(InterfaceFlags::IFF_UP) || is_link_local || is_tentative(address) {
        return None;
    }
    let is_loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK) || address.is_loopback();
    // The address' own label follows a colon, which no interface's name has.
    let name = entry.interface_name.split(':').next()?.to_owned();
    Some(Interface {
        name,
        address,
        prefix: ip_mask_to_prefix(ip(entry.netmask?)?).ok()?,
        is_loopback,
    })
}

fn ip(address: SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
    v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
}

/// Whether the kernel still checks the address for duplicates, and refuses to bind to it.
fn is_tentative(address: IpAddr) -> bool {
    let bound = UdpSocket::bind((address, 0));
    bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn interface(name: &str, address: &str, prefix: u8) -> Interface {
        let address: IpAddr = address.parse().unwrap();
        Interface {
            name: name.into(),
            address,
            prefix,
            is_loopback: address.is_loopback(),
        }
    }

    fn machine() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1", 8),
            interface("docker0", "172.17.0.1", 16),
            interface("eth0", "192.168.1.5", 24),
            interface("eth1", "10.1.2.3", 16),
            interface("eth0", "fd00::5", 64),
        ]
    }

    fn selected(choice: &str) -> Vec<String> {
        let chosen = InterfaceFilter::parse(choice).unwrap().select(&machine());
        chosen.iter().map(|i| i.address.to_string()).collect()
    }

    #[test]
    fn without_a_choice_bridges_come_last_and_loopback_never() {
        assert_eq!(
            selected(""),
            ["192.168.1.5", "10.1.2.3", "fd00::5", "172.17.0.1"]
        );
    }

    #[test]
    fn the_order_of_the_list_is_the_order_of_preference() {
        assert_eq!(
            selected("10.0.0.0/8,eth0"),
            ["10.1.2.3", "192.168.1.5", "fd00::5"]
        );
        assert_eq!(selected("fd00::/16"), ["fd00::5"]);
        assert_eq!(selected("192.168.1.5"), ["192.168.1.5"]);
        assert_eq!(selected("0.0.0.0/0").len(), 3);
    }

    #[test]
    fn names_are_as_nccl_has_them() {
        let eth0 = ["192.168.1.5", "fd00::5"];
        assert_eq!(selected("eth"), ["192.168.1.5", "10.1.2.3", "fd00::5"]);
        assert_eq!(selected("=eth0"), eth0);
        assert_eq!(selected("eth0"), eth0);
        assert!(selected("=eth").is_empty());
        assert_eq!(selected("^docker,=eth1"), eth0);
        assert_eq!(selected("^=docker,^eth"), ["172.17.0.1"]);
    }

    #[test]
    fn a_name_is_not_the_beginning_of_others_where_an_interface_has_it() {
        let all = ["eth1", "eth10"].map(|name| interface(name, "10.1.2.3", 16));
        let chosen = InterfaceFilter::parse("eth1").unwrap().select(&all);
        assert_eq!(chosen, all[..1]);
    }

    #[test]
    fn a_star_stands_for_the_rest_of_names() {
        let all = ["eth1", "eth10", "ib0"].map(|name| interface(name, "10.1.2.3", 16));
        let chosen = |list| InterfaceFilter::parse(list).unwrap().select(&all);
        assert_eq!(chosen("eth1*"), all[..2]);
        assert_eq!(chosen("^eth1*"), all[2..]);
        assert_eq!(chosen("*"), all);
    }

    #[test]
    fn a_name_that_stands_for_nothing_is_named_with_those_that_there_are() {
        let warning = |choice: &str| {
            let filter = InterfaceFilter::parse(choice).unwrap();
            filter.missing(&machine())
        };
        for (choice, entry) in [
            ("eth0,ehd1", "`ehd1`"),
            ("10.0.0.0/8,=eth", "`=eth`"),
            ("ib,eth", "`ib`"),
            ("eth*,ib*", "`ib*`"),
        ] {
            let text = warning(choice).unwrap();
            assert!(text.contains(entry), "{text}");
            assert!(text.contains("eth1 10.1.2.3/16"), "{text}");
        }
        for choice in [
            "eth,docker",
            "lo,eth0",
            "172.16.0.0/16,eth1",
            "^ib,=veth",
            "eth0,^ib0",
            "",
        ] {
            assert_eq!(warning(choice), None, "{choice}");
        }
    }

    #[test]
    fn loopback_is_never_chosen() {
        assert!(selected("lo").is_empty());
        assert!(selected("127.0.0.0/8").is_empty());
    }

    #[test]
    fn exclusions_leave_the_rest() {
        assert_eq!(selected("^docker0,^eth0"), ["10.1.2.3"]);
        assert_eq!(selected("eth0,^fd00::/8"), ["192.168.1.5"]);
    }

    #[test]
    fn impossible_networks_are_refused() {
        for text in ["10.0.0.0/33", "10.0.0.0/x", "eth0/8", "fd00::/129"] {
            assert!(InterfaceFilter::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_kernel_tells_of_the_loopback() {
        let all = interfaces().unwrap();
        let loopback = all
            .iter()
            .find(|i| i.address == IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert!(
            loopback.is_some_and(|i| i.is_loopback && i.prefix == 8),
            "{all:?}"
        );
        let candidates = candidates(None, true).unwrap();
        assert!(candidates.addresses()[0].is_loopback());
        assert!(!candidates.are_named);
    }
}
