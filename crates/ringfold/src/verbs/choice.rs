//! Choice of the ports that a rank uses.
//!
//! *Source.* The grammar is that of `NCCL_IB_HCA`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::device::{LinkLayer, Port, PortState};
use super::domain::Domain;
use super::{Verbs, layout::Gid};
use crate::error::{Error, Result};

/// A selection of the devices' ports: `mlx5` selects each device whose name begins so, `=mlx5_0:1`
/// port 1 of that device, `^` in front all but these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    is_exclusion: bool,
    is_exact: bool,
    entries: Vec<(String, Option<u8>)>,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        let (is_exclusion, rest) = match text.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (is_exact, rest) = match rest.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let entry = |entry: &str| {
            let (name, port) = match entry.split_once(':') {
                Some((name, port)) => {
                    (name, Some(port.parse().map_err(|_| "has an invalid port")?))
                }
                None => (entry, None),
            };
            match name.is_empty() {
                true => Err("has no name"),
                false => Ok((name.to_owned(), port)),
            }
        };
        let entries = rest.split(',').map(|one| {
            entry(one.trim()).map_err(|why| {
                format!(
                    "`{one}` {why}; write, for example, `mlx5_0` \
                or `=mlx5_0:1,mlx5_1`"
                )
            })
        });
        Ok(DeviceChoice {
            is_exclusion,
            is_exact,
            entries: entries.collect::<Result<_, String>>()?,
        })
    }
}

impl DeviceChoice {
    /// Whether a device's port may be used.
    pub fn permits(&self, device: &str, port: u8) -> bool {
        let of_device = |(name, of): &(String, Option<u8>)| {
            self.names(name, device) && of.is_none_or(|of| of == port)
        };
        self.entries.is_empty() || self.entries.iter().any(of_device) != self.is_exclusion
    }

    /// Whether some port of a device may be used, depending on its number.
    fn permits_device(&self, device: &str) -> bool {
        let is_it = |(name, of): &(String, Option<u8>)| {
            self.names(name, device) && !(self.is_exclusion && of.is_some())
        };
        self.entries.is_empty() || self.entries.iter().any(is_it) != self.is_exclusion
    }

    fn names(&self, name: &str, device: &str) -> bool {
        match self.is_exact {
            true => device == name,
            false => device.starts_with(name),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |is_set, mark| if is_set { mark } else { "" };
        write!(
            f,
            "{}{}",
            mark(self.is_exclusion, "^"),
            mark(self.is_exact, "=")
        )?;
        for (place, (name, port)) in self.entries.iter().enumerate() {
            write!(f, "{}{name}", mark(place > 0, ","))?;
            if let Some(port) = port {
                write!(f, ":{port}")?;
            }
        }
        Ok(())
    }
}

/// An opened port, with its address for peers.
#[derive(Clone, Debug)]
pub struct OpenedPort {
    /// Domain of the port's device.
    pub domain: Arc<Domain>,
    /// The port.
    pub port: Port,
    /// Index of the port's address.
    pub gid_index: u8,
    /// Address of the port.
    pub gid: Gid,
}

impl OpenedPort {
    /// Whether connections use addresses.
    pub fn is_global(&self) -> bool {
        self.port.link_layer == LinkLayer::Ethernet
    }
}

impl fmt::Display for OpenedPort {
    /// Formats the port in words, as for `ringfold info`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Port {
            number,
            link_layer,
            rate_gbps,
            mtu_bytes,
            ..
        } = &self.port;
        let name = self.domain.device().name();
        let network = match link_layer {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        };
        let rate = match rate_gbps {
            Some(rate) => format!("{rate} Gbit/s"),
            None => "rate unknown".into(),
        };
        write!(
            f,
            "{name}:{number}, {network}, {rate}, packets of {mtu_bytes} bytes"
        )
    }
}

