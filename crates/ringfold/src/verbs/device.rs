//! Devices, their ports, and the ports' addresses.

use std::fmt;
use std::fs;
use std::path::Path;
use std::ptr;

use super::layout::{Gid, IbvContext, PortAttr};
use super::{Verbs, text};
use crate::error::{Error, Result};

/// Folder of the properties that verbs do not report.
const SYSFS: &str = "/sys/class/infiniband";
/// Maximum number of ports; no device has more.
const PORTS_MAX: u8 = 8;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;
/// `IBV_PORT_ACTIVE`.
const ACTIVE: u32 = 4;

/// Network that carries a port's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// RoCE.
    Ethernet,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// Usable.
    Active,
    /// Not usable now; the number is verbs'.
    Other(u32),
}

/// Kind of an entry in a port's table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GidKind {
    /// RoCE v2: UDP over IP, which is routed.
    RoceV2,
    /// RoCE v1: frames within one network.
    RoceV1,
    /// InfiniBand's own addresses.
    InfiniBand,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number of the port, from 1 on.
    pub number: u8,
    /// State of the port.
    pub state: PortState,
    /// Network that carries the port's packets.
    pub link_layer: LinkLayer,
    /// Payload of the largest packet.
    pub mtu_bytes: u32,
    /// Address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Rate reported by the kernel, if any.
    pub rate_gbps: Option<u32>,
    /// Table entries in use: index, kind, address.
    pub gids: Vec<(u8, GidKind, Gid)>,
}

/// An opened device, closed when dropped.
pub struct RdmaDevice {
    pub(super) verbs: &'static Verbs,
    pub(super) context: *mut IbvContext,
    name: String,
    /// The process that opened the device.
    process: u32,
}

// SAFETY: libibverbs allows calls on a context from any thread, also at once.
unsafe impl Send for RdmaDevice {}
// SAFETY: as above.
unsafe impl Sync for RdmaDevice {}

impl Verbs {
    /// Returns the names of the devices, in the library's order.
    ///
    /// # Errors
    /// `System` if the library cannot list the devices.
    pub fn devices(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.each_device(|name, _| {
            names.push(name);
            false
        })?;
        Ok(names)
    }

    /// Opens the device `name`.
    ///
    /// # Errors
    /// `Unsupported` if no device has this name; `System` if the device cannot be opened.
    pub fn device(&'static self, name: &str) -> Result<RdmaDevice> {
        let mut opened = None;
        self.each_device(|found, device| {
            if found != name {
                return false;
            }
            // SAFETY: a device of the list, which is freed later.
            let context = unsafe { (self.table.open_device)(device) };
            opened = Some(match context.is_null() {
                true => Err(self.failure("open_device")),
                false => Ok(RdmaDevice {
                    verbs: self,
                    context,
                    name: found,
                    process: std::process::id(),
                }),
            });
            true
        })?;
        opened.unwrap_or_else(|| {
            let found = self.devices()?.join(", ");
            Err(Error::Unsupported(format!(
                "no RDMA device `{name}` (found: {})",
                if found.is_empty() { "none" } else { &found }
            )))
        })
    }

    /// Calls `visit` for each device until `visit` returns true.
    fn each_device(
        &self,
        mut visit: impl FnMut(String, *mut super::layout::IbvDevice) -> bool,
    ) -> Result<()> {
        let mut count = 0;
        // SAFETY: the library stores the number of entries in `count`.
        let list = unsafe { (self.table.get_device_list)(&mut count) };
        if list.is_null() {
            return Err(self.failure("get_device_list"));
        }
        for index in 0..count as usize {
            // SAFETY: the list has `count` entries.
            let device = unsafe { *list.add(index) };
            // SAFETY: the name is the device's own, which stays as long as the list.
            let name = unsafe { text((self.table.get_device_name)(device)) };
            if visit(name, device) {
                break;
            }
        }
        // SAFETY: the library's own list, once; opened devices stay.
        unsafe { (self.table.free_device_list)(list) };
        Ok(())
    }
}

impl RdmaDevice {
    /// Returns the device's name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this value is a copy in a forked child: the device belongs to the parent, and a copy
    /// is forgotten instead of freed, because both processes have the kernel's one object.
    pub fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    /// Returns the device's ports.
    ///
    /// # Errors
    /// `System` if the query of the first port fails.
    pub fn ports(&self) -> Result<Vec<Port>> {
        let first = self.port(1)?;
        let others = (2..=PORTS_MAX).map_while(|number| self.port(number).ok());
        Ok(std::iter::once(first).chain(others).collect())
    }

    fn port(&self, number: u8) -> Result<Port> {
        let mut attributes = PortAttr::default();
        // SAFETY: an opened device; the library fills in what is zero until then.
        let code = unsafe {
            (self.verbs.table.query_port)(self.context, number, ptr::from_mut(&mut attributes))
        };
        self.verbs.check("query_port", code)?;
        let link_layer = match attributes.link_layer {
            ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::InfiniBand,
        };
        let folder = Path::new(SYSFS)
            .join(&self.name)
            .join("ports")
            .join(number.to_string());
        let rate = fs::read_to_string(folder.join("rate")).ok();
        Ok(Port {
            number,
            state: match attributes.state {
                ACTIVE => PortState::Active,
                other => PortState::Other(other),
            },
            link_layer,
            mtu_bytes: 128 << attributes.active_mtu.clamp(1, 5),
            lid: attributes.lid,
            rate_gbps: rate.and_then(|text| gigabits(&text)),
            gids: (0..attributes.gid_tbl_len.clamp(0, 255) as u8)
                .filter_map(|index| {
                    let (kind, gid) = self.gid(&folder, number, index, link_layer)?;
                    Some((index, kind, gid))
                })
                .collect(),
        })
    }

