//! The link of a network interface, from `/sys`, and the number of TCP connections that fill it.
//!
//! One core at each end processes a TCP flow, which travels on one queue of the NIC and one cable
//! of a bond. The flow reaches 20 to 40 Gbit/s between fast cores, and in clouds the provider's
//! limit for a flow. NCCL assumes the same: 8 sockets for each of 2 threads on Amazon's NICs, one
//! for each of 4 on Google's, whose rates the kernel does not know.
//!
//! Only NICs and bonds have a rate. A bridge or a pair of virtual interfaces reports 10 Gbit/s,
//! whatever its rate.

use std::fs;
use std::path::{Path, PathBuf};

use super::interfaces::Candidates;

/// Minimum rates of links, in Mbit/s, and the numbers of sockets that fill them.
const SOCKETS_BY_RATE: [(u32, usize); 3] = [(100_000, 8), (50_000, 4), (25_000, 2)];

/// Number of sockets by PCI vendor of the NIC, for clouds that limit a flow: Amazon, Google.
const SOCKETS_BY_VENDOR: [(&str, usize); 2] = [("0x1d0f", 8), ("0x1ae0", 4)];

/// Maximum number of stacked interfaces, such as a VLAN on a bond.
const LAYERS_MAX: usize = 4;

/// The properties of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Rate in Mbit/s, if a NIC or a bond reports one.
    pub rate_mbps: Option<u32>,
    /// Number of sockets that fill the link.
    pub sockets: usize,
}

impl Link {
    /// Reads the link behind interface `name` from the `sys` below `root`.
    pub fn read(root: &Path, name: &str) -> Link {
        let mut folder = root.join("sys/class/net").join(name);
        for _ in 0..LAYERS_MAX {
            let has = |file: &str| folder.join(file).exists();
            if has("device") || has("bonding") {
                return Link::of_nic(&folder);
            }
            match lower(&folder) {
                Some(below) if !has("bridge") => folder = below,
                _ => break,
            }
        }
        Link::UNKNOWN
    }

    const UNKNOWN: Link = Link {
        rate_mbps: None,
        sockets: 1,
    };

    fn of_nic(folder: &Path) -> Link {
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        // -1 if the driver does not know the rate.
        let rate_mbps = read("speed").and_then(|text| text.trim().parse().ok());
        let vendor = read("device/vendor").unwrap_or_default();
        let mut vendors = SOCKETS_BY_VENDOR.iter();
        let by_vendor = vendors.find(|(number, _)| vendor.trim() == *number);
        let mut rates = SOCKETS_BY_RATE.iter();
        let by_rate = rates.find(|(least, _)| rate_mbps >= Some(*least));
        let sockets = by_vendor.map_or(1, |(_, sockets)| *sockets);
        Link {
            rate_mbps,
            sockets: sockets.max(by_rate.map_or(1, |(_, sockets)| *sockets)),
        }
    }
}

/// Returns for each of `candidates`, with their `links`, whether it may carry data beside the
/// others: a link that is chosen by name, or whose rate is known. A link of less than half of the
/// fastest link's rate may not: all would wait for its share.
pub fn rails(candidates: &Candidates, links: &[Link]) -> Vec<bool> {
    let fastest = links.iter().filter_map(|link| link.rate_mbps).max();
    let is_rail = |link: &Link| match link.rate_mbps {
        Some(rate) => Some(rate) >= fastest.map(|fastest| fastest / 2),
        None => candidates.are_named,
    };
    let pairs = candidates.interfaces.iter().zip(links);
    pairs
        .map(|(interface, link)| !interface.is_loopback && is_rail(link))
        .collect()
}

