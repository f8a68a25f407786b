//! Which ports a rank uses.
//!
//! *Source.* The grammar is that of `NCCL_IB_HCA`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::device::{LinkLayer, Port, PortState};
use super::domain::Domain;
use super::{Verbs, layout::Gid};
use crate::error::{Error, Result};

/// Some of the devices' ports: `mlx5` is each whose name begins so, `=mlx5_0:1` port 1 of that
/// device, `^` in front all but these.
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
                Some((name, port)) => (name, Some(port.parse().map_err(|_| "is no port")?)),
                None => (entry, None),
            };
            match name.is_empty() {
                true => Err("has no name"),
                false => Ok((name.to_owned(), port)),
            }
        };
        let entries = rest.split(',').map(|one| {
            entry(one.trim()).map_err(|why| format!("`{one}` {why}; `mlx5_0`, `=mlx5_0:1,mlx5_1`"))
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
        let is_named = self.entries.iter().any(|(name, of)| {
            let is_it = match self.is_exact {
                true => device == name,
                false => device.starts_with(name.as_str()),
            };
            is_it && of.is_none_or(|of| of == port)
        });
        self.entries.is_empty() || is_named != self.is_exclusion
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

/// A port to use, and how peers reach it.
#[derive(Clone, Debug)]
pub struct Opened {
    /// A domain of its device.
    pub domain: Arc<Domain>,
    /// The port.
    pub port: Port,
    /// The place of its address.
    pub gid_index: u8,
    /// Its address.
    pub gid: Gid,
}

impl Opened {
    /// Whether connections go by addresses.
    pub fn is_global(&self) -> bool {
        self.port.link_layer == LinkLayer::Ethernet
    }
}

impl fmt::Display for Opened {
    /// In words, as for `ringfold info`.
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
    /// instead of those that are found.
    ///
    /// # Errors
    /// `Unsupported` if there is none, with what was found; `System` if a device fails.
    pub fn open_ports(
        &'static self,
        choice: &DeviceChoice,
        gid_index: Option<u8>,
        count_max: usize,
    ) -> Result<Vec<Opened>> {
        let mut opened = Vec::new();
        let mut passed_over = Vec::new();
        for name in self.devices()? {
            let domain = Domain::new(self.device(&name)?)?;
            for port in domain.device().ports() {
                let number = port.number;
                let why = match gid_index.or(port.gid_index()) {
                    _ if !choice.permits(&name, number) => "RINGFOLD_IB_HCA leaves it out",
                    _ if port.state != PortState::Active => "it is down",
                    None => "it has no address for RoCE v2",
                    Some(_) if opened.len() == count_max => "enough others are used",
                    Some(index) => {
                        let gid = port.gids.iter().find(|(place, ..)| *place == index);
                        if let Some((_, _, gid)) = gid.copied() {
                            opened.push(Opened {
                                domain: domain.clone(),
                                port,
                                gid_index: index,
                                gid,
                            });
                            continue;
                        }
                        "it has no address at RINGFOLD_IB_GID_INDEX"
                    }
                };
                passed_over.push(format!("{name}:{number}: {why}"));
            }
        }
        if opened.is_empty() {
            let found = match passed_over.is_empty() {
                true => "there is none".into(),
                false => passed_over.join("; "),
            };
            return Err(Error::Unsupported(format!(
                "no RDMA device can be used: {found}"
            )));
        }
        Ok(opened)
    }
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