impl Verbs {
    /// Opens the active ports of a choice, `count_max` at most; with addresses at `gid_index`
    /// instead of the default ones.
    ///
    /// # Errors
    /// `Unsupported` if no port can be used, with the reasons; `System` if the devices cannot be
    /// listed.
    pub fn open_ports(
        &'static self,
        choice: &DeviceChoice,
        gid_index: Option<u8>,
        count_max: usize,
    ) -> Result<Vec<OpenedPort>> {
        let mut opened = Vec::new();
        let mut passed_over = Vec::new();
        for name in self.devices()? {
            if opened.len() >= count_max {
                break;
            }
            if !choice.permits_device(&name) {
                passed_over.push(format!("{name}: excluded by RINGFOLD_IB_HCA={choice}"));
                continue;
            }
            let domain = self.device(&name).and_then(Domain::new);
            let ports = domain.and_then(|domain| Ok((domain.device().ports()?, domain)));
            let (ports, domain) = match ports {
                Ok(found) => found,
                Err(error) => {
                    log::warn!(target: "ringfold::init", "RDMA does not use {name}: {error}");
                    passed_over.push(format!("{name}: {error}"));
                    continue;
                }
            };
            for port in ports {
                let number = port.number;
                match chosen_gid(&name, &port, choice, gid_index) {
                    Ok((gid_index, gid)) => opened.push(OpenedPort {
                        domain: domain.clone(),
                        port,
                        gid_index,
                        gid,
                    }),
                    Err(why) => passed_over.push(format!("{name}:{number}: {why}")),
                }
            }
        }
        opened.truncate(count_max);
        if opened.is_empty() {
            let found = match passed_over.is_empty() {
                true => "no device found".into(),
                false => passed_over.join("; "),
            };
            return Err(Error::Unsupported(format!(
                "no RDMA device can be used: {found}"
            )));
        }
        Ok(opened)
    }
}

/// Returns the address that a port uses, and its index, or the reason not to use the port.
fn chosen_gid(
    device: &str,
    port: &Port,
    choice: &DeviceChoice,
    gid_index: Option<u8>,
) -> Result<(u8, Gid), String> {
    if !choice.permits(device, port.number) {
        return Err(format!("excluded by RINGFOLD_IB_HCA={choice}"));
    }
    if port.state != PortState::Active {
        return Err("port is down".into());
    }
    let Some(index) = gid_index.or(port.gid_index()) else {
        return Err(match port.link_layer {
            LinkLayer::Ethernet => {
                "no address for RoCE v2; assign an IP address to its network interface".into()
            }
            LinkLayer::InfiniBand => "no address from ibv_query_gid".into(),
        });
    };
    let gid = port.gids.iter().find(|(place, ..)| *place == index);
    gid.map(|(_, _, gid)| (index, *gid))
        .ok_or_else(|| format!("no address at RINGFOLD_IB_GID_INDEX={index}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(text: &str) -> DeviceChoice {
        text.parse().expect("a choice")
    }

    #[test]
    fn names_begin_with_an_entry_or_are_it_or_are_left_out() {
        let cases = [
            ("mlx5", "mlx5_0", 1, true),
            ("mlx5_1", "mlx5_0", 1, false),
            ("mlx5_1", "mlx5_10", 1, true),
            ("=mlx5_1", "mlx5_10", 1, false),
            ("=mlx5_1,mlx5_0:2", "mlx5_0", 2, true),
            ("=mlx5_1,mlx5_0:2", "mlx5_0", 1, false),
            ("^mlx5_1", "mlx5_1", 1, false),
            ("^=mlx5_1", "mlx5_10", 1, true),
        ];
        for (text, device, port, is_permitted) in cases {
            let found = choice(text).permits(device, port);
            assert_eq!(found, is_permitted, "{text} for {device}:{port}");
            assert_eq!(choice(text).to_string(), text);
        }
        for (text, device, is_permitted) in [
            ("mlx5_0:2", "mlx5_0", true),
            ("mlx5_0:2", "mlx5_1", false),
            ("^mlx5_0:2", "mlx5_0", true),
            ("^mlx5_0", "mlx5_0", false),
        ] {
            let found = choice(text).permits_device(device);
            assert_eq!(found, is_permitted, "{text} for {device}");
        }
        assert!(DeviceChoice::default().permits("any", 1));
    }

    #[test]
    fn what_is_no_list_is_refused_with_an_example() {
        for text in ["", "mlx5_0:x", "mlx5_0,,mlx5_1", ":1", "mlx5_0:256"] {
            let why = text.parse::<DeviceChoice>().unwrap_err();
            assert!(why.contains("=mlx5_0:1"), "{text}: {why}");
        }
    }
}
