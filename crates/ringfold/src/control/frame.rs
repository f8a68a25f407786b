//! The frames of a control connection, after the handshake.
//!
//! ```text
//! 0 length of the body: u32   4 kind: u8   5 zero: 3   8 body
//! ```
//!
//! Bodies use the encoding of [`wire`](super::wire). A frame that does not decode to the last byte
//! is an error of the sender.

use std::sync::Arc;

use super::fault::Fault;
use super::standing::Standing;
use super::wire::{Wire, WireReader, WireWriter, wire_struct};
use crate::call::{CALL_BYTES, Call, CallPosition, RootedCalls, SequenceDigest};
use crate::topology::HostId;
use crate::topology::host::HOST_ID_BYTES;

/// Maximum bytes of a rank's blob in an exchange.
pub const BLOB_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of an exchange's key.
pub const KEY_BYTES_MAX: usize = 256;
/// Maximum bytes of a rank's frame: a blob, a key and a list of 64 Ki ranks.
pub const RANK_FRAME_BYTES_MAX: usize = BLOB_BYTES_MAX + KEY_BYTES_MAX + (256 << 10) + 64;
/// Maximum bytes of the server's frame: all blobs of an exchange.
pub const SERVER_FRAME_BYTES_MAX: usize = 256 << 20;
/// Bytes of the header in front of a body.
pub const FRAME_HEADER_BYTES: usize = 8;

/// Host and process of a rank, which it sends when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Host of the rank.
    pub host: HostId,
    /// Process id on that host.
    pub pid: u32,
}

/// Defines the frames, and how each is written and read: a kind, and the fields in this order.
macro_rules! frames {
    ($(
        $(#[$doc:meta])*
        $kind:literal $name:ident $({ $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })?,
    )*) => {
        /// A frame of a control connection.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Frame {
            $($(#[$doc])* $name $({ $($(#[$field_doc])* $field: $type,)* })?,)*
        }

        impl Frame {
            /// Writes the body and returns the kind.
            fn write(&self, body: &mut WireWriter) -> u8 {
                match self {
                    $(Frame::$name $({ $($field),* })? => {
                        $($(Wire::write($field, body);)*)?
                        $kind
                    })*
                }
            }

            /// Reads the body of a frame of this kind; `None` if there is none.
            fn read(kind: u8, body: &mut WireReader<'_>) -> Option<Frame> {
                Some(match kind {
                    $($kind => Frame::$name $({ $($field: Wire::read(body)?,)* })?,)*
                    _ => return None,
                })
            }
        }
    };
}

// Frames from ranks have kinds from 1 on, frames from the server from 32 on.
frames! {
    /// Rank to server, first: the rank joins.
    1 Join {
        /// Host and process of the rank.
        presence: Presence,
    },
    /// Rank to server: the rank's part of an exchange.
    2 Exchange {
        /// The rank's number for the answer.
        token: u64,
        /// Time for the other members, in milliseconds.
        timeout_ms: u64,
        /// Key of the exchange.
        key: String,
        /// World ranks of the members.
        members: Vec<u32>,
        /// Blob of the rank.
        blob: Vec<u8>,
    },
    /// Rank to server: the rank opens a communicator.
    3 Open {
        /// Number of the communicator.
        communicator: u64,
        /// World ranks of the members.
        members: Vec<u32>,
    },
    /// Rank to server: the rank closes a communicator cleanly.
    4 Close {
        /// Number of the communicator.
        communicator: u64,
    },
    /// Rank to server: the rank reports a fault of a communicator.
    5 Report {
        /// Number of the communicator.
        communicator: u64,
        /// The reported fault.
        fault: Fault,
    },
    /// Rank to server: the process of a rank on the sender's host has ended.
    6 Suspect {
        /// The rank whose process has ended.
        rank: u32,
    },
    /// Rank to server: the answer to an inquiry.
    7 Answer {
        /// Number of the communicator.
        communicator: u64,
        /// Number of the inquiry.
        inquiry: u64,
        /// Progress of the rank.
        standing: Standing,
    },
    /// Rank to server: the rank has been waiting in a call for a while.
    11 Claim {
        /// Number of the communicator.
        communicator: u64,
        /// The call, and the collectives with a root before it.
        position: Box<CallPosition>,
    },
    /// Rank to server: the rank asks for the members' progress in a communicator.
    10 Ask {
        /// Number of the communicator.
        communicator: u64,
        /// The rank's number for the answer.
        token: u64,
        /// Time for the members' answers, in milliseconds.
        timeout_ms: u64,
    },
    /// Rank to server, last: the rank leaves the job cleanly.
    8 Goodbye,
    /// Rank to server: the answer to a ping.
    9 Pong,
    /// Server to rank: all ranks have joined.
    32 Welcome {
        /// A random number for this job.
        job: u64,
        /// A random secret for this job's other connections, on UNIX sockets; elsewhere zeros.
        key: [u8; 32],
        /// Peer timeout: how long another host may be silent, in milliseconds.
        silence_ms: u64,
        /// Host and process of every rank.
        ranks: Vec<Presence>,
    },
    /// Server to rank, or launcher to server: not all ranks will join.
    33 Cancelled {
        /// Ranks that are missing or died.
        ranks: Vec<u32>,
        /// Reason of the cancellation.
        reason: String,
    },
    /// Server to a rank that waits for others to join: a connection was refused.
    43 Refused {
        /// The refused process, and the reason.
        reason: String,
    },
    /// Server to rank: an exchange is complete.
    34 Gathered {
        /// The rank's number for the exchange.
        token: u64,
        /// Blobs in the order of the members; shared, because every member gets all of them.
        blobs: Arc<Vec<Vec<u8>>>,
    },
    /// Server to rank: an exchange has failed.
    35 Ungathered {
        /// The rank's number for the exchange.
        token: u64,
        /// The fault that ended the exchange.
        fault: Fault,
    },
    /// Server to rank: a communicator has failed.
    36 Verdict {
        /// Number of the communicator.
        communicator: u64,
        /// The fault that ended the communicator.
        fault: Fault,
    },
    /// Server to rank: a rank has closed a communicator cleanly.
    37 Left {
        /// Number of the communicator.
        communicator: u64,
        /// The rank that closed the communicator.
        rank: u32,
    },
    /// Server to rank: a rank has left the job cleanly; to the leaver itself, the confirmation.
    38 Departed {
        /// The rank that left.
        rank: u32,
    },
    /// Server to rank: the server asks for the rank's progress in a communicator.
    39 Inquiry {
        /// Number of the communicator.
        communicator: u64,
        /// The server's number for the answer.
        inquiry: u64,
    },
    /// Server to rank: the progress of a communicator's members.
    42 Standings {
        /// The rank's number for the question.
        token: u64,
        /// Progress in the order of the members; `None` for members that did not answer.
        standings: Vec<Option<Standing>>,
    },
    /// Server to rank, last: rank 0 leaves cleanly.
    40 Closing,
    /// Server to rank: keeps a connection from being silent.
    41 Ping,
}

impl Frame {
    /// Returns the wire form, header included.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = WireWriter::after(FRAME_HEADER_BYTES);
        let kind = self.write(&mut body);
        let mut bytes = body.into_bytes();
        let length = (bytes.len() - FRAME_HEADER_BYTES) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4] = kind;
        bytes
    }
}

