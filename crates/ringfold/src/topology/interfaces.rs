//! Network interfaces, and which of their addresses carry data between hosts.
//!
//! The kernel is queried by netlink, so the answer is for this network namespace. The choice is a
//! list of names and networks: `eth0,10.0.0.0/8` selects what matches, in the list's order; `^eth0`
//! excludes. Names are exact. Loopback is never used between hosts; addresses that need a scope
//! (IPv6 link-local) are omitted.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::error::{Error, Result};

/// One address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// How many leading bits of it are the network's.
    pub prefix: u8,
    /// Whether it leads nowhere.
    pub is_loopback: bool,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.name, self.address, self.prefix)
    }
}

/// Bridges of container engines and virtual machines: the same addresses on every host, so they
/// come last.
const LOCAL_BRIDGES: [&str; 4] = ["docker", "virbr", "br-", "cni"];

/// The addresses on which data may arrive, best first. With `with_loopback`, that comes before all
/// others, for the ranks of this host.
pub fn candidates(choice: Option<&str>, with_loopback: bool) -> Result<Vec<IpAddr>> {
    let all = interfaces()?;
    let chosen = match choice {
        Some(text) => InterfaceFilter::parse(text)?.select(&all),
        None => InterfaceFilter::default().select(&all),
    };
    if let (Some(text), true) = (choice, chosen.is_empty()) {
        let there: Vec<String> = all.iter().map(Interface::to_string).collect();
        return Err(Error::InvalidArgument(format!(
            "RINGFOLD_SOCKET_IFNAME=`{text}` leaves no interface of {}",
            there.join(", ")
        )));
    }
    let loopback = all.iter().filter(|i| with_loopback && i.is_loopback);
    let addresses = loopback.chain(&chosen).map(|interface| interface.address);
    Ok(addresses.collect())
}

/// What `RINGFOLD_SOCKET_IFNAME` asks for; by default everything.
#[derive(Debug, Default)]
pub struct InterfaceFilter {
    wanted: Vec<Pattern>,
    unwanted: Vec<Pattern>,
}

#[derive(Debug, PartialEq, Eq)]
enum Pattern {
    Name(String),
    Network(IpAddr, u8),
}

impl InterfaceFilter {
    /// Reads a list.
    pub fn parse(text: &str) -> Result<InterfaceFilter> {
        let mut filter = InterfaceFilter::default();
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            match item.strip_prefix('^') {
                Some(rest) => filter.unwanted.push(Pattern::parse(rest)?),
                None => filter.wanted.push(Pattern::parse(item)?),
            }
        }
        Ok(filter)
    }

    /// What it leaves of `all`, best first.
    pub fn select(&self, all: &[Interface]) -> Vec<Interface> {
        let is_unwanted = |i: &Interface| self.unwanted.iter().any(|pattern| pattern.matches(i));
        let usable = all.iter().filter(|i| !i.is_loopback && !is_unwanted(i));
        let mut ranked: Vec<(usize, &Interface)> = usable
            .filter_map(|interface| Some((self.preference(interface)?, interface)))
            .collect();
        ranked.sort_by_key(|(preference, _)| *preference);
        ranked
            .into_iter()
            .map(|(_, interface)| interface.clone())
            .collect()
    }

    /// The place of an interface, smaller is better; `None` if it is not wanted.
    fn preference(&self, interface: &Interface) -> Option<usize> {
        if self.wanted.is_empty() {
            let mut bridges = LOCAL_BRIDGES.iter();
            return Some(bridges.any(|prefix| interface.name.starts_with(prefix)) as usize);
        }
        self.wanted
            .iter()
            .position(|pattern| pattern.matches(interface))
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Pattern> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let Ok(address) = address.parse::<IpAddr>() else {
            return match prefix {
                None => Ok(Pattern::Name(text.into())),
                Some(_) => Err(wrong(text)),
            };
        };
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix
            .map_or(Ok(longest), str::parse)
            .map_err(|_| wrong(text))?;
        match prefix <= longest {
            true => Ok(Pattern::Network(address, prefix)),
            false => Err(wrong(text)),
        }
    }

    fn matches(&self, interface: &Interface) -> bool {
        match self {
            Pattern::Name(name) => *name == interface.name,
            Pattern::Network(network, prefix) => {
                network.is_ipv4() == interface.address.is_ipv4()
                    && leading(*network, *prefix) == leading(interface.address, *prefix)
            }
        }
    }
}

fn wrong(text: &str) -> Error {
    Error::InvalidArgument(format!(
        "`{text}` in RINGFOLD_SOCKET_IFNAME is neither a name like `eth0` nor a network like \
         `10.0.0.0/8`"
    ))
}

