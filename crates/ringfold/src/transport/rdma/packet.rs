//! The packets of the transport, sent in addition to the writes.
//!
//! ```text
//!  0 kind: u8   4 number: u32   8 consumed: u32   12 bytes: u32
//! 16 header: 40 bytes           56 address: u64   64 rkey: u32
//! 56 payload of `Whole`
//! ```
//!
//! Little endian. Fields that a kind does not use are zero, and are cut off at the end.

use crate::transport::HEADER_BYTES;
use crate::verbs::RemoteAddress;

/// Maximum payload that is sent with its header, without a grant.
pub const WHOLE_BYTES_MAX: usize = 4096;

/// Offset of the payload in `Whole`.
pub const PAYLOAD_AT: usize = 56;

/// Length of the longest packet without a payload.
pub const CONTROL_BYTES_MAX: usize = 68;

/// Length of the longest packet, rounded up.
pub const PACKET_BYTES_MAX: usize = (PAYLOAD_AT + WHOLE_BYTES_MAX).next_multiple_of(64);

/// Content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A short message, whose payload follows.
    Whole {
        number: u32,
        header: [u8; HEADER_BYTES],
    },
    /// Announcement of a long message, which waits for its grant.
    Begin {
        number: u32,
        header: [u8; HEADER_BYTES],
    },
    /// Permission to write the next `bytes` of the expected message, with this number and header.
    Grant {
        number: u32,
        header: [u8; HEADER_BYTES],
        bytes: u32,
        place: RemoteAddress,
    },
    /// Only the count `consumed`, which every packet contains.
    Credit,
    /// Goodbye, the last packet of a peer that closes its communicator.
    Bye,
}

impl Packet {
    /// Encodes the packet in `room`, without the payload; returns its length. `consumed` is the
    /// number of the peer's short messages taken, modulo 2^32.
    pub fn encode(&self, consumed: u32, room: &mut [u8; CONTROL_BYTES_MAX]) -> usize {
        *room = [0; CONTROL_BYTES_MAX];
        room[8..12].copy_from_slice(&consumed.to_le_bytes());
        let mut named = |kind: u8, number: u32, header: &[u8; HEADER_BYTES]| {
            room[0] = kind;
            room[4..8].copy_from_slice(&number.to_le_bytes());
            room[16..56].copy_from_slice(header);
        };
        match self {
            Packet::Whole { number, header } => named(1, *number, header),
            Packet::Begin { number, header } => named(2, *number, header),
            Packet::Grant {
                number,
                header,
                bytes,
                place,
            } => {
                named(3, *number, header);
                room[12..16].copy_from_slice(&bytes.to_le_bytes());
                room[56..64].copy_from_slice(&place.address.to_le_bytes());
                room[64..68].copy_from_slice(&place.rkey.to_le_bytes());
                return CONTROL_BYTES_MAX;
            }
            Packet::Credit => {
                room[0] = 4;
                return 16;
            }
            Packet::Bye => {
                room[0] = 5;
                return 16;
            }
        }
        PAYLOAD_AT
    }

    /// Decodes a packet and `consumed`; `None` if `received` is invalid. The payload of `Whole`
    /// begins at [`PAYLOAD_AT`].
    pub fn decode(received: &[u8]) -> Option<(Packet, u32)> {
        let bytes = |at: usize, count: usize| received.get(at..at + count);
        let word = |at: usize| Some(u32::from_le_bytes(bytes(at, 4)?.try_into().ok()?));
        let header = || bytes(16, HEADER_BYTES)?.try_into().ok();
        let packet = match *received.first()? {
            1 => Packet::Whole {
                number: word(4)?,
                header: header()?,
            },
            2 => Packet::Begin {
                number: word(4)?,
                header: header()?,
            },
            3 => Packet::Grant {
                number: word(4)?,
                header: header()?,
                bytes: word(12)?,
                place: RemoteAddress {
                    address: u64::from_le_bytes(bytes(56, 8)?.try_into().ok()?),
                    rkey: word(64)?,
                },
            },
            4 => Packet::Credit,
            5 => Packet::Bye,
            _ => return None,
        };
        Some((packet, word(8)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_reads_back_as_it_was_written_and_not_if_it_is_cut() {
        let header = std::array::from_fn(|byte| byte as u8);
        let place = RemoteAddress {
            address: 0x0123_4567_89ab_cdef,
            rkey: 0xfeed,
        };
        let number = 0x8000_0001;
        let packets = [
            Packet::Whole { number, header },
            Packet::Begin { number, header },
            Packet::Grant {
                number,
                header,
                bytes: u32::MAX,
                place,
            },
            Packet::Credit,
            Packet::Bye,
        ];
        for packet in packets {
            let mut room = [0xff; CONTROL_BYTES_MAX];
            let bytes = packet.encode(77, &mut room);
            assert_eq!(Packet::decode(&room[..bytes]), Some((packet, 77)));
            let shortest = match packet {
                Packet::Credit | Packet::Bye => 12,
                _ => bytes,
            };
            assert_eq!(Packet::decode(&room[..shortest - 1]), None, "{packet:?}");
        }
        assert_eq!(Packet::decode(&[9; 68]), None);
    }
}