wire_struct!(Presence { host, pid });

impl Wire for HostId {
    fn write(&self, to: &mut WireWriter) {
        self.as_bytes().write(to);
    }

    fn read(from: &mut WireReader<'_>) -> Option<HostId> {
        <[u8; HOST_ID_BYTES]>::read(from).map(HostId::from_bytes)
    }
}

impl Wire for Call {
    fn write(&self, to: &mut WireWriter) {
        self.encode().write(to);
    }

    fn read(from: &mut WireReader<'_>) -> Option<Call> {
        Call::decode(&<[u8; CALL_BYTES]>::read(from)?)
    }
}

wire_struct!(SequenceDigest { sequence, digest });
wire_struct!(CallPosition { call, rooted });

impl Wire for RootedCalls {
    fn write(&self, to: &mut WireWriter) {
        self.0.iter().for_each(|mark| mark.write(to));
    }

    fn read(from: &mut WireReader<'_>) -> Option<RootedCalls> {
        let mut marks = RootedCalls::default();
        for mark in &mut marks.0 {
            *mark = SequenceDigest::read(from)?;
        }
        Some(marks)
    }
}

/// A blob of an exchange.
impl Wire for Vec<u8> {
    fn write(&self, to: &mut WireWriter) {
        to.bytes(self);
    }

    fn read(from: &mut WireReader<'_>) -> Option<Vec<u8>> {
        from.bytes(BLOB_BYTES_MAX).map(<[u8]>::to_vec)
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub struct Splitter {
    bytes: Vec<u8>,
    limit: usize,
}

/// The error for received bytes that are not a frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

impl Splitter {
    /// Creates a splitter of frames whose bodies have at most `limit` bytes.
    pub fn new(limit: usize) -> Splitter {
        Splitter {
            bytes: Vec::new(),
            limit,
        }
    }

    /// Appends received bytes.
    pub fn push(&mut self, received: &[u8]) {
        self.bytes.extend_from_slice(received);
    }

    /// Removes and returns the next complete frame, if any.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some(header) = self.bytes.first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = header[4];
        if length > self.limit || header[5..] != [0; 3] {
            return Err(Malformed);
        }
        let end = FRAME_HEADER_BYTES + length;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let mut body = WireReader::new(&self.bytes[FRAME_HEADER_BYTES..end]);
        let frame = Frame::read(kind, &mut body).filter(|_| body.is_empty());
        let frame = frame.ok_or(Malformed)?;
        self.bytes.drain(..end);
        Ok(Some(frame))
    }
}
