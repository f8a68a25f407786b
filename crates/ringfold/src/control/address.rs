//! The addresses at which rank 0 listens, and their text form.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::error::{Error, Result};

/// An address at which rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousAddress {
    /// A host name or address, and a port.
    Tcp {
        /// Host as specified, without brackets.
        host: String,
        /// Port; never 0.
        port: u16,
    },
    /// A name in the abstract namespace of UNIX sockets; reachable only from this network
    /// namespace.
    Unix {
        /// Name without the `@`.
        name: String,
    },
}

/// Maximum bytes of an abstract name that every kernel accepts.
const UNIX_NAME_MAX: usize = 100;

impl FromStr for RendezvousAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<RendezvousAddress> {
        let wrong = |why: &str| {
            Error::InvalidArgument(format!(
                "address `{text}` {why}; give `host:port` or `unix:@name`"
            ))
        };
        if let Some(rest) = text.strip_prefix("unix:") {
            let name = rest
                .strip_prefix('@')
                .ok_or_else(|| wrong("is not an abstract UNIX name"))?;
            if name.is_empty() || name.len() > UNIX_NAME_MAX {
                return Err(wrong("has an empty or too long name"));
            }
            return Ok(RendezvousAddress::Unix { name: name.into() });
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("has no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match port.parse::<u16>() {
            Ok(port) if port > 0 && !host.is_empty() => Ok(RendezvousAddress::Tcp {
                host: host.into(),
                port,
            }),
            _ => Err(wrong("has no usable host or port")),
        }
    }
}

impl RendezvousAddress {
    /// Whether the address is a host name that may mean different addresses on different hosts.
    /// Loopback names, such as `localhost6` and `ip6-loopback`, do not.
    pub fn is_own_name(&self) -> bool {
        let RendezvousAddress::Tcp { host, .. } = self else {
            return false;
        };
        let is_loopback = ["localhost", "loopback"]
            .iter()
            .any(|name| host.contains(name));
        !is_loopback && host.parse::<IpAddr>().is_err()
    }
}

/// Maximum number of addresses of rank 0.
const ADDRESSES_MAX: usize = 64;

/// Parses a list of addresses, separated by commas, at which rank 0 may listen.
pub fn addresses(text: &str) -> Result<Vec<RendezvousAddress>> {
    let list: Result<Vec<RendezvousAddress>> = text
        .split(',')
        .map(|item| item.trim().parse())
        .take(ADDRESSES_MAX + 1)
        .collect();
    let list = list?;
    match list.len() <= ADDRESSES_MAX {
        true => Ok(list),
        false => Err(Error::InvalidArgument(format!(
            "more than {ADDRESSES_MAX} addresses of rank 0; list only those that the ranks can \
                reach"
        ))),
    }
}

impl fmt::Display for RendezvousAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RendezvousAddress::Tcp { host, port } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            RendezvousAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            RendezvousAddress::Unix { name } => write!(f, "unix:@{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_they_were_written() {
        for text in ["node1:29501", "[::1]:80", "10.0.0.1:1", "unix:@job-7"] {
            assert_eq!(text.parse::<RendezvousAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn only_a_name_may_mean_another_address_elsewhere() {
        for (text, is_own) in [
            ("node1:1", true),
            ("10.0.0.1:1", false),
            ("[::1]:1", false),
            ("localhost6:1", false),
            ("ip6-loopback:1", false),
            ("unix:@a", false),
        ] {
            assert_eq!(
                text.parse::<RendezvousAddress>().unwrap().is_own_name(),
                is_own,
                "{text}"
            );
        }
    }

    #[test]
    fn unusable_addresses_are_refused() {
        for text in [
            "",
            "node1",
            "node1:",
            "node1:0",
            ":1",
            "node1:70000",
            "unix:/tmp/x",
            "unix:@",
        ] {
            assert!(text.parse::<RendezvousAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn lists_of_addresses_keep_their_order_and_are_bounded() {
        let list = addresses("unix:@a, 10.0.0.1:1,[fd00::1]:2").unwrap();
        let texts: Vec<String> = list.iter().map(RendezvousAddress::to_string).collect();
        assert_eq!(texts, ["unix:@a", "10.0.0.1:1", "[fd00::1]:2"]);
        for text in ["", ",", "a:1,", "a:1,,b:2", &vec!["a:1"; 65].join(",")] {
            assert!(addresses(text).is_err(), "{text}");
        }
    }
}