    /// Returns an entry of a port's table of addresses; `None` if the entry is empty.
    fn gid(
        &self,
        folder: &Path,
        port: u8,
        index: u8,
        link_layer: LinkLayer,
    ) -> Option<(GidKind, Gid)> {
        let mut gid = Gid::default();
        // SAFETY: an opened device; the library stores 16 bytes.
        let code =
            unsafe { (self.verbs.table.query_gid)(self.context, port, index.into(), &mut gid) };
        if code != 0 || gid == Gid::default() {
            return None;
        }
        if link_layer == LinkLayer::InfiniBand {
            return Some((GidKind::InfiniBand, gid));
        }
        let kind = folder.join("gid_attrs/types").join(index.to_string());
        let kind = fs::read_to_string(kind).ok()?;
        match kind.trim() {
            "RoCE v2" => Some((GidKind::RoceV2, gid)),
            _ => Some((GidKind::RoceV1, gid)),
        }
    }
}

impl Port {
    /// Returns the index of the address that connections use by default. On InfiniBand, the first
    /// address; on Ethernet, of RoCE v2, an IPv4 address, else a global IPv6 address, else a
    /// link-local one, which is not routed.
    pub fn gid_index(&self) -> Option<u8> {
        let rank = |kind: GidKind, gid: &Gid| {
            let is_ipv4 = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            let is_local = gid[..2] == [0xfe, 0x80] || (is_ipv4 && gid[12..14] == [169, 254]);
            (kind, is_local, !is_ipv4)
        };
        let usable = self
            .gids
            .iter()
            .filter(|(_, kind, _)| *kind != GidKind::RoceV1);
        usable
            .min_by_key(|(index, kind, gid)| (rank(*kind, gid), *index))
            .map(|(index, ..)| *index)
    }
}

/// Returns the number in "100 Gb/sec (4X EDR)".
fn gigabits(text: &str) -> Option<u32> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    (number > 0.0).then_some(number.round() as u32)
}

impl fmt::Debug for RdmaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}

impl Drop for RdmaDevice {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        // SAFETY: opened once, and nothing created from it is left.
        unsafe { (self.verbs.table.close_device)(self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(gids: Vec<(u8, GidKind, Gid)>) -> Port {
        Port {
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            mtu_bytes: 4096,
            lid: 0,
            rate_gbps: Some(100),
            gids,
        }
    }

    #[test]
    fn of_a_ports_addresses_the_one_that_is_routed_is_chosen() {
        let ipv4 = |last: [u8; 4]| {
            let mut gid = [0; 16];
            (gid[10], gid[11]) = (0xff, 0xff);
            gid[12..].copy_from_slice(&last);
            gid
        };
        let ipv6 = |first: [u8; 2]| {
            let mut gid = [1; 16];
            gid[..2].copy_from_slice(&first);
            gid
        };
        let local = (1, GidKind::RoceV2, ipv6([0xfe, 0x80]));
        let global = (2, GidKind::RoceV2, ipv6([0x20, 0x01]));
        let old = (0, GidKind::RoceV1, ipv4([10, 0, 0, 1]));
        let own = (5, GidKind::RoceV2, ipv4([169, 254, 0, 1]));
        let routed = (3, GidKind::RoceV2, ipv4([10, 0, 0, 1]));
        assert_eq!(port(vec![]).gid_index(), None);
        assert_eq!(port(vec![old]).gid_index(), None);
        assert_eq!(port(vec![old, local]).gid_index(), Some(1));
        assert_eq!(port(vec![old, local, own, global]).gid_index(), Some(2));
        assert_eq!(
            port(vec![old, local, own, global, routed]).gid_index(),
            Some(3)
        );
    }

    #[test]
    fn a_rate_is_the_first_number_of_the_kernels_text() {
        assert_eq!(gigabits("100 Gb/sec (4X EDR)\n"), Some(100));
        assert_eq!(gigabits("2.5 Gb/sec (1X SDR)"), Some(3));
        assert_eq!(gigabits(""), None);
    }

    #[test]
    #[ignore = "needs RDMA devices, such as those of bench/rdma_vm.sh"]
    fn each_device_has_a_port_that_connections_can_use() {
        let verbs = Verbs::open(None).unwrap();
        let names = verbs.devices().unwrap();
        assert!(names.len() >= 2, "{names:?}");
        for name in &names {
            let device = verbs.device(name).unwrap();
            assert_eq!(device.name(), name);
            let ports = device.ports().unwrap();
            assert_eq!(ports.len(), 1, "{name}: {ports:?}");
            let port = &ports[0];
            assert_eq!((port.number, port.state), (1, PortState::Active), "{name}");
            assert_eq!(port.link_layer, LinkLayer::Ethernet, "{name}");
            assert!((256..=4096).contains(&port.mtu_bytes), "{name}: {port:?}");
            assert!(port.rate_gbps.is_some_and(|rate| rate > 0), "{name}");
            let index = port.gid_index().unwrap();
            let (_, kind, gid) = port.gids.iter().find(|(at, ..)| *at == index).unwrap();
            // The address of the interface, 10.77.0.1 and up.
            assert_eq!(*kind, GidKind::RoceV2, "{name}");
            assert_eq!(gid[10..15], [0xff, 0xff, 10, 77, 0], "{name}: {gid:?}");
        }
        let error = verbs.device("no-such-device").unwrap_err().to_string();
        assert!(error.contains(&names.join(", ")), "{error}");
    }
}
