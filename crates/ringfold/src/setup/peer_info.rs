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
use crate::tune::channels::{self, CHANNELS_MAX};
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
    pub sockets: Option<usize>,
    /// Number of sockets of each channel for which there are descriptors.
    pub sockets_max: usize,
    /// Name of the socket at which the rank passes its host's shared memory, if it is the first
    /// rank of its host.
    pub memory: Option<ListenerName>,
    /// Cores that the rank may run on.
    pub affinity: CoreList,
    /// Maximum number of channels of calls over messages, if configured.
    pub channels_max: Option<usize>,
    /// Policy for slow ranks, as text.
    pub straggler: String,
    /// Slice size, the pipeline's unit, in bytes, if configured.
    pub slice_bytes: Option<usize>,
}

wire_struct!(PeerInfo {
    endpoints,
    ports,
    sockets,
    sockets_max,
    memory,
    affinity,
    channels_max,
    straggler,
    slice_bytes
} if PeerInfo::is_sound);

impl PeerInfo {
    fn is_sound(&self) -> bool {
        let up_to = |most| move |count| (1..=most).contains(&count);
        self.endpoints.len() <= CANDIDATES_MAX
            && self.ports.len() <= PORTS_MAX
            && self.channels_max.is_none_or(up_to(CHANNELS_MAX))
            && self.sockets.is_none_or(up_to(SOCKETS_MAX))
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

/// Returns the maximum number of channels for all ranks: as configured, or else one channel for
/// each of the RDMA `rails`, so that a call on as many channels uses all of them.
pub(super) fn channels_max(peers: &[PeerInfo], rails: usize) -> usize {
    let given = peers.iter().find_map(|peer| peer.channels_max);
    given.unwrap_or_else(|| channels::of_rails(rails))
}

/// Checks that all ranks have the same number of channels, number of sockets, straggler policy, and
/// size of slices. Otherwise some would wait for connections or messages that the others never
/// make, or combine pieces that do not belong together. Calls compare only a part of the size.
pub(super) fn compare(peers: &[PeerInfo]) -> Result<()> {
    let count = |count: Option<usize>| count.map_or("auto".into(), |count| count.to_string());
    let settings = |peer: &PeerInfo| {
        let channels = peer.channels_max.unwrap_or(1).to_string();
        let policy = peer.straggler.clone();
        [
            ("maximum of channels", "RINGFOLD_MAX_CHANNELS", channels),
            ("number of sockets", "RINGFOLD_SOCKETS", count(peer.sockets)),
            (
                "straggler policy",
                "RINGFOLD_STRAGGLER and RINGFOLD_LATE_RANK",
                policy,
            ),
            (
                "slice size",
                "RINGFOLD_SLICE_BYTES",
                count(peer.slice_bytes),
            ),
        ]
    };
    let first = settings(&peers[0]);
    for (rank, peer) in peers.iter().enumerate() {
        for ((what, variables, own), (.., other)) in first.iter().zip(settings(peer)) {
            if *own != other {
                return Err(Error::InvalidArgument(format!(
                    "different {what}: `{own}` on rank 0 and `{other}` on rank {rank}; set \
                     {variables} to the same value on all ranks"
                )));
            }
        }
    }
    Ok(())
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
            channels_max: Some(8),
            straggler: "off".into(),
            slice_bytes: Some(1 << 20),
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
        let wrong: [fn(&mut PeerInfo); 7] = [
            |info| info.endpoints[0].prefix = 33,
            |info| info.endpoints[1].prefix = 129,
            |info| info.sockets = Some(0),
            |info| info.sockets = Some(65),
            |info| info.channels_max = Some(0),
            |info| info.channels_max = Some(65),
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
        for record in [
            replaced(b"10.1.2.3:4", b"10.1.2.3.4"),
            replaced(b"0-2,7", b"2-0,7"),
            replaced(b"0-2,7", b"\xff\xfe\xfd\xfc\xfb"),
            replaced(&2u32.to_le_bytes(), &u32::MAX.to_le_bytes()),
        ] {
            assert!(is_refused(&record), "{record:?}");
        }
    }

    #[test]
    fn rails_have_a_channel_each_unless_the_ranks_were_told() {
        let with = |channels_max| PeerInfo {
            channels_max,
            ..info()
        };
        for (peers, rails, most) in [
            ([None, None], 0, 1),
            ([None, None], 1, 1),
            ([None, None], 4, 4),
            ([None, Some(1)], 4, 1),
            ([Some(1), None], 4, 1),
        ] {
            let peers = peers.map(with);
            compare(&peers).expect("the default is one channel");
            assert_eq!(channels_max(&peers, rails), most, "{rails} rails");
        }
    }

    /// Checks that ranks with these changes of one record do not join, and that the error has
    /// `due`.
    fn assert_differ<const N: usize>(changes: [&dyn Fn(&mut PeerInfo); N], due: &str) {
        let peers = changes.map(|change| {
            let mut info = info();
            change(&mut info);
            info
        });
        compare(&[peers[0].clone(), peers[0].clone()]).expect("the same");
        let text = compare(&peers).expect_err("they differ").to_string();
        assert!(text.contains(due), "{text}");
    }

    #[test]
    fn ranks_with_different_settings_are_an_error_that_names_them() {
        let channels = |most| move |info: &mut PeerInfo| info.channels_max = Some(most);
        assert_differ(
            [&channels(2), &channels(2), &channels(4)],
            "different maximum of channels: `2` on rank 0 and `4` on rank 2; set \
             RINGFOLD_MAX_CHANNELS to the same",
        );
        let sockets = |count| move |info: &mut PeerInfo| info.sockets = count;
        assert_differ(
            [&sockets(Some(2)), &sockets(None)],
            "different number of sockets: `2` on rank 0 and `auto` on rank 1; set RINGFOLD_SOCKETS",
        );
        // The sizes are the same in the ten bits that a call compares.
        let slices = |bytes| move |info: &mut PeerInfo| info.slice_bytes = bytes;
        assert_differ(
            [&slices(Some(65536)), &slices(Some(29504))],
            "different slice size: `65536` on rank 0 and `29504` on rank 1; set \
             RINGFOLD_SLICE_BYTES",
        );
        let policy = |text: &'static str| move |info: &mut PeerInfo| info.straggler = text.into();
        assert_differ(
            [&policy("off"), &policy("tail"), &policy("off")],
            "different straggler policy: `off` on rank 0 and `tail` on rank 1; set \
             RINGFOLD_STRAGGLER and RINGFOLD_LATE_RANK",
        );
        assert_differ(
            [&policy("off, late rank 1"), &policy("off, late rank 2")],
            "`off, late rank 1` on rank 0 and `off, late rank 2` on rank 1",
        );
    }
}
