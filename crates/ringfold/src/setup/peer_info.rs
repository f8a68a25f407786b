//! Each rank's description of itself, exchanged before the ranks are linked.
//!
//! A peer's description is a claim: it is read completely and within bounds, or refused with an
//! error that names the peer. A rank that connects to an address proves by a handshake who it is.

pub mod endpoint;
pub mod fabric_port;

use crate::control::fd::ListenerName;
use crate::control::socket::CANDIDATES_MAX;
use crate::control::wire::{Wire, WireReader, WireWriter, wire_struct};
use crate::error::{Error, Result};
use crate::topology::cores;
use crate::transport::tcp::SOCKETS_MAX;
use crate::tune::bounds::Bounds;
use endpoint::Endpoint;
use fabric_port::{FabricPort, PORTS_MAX};

/// Maximum bytes of a list of cores: every second core that an affinity can hold.
const AFFINITY_BYTES_MAX: usize = 32 << 10;

/// One rank's part of the first exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerInfo {
    /// Endpoints for data by TCP: no more than [`CANDIDATES_MAX`].
    pub endpoints: Vec<Endpoint>,
    /// Ports for RDMA: no more than [`PORTS_MAX`].
    pub ports: Vec<FabricPort>,
    /// Number of sockets of each channel, if configured.
    pub sockets: Option<u32>,
    /// Number of sockets of each channel for which there are descriptors.
    pub sockets_max: u32,
    /// Name of the socket at which the rank passes its host's shared memory, if it is the first
    /// rank of its host.
    pub memory: Option<ListenerName>,
    /// Cores that the rank may run on.
    pub affinity: CoreList,
    /// Bounds on the number of channels of calls over messages, if configured.
    pub channels: Option<Bounds>,
    /// Policy for slow ranks, as text.
    pub straggler: String,
    /// Payload of a message in bytes, if configured.
    pub chunk_bytes: Option<u64>,
    /// Slice size, the pipeline's unit, in bytes, if configured.
    pub slice_bytes: Option<u64>,
}

wire_struct!(PeerInfo {
    endpoints,
    ports,
    sockets,
    sockets_max,
    memory,
    affinity,
    channels,
    straggler,
    chunk_bytes,
    slice_bytes
} if PeerInfo::is_sound);

impl PeerInfo {
    fn is_sound(&self) -> bool {
        let is_count = |sockets: u32| (1..=SOCKETS_MAX as u32).contains(&sockets);
        self.endpoints.len() <= CANDIDATES_MAX
            && self.ports.len() <= PORTS_MAX
            && self.sockets.is_none_or(is_count)
    }
}

/// Cores in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreList(pub Vec<usize>);

/// A list of cores as a text, in which ranges are short.
impl Wire for CoreList {
    fn write(&self, to: &mut WireWriter) {
        to.text(&cores::format_list(&self.0), AFFINITY_BYTES_MAX);
    }

    fn read(from: &mut WireReader<'_>) -> Option<CoreList> {
        cores::parse_list(&from.text(AFFINITY_BYTES_MAX)?).map(CoreList)
    }
}

impl Wire for Bounds {
    fn write(&self, record: &mut WireWriter) {
        record.u32(self.least() as u32);
        record.u32(self.most() as u32);
    }

    fn read(record: &mut WireReader<'_>) -> Option<Bounds> {
        let (least, most) = (record.u32()? as usize, record.u32()? as usize);
        Bounds::new(Some(least), Some(most)).ok()
    }
}

/// Returns the bounds on channels for all ranks: as configured, or else up to one channel for each
/// of the RDMA `rails`, so that a call on as many channels uses all of them.
pub(super) fn channels(peers: &[PeerInfo], rails: usize) -> Bounds {
    let told = peers.iter().find_map(|peer| peer.channels);
    told.unwrap_or_else(|| Bounds::of_rails(rails))
}