/// Returns the interface on which another is stacked, if there is exactly one.
fn lower(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let mut below = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(folder.parent()?.join(name.strip_prefix("lower_")?))
    });
    let first = below.next();
    first.filter(|_| below.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::interfaces::Interface;

    /// Returns the link of interface `name`, given these files and folders.
    fn link(name: &str, files: &[(&str, &str)], folders: &[&str]) -> Link {
        let test = std::thread::current()
            .name()
            .unwrap_or("")
            .replace("::", "-");
        let root = std::env::temp_dir().join(format!("ringfold-{}-{test}", std::process::id()));
        let net = root.join("sys/class/net");
        for folder in folders {
            fs::create_dir_all(net.join(folder)).unwrap();
        }
        for (file, content) in files {
            let path = net.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let link = Link::read(&root, name);
        fs::remove_dir_all(&root).unwrap();
        link
    }

    fn nic(rate: &str, vendor: &str) -> (Option<u32>, usize) {
        let files = [("eth0/speed", rate), ("eth0/device/vendor", vendor)];
        let link = link("eth0", &files, &[]);
        (link.rate_mbps, link.sockets)
    }

    #[test]
    fn faster_links_take_more_sockets() {
        assert_eq!(nic("1000\n", "0x8086\n"), (Some(1000), 1));
        assert_eq!(nic("10000\n", "0x8086\n"), (Some(10_000), 1));
        assert_eq!(nic("25000\n", "0x15b3\n"), (Some(25_000), 2));
        assert_eq!(nic("50000\n", "0x15b3\n"), (Some(50_000), 4));
        assert_eq!(nic("400000\n", "0x15b3\n"), (Some(400_000), 8));
    }

    #[test]
    fn links_of_about_one_rate_are_rails_and_others_where_they_are_named() {
        let interface = |name: &&str| Interface {
            name: (*name).into(),
            address: [10, 0, 0, 1].into(),
            prefix: 24,
            is_loopback: *name == "lo",
        };
        let rates = [None, Some(100_000), Some(50_000), Some(1000), None];
        let links = rates.map(|rate_mbps| Link {
            rate_mbps,
            sockets: 1,
        });
        let flags = |are_named: bool| {
            let names = ["lo", "eth0", "eth1", "eth2", "eth3"];
            let interfaces = names.iter().map(interface).collect();
            rails(
                &Candidates {
                    interfaces,
                    are_named,
                },
                &links,
            )
        };
        assert_eq!(flags(false), [false, true, true, false, false]);
        assert_eq!(flags(true), [false, true, true, false, true]);
    }

    #[test]
    fn clouds_limit_a_flow_whatever_the_rate() {
        assert_eq!(nic("-1\n", "0x1d0f\n"), (None, 8));
        assert_eq!(nic("-1\n", "0x1ae0\n"), (None, 4));
        assert_eq!(nic("-1\n", "0x1af4\n"), (None, 1));
        assert_eq!(nic("100000\n", "0x1ae0\n"), (Some(100_000), 8));
    }

    #[test]
    fn what_a_virtual_interface_claims_is_not_a_rate() {
        let claim = [("eth0/speed", "10000\n"), ("br0/speed", "100000\n")];
        assert_eq!(link("eth0", &claim, &[]), Link::UNKNOWN);
        let port = [("nic/speed", "100000\n"), ("nic/device/vendor", "")];
        let files = [claim.as_slice(), &port].concat();
        assert_eq!(
            link("br0", &files, &["br0/bridge", "br0/lower_nic"]),
            Link::UNKNOWN
        );
        assert_eq!(link("gone", &[], &["eth0"]), Link::UNKNOWN);
    }

    #[test]
    fn bonds_have_a_rate_and_a_vlan_has_its_nics() {
        let files = [("bond0/speed", "50000\n"), ("nic/speed", "25000\n")];
        let folders = [
            "bond0/bonding",
            "bond0/lower_a",
            "bond0/lower_b",
            "nic/device",
            "vlan/lower_nic",
            "top/lower_bond0",
            // A loop, which the kernel does not permit.
            "round/lower_round",
        ];
        let sockets = |name: &str| link(name, &files, &folders).sockets;
        let found = ["bond0", "vlan", "top", "round"].map(sockets);
        assert_eq!(found, [4, 2, 4, 1]);
    }
}
