//! A rank's description of a port for RDMA. From a peer, the description is a claim.

use crate::control::wire::wire_struct;
use crate::verbs::{Gid, OpenedPort};

/// Maximum number of ports that one rank uses.
pub const PORTS_MAX: usize = 16;

/// The address and properties of a rank's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricPort {
    /// Address in an InfiniBand subnet.
    pub lid: u16,
    /// Global address.
    pub gid: Gid,
    /// Maximum payload of a packet.
    pub mtu_bytes: u32,
    /// Whether the port is on Ethernet.
    pub is_ethernet: bool,
    /// Rate of the port in Mbit/s, if known.
    pub rate_mbps: Option<u32>,
}

impl FabricPort {
    /// Describes a port of this rank.
    pub fn of(opened: &OpenedPort) -> FabricPort {
        FabricPort {
            lid: opened.port.lid,
            gid: opened.gid,
            mtu_bytes: opened.port.mtu_bytes,
            is_ethernet: opened.is_global(),
            rate_mbps: opened.port.rate_gbps.map(|rate| rate.saturating_mul(1000)),
        }
    }

    /// Whether packets can get from one port to the other, according to the addresses: on
    /// InfiniBand only within a subnet.
    pub fn reaches(&self, other: &FabricPort) -> bool {
        let is_near = self.is_ethernet || self.gid[..8] == other.gid[..8];
        self.is_ethernet == other.is_ethernet && is_near
    }
}

wire_struct!(FabricPort {
    lid,
    gid,
    mtu_bytes,
    is_ethernet,
    rate_mbps,
});