/// Checks that all ranks have the same bounds on channels, number of sockets, straggler policy, and
/// sizes of chunks and slices. Otherwise some would wait for connections or messages that the
/// others never make, or combine pieces that do not belong together. Calls compare only a part of
/// the size.
pub(super) fn compare(peers: &[PeerInfo]) -> Result<()> {
    let first = &peers[0];
    let other = |differs: &dyn Fn(&PeerInfo) -> bool| peers.iter().position(differs);
    let bounds = |peer: &PeerInfo| peer.channels.unwrap_or_default();
    if let Some(rank) = other(&|peer| bounds(peer) != bounds(first)) {
        return Err(Error::InvalidArgument(format!(
            "{} on rank 0 and {} on rank {rank}; set RINGFOLD_MIN_CHANNELS, RINGFOLD_MAX_CHANNELS \
             and RINGFOLD_CHANNELS to the same values on all ranks",
            bounds(first),
            bounds(&peers[rank])
        )));
    }
    if let Some(rank) = other(&|peer| peer.sockets != first.sockets) {
        let count = |info: &PeerInfo| {
            info.sockets
                .map_or("auto".into(), |count| count.to_string())
        };
        return Err(Error::InvalidArgument(format!(
            "{} sockets on rank 0 and {} on rank {rank}; set RINGFOLD_SOCKETS to the same value on \
                all ranks",
            count(first),
            count(&peers[rank])
        )));
    }
    if let Some(rank) = other(&|peer| peer.straggler != first.straggler) {
        return Err(Error::InvalidArgument(format!(
            "straggler policy `{}` on rank 0 and `{}` on rank {rank}; set RINGFOLD_STRAGGLER and \
             RINGFOLD_LATE_RANK to the same values on all ranks",
            first.straggler, peers[rank].straggler
        )));
    }
    same_bytes(peers, "RINGFOLD_CHUNK_BYTES", |peer| peer.chunk_bytes)?;
    same_bytes(peers, "RINGFOLD_SLICE_BYTES", |peer| peer.slice_bytes)
}

