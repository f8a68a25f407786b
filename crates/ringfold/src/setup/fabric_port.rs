//! What a rank says of a port for RDMA. From a peer it is a claim.

use crate::control::wire::{Reader, Wire, Writer};
use crate::verbs::{Gid, Opened};

/// Ports of one rank that are used, at most.
pub const PORTS_MAX: usize = 16;

/// How a rank's port is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricPort {
    /// Its address in a subnet of InfiniBand.
    pub lid: u16,
    /// Its address everywhere.
    pub gid: Gid,
    /// Payload of its packets.
    pub mtu_bytes: u32,
    /// Whether it is on Ethernet.
    pub is_ethernet: bool,
    /// What it carries, if that is known.
    pub rate_mbps: Option<u32>,
}

impl FabricPort {
    /// That of a port of this rank's.
    pub fn of(opened: &Opened) -> FabricPort {
        FabricPort {
            lid: opened.port.lid,
            gid: opened.gid,
            mtu_bytes: opened.port.mtu_bytes,
            is_ethernet: opened.is_global(),
            rate_mbps: opened.port.rate_gbps.map(|rate| rate.saturating_mul(1000)),
        }
    }

    /// Whether packets can go from one to the other, as far as their addresses say: on InfiniBand
    /// within a subnet.
    pub fn reaches(&self, other: &FabricPort) -> bool {
        let is_near = self.is_ethernet || self.gid[..8] == other.gid[..8];
        self.is_ethernet == other.is_ethernet && is_near
    }
}

impl Wire for FabricPort {
    fn write(&self, record: &mut Writer) {
        record.u32(self.lid.into());
        self.gid.write(record);
        record.u32(self.mtu_bytes);
        self.is_ethernet.write(record);
        self.rate_mbps.write(record);
    }

    fn read(record: &mut Reader<'_>) -> Option<FabricPort> {
        Some(FabricPort {
            lid: record.u32()?.try_into().ok()?,
            gid: Wire::read(record)?,
            mtu_bytes: record.u32()?,
            is_ethernet: Wire::read(record)?,
            rate_mbps: Wire::read(record)?,
        })
    }
}