/// The first `prefix` bits of an address.
fn leading(address: IpAddr, prefix: u8) -> u128 {
    let (bits, width) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    bits.checked_shr(width - u32::from(prefix)).unwrap_or(0)
}

/// All addresses of interfaces that are up.
pub fn interfaces() -> Result<Vec<Interface>> {
    let mut links = Vec::new();
    dump(GET_LINK, |body| links.extend(parse_link(body)))?;
    let mut found = Vec::new();
    dump(GET_ADDRESS, |body| {
        let Some((index, address, prefix)) = parse_address(body) else {
            return;
        };
        let link = links.iter().find(|link| link.index == index && link.is_up);
        found.extend(link.map(|link| Interface {
            name: link.name.clone(),
            address,
            prefix,
            is_loopback: link.is_loopback || address.is_loopback(),
        }));
    })?;
    Ok(found)
}

/// Requests and what they are answered with (`rtnetlink(7)`).
const GET_LINK: u16 = 18;
const GET_ADDRESS: u16 = 22;
const REQUEST_DUMP: u16 = 0x301;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
/// Answers that a dump may take before it is given up: far more than any host has interfaces.
const ANSWERS_MAX: usize = 4096;

struct Link {
    index: u32,
    name: String,
    is_up: bool,
    is_loopback: bool,
}

/// Asks the kernel for a list and gives each entry's body to `take`.
fn dump(kind: u16, mut take: impl FnMut(&[u8])) -> Result<()> {
    let failed = |error: rustix::io::Errno| Error::system("cannot list network interfaces", error);
    let flags = SocketFlags::CLOEXEC;
    // Protocol 0 is the routing family.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None);
    let socket = socket.map_err(failed)?;
    // A header, and the smallest body: the address family, any.
    let mut request = [0; HEADER_BYTES + 16];
    request[..4].copy_from_slice(&((HEADER_BYTES + 16) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&socket, &request, SendFlags::empty(), &kernel).map_err(failed)?;
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..ANSWERS_MAX {
        let (count, _) =
            recv(&socket, buffer.as_mut_slice(), RecvFlags::empty()).map_err(failed)?;
        let mut rest = &buffer[..count];
        while let Some((answer, body, next)) = split_message(rest) {
            match answer {
                MESSAGE_DONE => return Ok(()),
                MESSAGE_ERROR => return Err(failed(rustix::io::Errno::IO)),
                _ => take(body),
            }
            rest = next;
        }
    }
    Err(failed(rustix::io::Errno::OVERFLOW))
}

/// The first message's kind and body, and what follows it.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = word(bytes, 0)? as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER_BYTES..length)?;
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, body, next))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The attributes that follow a fixed part, as number and value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let number = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((number, value))
    })
}

/// `struct ifinfomsg` and attributes.
fn parse_link(body: &[u8]) -> Option<Link> {
    const NAME: u16 = 3;
    const UP: u32 = 1;
    const LOOPBACK: u32 = 8;
    let flags = word(body, 8)?;
    let (_, name) = attributes(body.get(16..)?).find(|(number, _)| *number == NAME)?;
    Some(Link {
        index: word(body, 4)?,
        name: String::from_utf8_lossy(name.split(|byte| *byte == 0).next()?).into_owned(),
        is_up: flags & UP != 0,
        is_loopback: flags & LOOPBACK != 0,
    })
}

/// `struct ifaddrmsg` and attributes: interface, address, prefix.
fn parse_address(body: &[u8]) -> Option<(u32, IpAddr, u8)> {
    const ADDRESS: u16 = 1;
    // On a point-to-point link `ADDRESS` is the other end, and this one's own is here.
    const LOCAL: u16 = 2;
    const TENTATIVE: u8 = 0x40;
    let (prefix, flags) = (*body.get(1)?, *body.get(2)?);
    let find = |wanted| {
        attributes(body.get(8..)?).find_map(|(number, value)| (number == wanted).then_some(value))
    };
    let value = find(LOCAL).or_else(|| find(ADDRESS))?;
    let address = match value.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?)),
        _ => return None,
    };
    let is_link_local = matches!(address, IpAddr::V6(a) if a.is_unicast_link_local());
    (!is_link_local && flags & TENTATIVE == 0).then_some((word(body, 4)?, address, prefix))
}

#[cfg(test)]
mod tests {
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
    fn names_are_exact_and_loopback_is_never_chosen() {
        assert!(selected("eth").is_empty());
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
        assert!(candidates(None, true).unwrap()[0].is_loopback());
    }

    #[test]
    fn damaged_answers_are_no_interfaces() {
        for length in 0..32 {
            let bytes = vec![0xff; length];
            assert!(split_message(&bytes).is_none());
            assert!(parse_link(&bytes).is_none());
            assert!(parse_address(&bytes).is_none());
        }
    }
}