/// Checks that all ranks have the same size for `variable`.
fn same_bytes(
    peers: &[PeerInfo],
    variable: &str,
    of: impl Fn(&PeerInfo) -> Option<u64>,
) -> Result<()> {
    let first = of(&peers[0]);
    let Some(rank) = peers.iter().position(|peer| of(peer) != first) else {
        return Ok(());
    };
    let text = |bytes: Option<u64>| bytes.map_or("the default".into(), |count| count.to_string());
    Err(Error::InvalidArgument(format!(
        "{variable}: {} on rank 0 and {} on rank {rank}; set the same value on all ranks",
        text(first),
        text(of(&peers[rank]))
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire;
    use crate::topology::link::Link;

    fn endpoint(address: &str, prefix: u32) -> Endpoint {
        Endpoint {
            address: address.parse().expect("an address"),
            prefix,
            interface: 3,
            link: Link {
                rate_mbps: Some(100_000),
                sockets: 8,
            },
            is_rail: true,
        }
    }

    fn port() -> FabricPort {
        FabricPort {
            lid: 7,
            gid: [3; 16],
            mtu_bytes: 4096,
            is_ethernet: true,
            rate_mbps: Some(100_000),
        }
    }

    fn info() -> PeerInfo {
        PeerInfo {
            endpoints: vec![endpoint("10.1.2.3:4", 24), endpoint("[fd00::1]:5", 64)],
            ports: vec![port()],
            sockets: Some(2),
            sockets_max: 7,
            memory: Some([7; 16]),
            affinity: CoreList(vec![0, 1, 2, 7]),
            channels: Bounds::new(Some(2), Some(8)).ok(),
            straggler: "off".into(),
            chunk_bytes: Some(1 << 20),
            slice_bytes: None,
        }
    }

    fn is_refused(record: &[u8]) -> bool {
        wire::decode::<PeerInfo>(record).is_none()
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for info in [info(), PeerInfo::default()] {
            assert_eq!(wire::decode(&wire::encode(&info)), Some(info));
        }
    }

    #[test]
    fn a_record_cut_off_anywhere_or_with_more_behind_it_is_refused() {
        let record = wire::encode(&info());
        for length in 0..record.len() {
            assert!(is_refused(&record[..length]), "{length} bytes");
        }
        assert!(is_refused(&[record, vec![0]].concat()));
    }

    #[test]
    fn wrong_values_are_refused() {
        let one = info().endpoints[0];
        let wrong: [fn(&mut PeerInfo); 5] = [
            |info| info.endpoints[0].prefix = 33,
            |info| info.endpoints[1].prefix = 129,
            |info| info.sockets = Some(0),
            |info| info.sockets = Some(65),
            |info| info.affinity = CoreList(vec![1 << 20]),
        ];
        for change in wrong {
            let mut info = info();
            change(&mut info);
            assert!(is_refused(&wire::encode(&info)), "{info:?}");
        }
        let mut many = info();
        many.endpoints = vec![one; CANDIDATES_MAX + 1];
        assert!(is_refused(&wire::encode(&many)));
        let mut many = info();
        many.ports = vec![port(); PORTS_MAX + 1];
        assert!(is_refused(&wire::encode(&many)));
    }

    #[test]
    fn wrong_bytes_are_refused() {
        let good = wire::encode(&info());
        let replaced = |from: &[u8], to: &[u8]| {
            let at = good.windows(from.len()).position(|window| window == from);
            let at = at.expect("part of the record");
            [&good[..at], to, &good[at + from.len()..]].concat()
        };
        let bounds = |least: u32, most: u32| [least.to_le_bytes(), most.to_le_bytes()].concat();
        for record in [
            replaced(b"10.1.2.3:4", b"10.1.2.3.4"),
            replaced(b"0-2,7", b"2-0,7"),
            replaced(b"0-2,7", b"\xff\xfe\xfd\xfc\xfb"),
            replaced(&bounds(2, 8), &bounds(4, 2)),
            replaced(&bounds(2, 8), &bounds(1, 65)),
            replaced(&2u32.to_le_bytes(), &u32::MAX.to_le_bytes()),
        ] {
            assert!(is_refused(&record), "{record:?}");
        }
    }

    #[test]
    fn ranks_with_different_channels_are_an_error_that_names_them() {
        let with = |least, most| PeerInfo {
            channels: Bounds::new(Some(least), Some(most)).ok(),
            ..info()
        };
        compare(&[with(1, 2), with(1, 2)]).expect("the same");
        let error = compare(&[with(1, 2), with(1, 2), with(1, 4)]).unwrap_err();
        let text = error.to_string();
        let due = "1 to 2 channels on rank 0 and 1 to 4 channels on rank 2";
        assert!(text.contains(due), "{text}");
    }

    #[test]
    fn rails_have_a_channel_each_unless_the_ranks_were_told() {
        let with = |channels| PeerInfo { channels, ..info() };
        let one = Some(Bounds::default());
        for (peers, rails, most) in [
            ([None, None], 0, 1),
            ([None, None], 1, 1),
            ([None, None], 4, 4),
            ([None, one], 4, 1),
            ([one, None], 4, 1),
        ] {
            let peers = peers.map(with);
            compare(&peers).expect("the default is one channel");
            let bounds = channels(&peers, rails);
            assert_eq!((bounds.least(), bounds.most()), (1, most), "{rails} rails");
        }
    }

    #[test]
    fn ranks_with_different_sockets_are_an_error_that_names_them() {
        let with = |sockets| PeerInfo { sockets, ..info() };
        for (other, due) in [
            (Some(4), "2 sockets on rank 0 and 4"),
            (None, "and auto on rank 1"),
        ] {
            let peers = [with(Some(2)), with(other)];
            let text = compare(&peers).unwrap_err().to_string();
            assert!(
                text.contains(due) && text.contains("RINGFOLD_SOCKETS"),
                "{text}"
            );
        }
    }

    #[test]
    fn ranks_with_different_sizes_of_pieces_are_an_error_that_names_them() {
        let with = |slice_bytes| PeerInfo {
            slice_bytes,
            ..info()
        };
        compare(&[with(Some(65536)), with(Some(65536))]).expect("the same");
        // The sizes are the same in the ten bits that a call compares.
        let pairs = [(Some(65536), Some(29504)), (None, Some(65536))];
        for (one, other) in pairs {
            let text = compare(&[with(one), with(other)]).unwrap_err().to_string();
            assert!(text.contains("RINGFOLD_SLICE_BYTES"), "{text}");
        }
    }

    #[test]
    fn ranks_with_different_straggler_policies_are_an_error_that_names_them() {
        let with = |policy: &str| PeerInfo {
            straggler: policy.into(),
            ..info()
        };
        for (peers, due) in [
            (
                ["off", "off", "tail"],
                "`off` on rank 0 and `tail` on rank 2",
            ),
            (
                ["off", "tail", "off"],
                "`off` on rank 0 and `tail` on rank 1",
            ),
            (
                ["off, late rank 1", "off, late rank 2", "off, late rank 2"],
                "`off, late rank 1` on rank 0 and `off, late rank 2` on rank 1",
            ),
        ] {
            let error = compare(&peers.map(with)).unwrap_err().to_string();
            assert!(error.contains(due), "{error}");
        }
    }
}
