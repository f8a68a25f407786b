//! The frames of a control connection, after the handshake.
//!
//! ```text
//! 0 length of the body: u32   4 kind: u8   5 zero: 3   8 body
//! ```
//!
//! Bodies are written as [`wire`](super::wire) says. What does not decode to the last byte is an
//! error of the sender.

use std::sync::Arc;

use super::fault::Fault;
use super::standing::Standing;
use super::wire::{Reader, Wire, Writer, wire_struct};
use crate::call::{CALL_BYTES, Call, Mark, Marks, Position};
use crate::topology::HostId;
use crate::topology::host::HOST_ID_BYTES;

/// The largest blob a rank may give to an exchange.
pub const BLOB_BYTES_MAX: usize = 64 << 10;
/// The longest key of an exchange.
pub const KEY_BYTES_MAX: usize = 256;
/// The largest frame a rank may send: a blob, a key and a list of 64 Ki ranks.
pub const RANK_FRAME_BYTES_MAX: usize = BLOB_BYTES_MAX + KEY_BYTES_MAX + (256 << 10) + 64;
/// The largest frame the server may send: all blobs of an exchange.
pub const SERVER_FRAME_BYTES_MAX: usize = 256 << 20;
/// Bytes in front of a body.
pub const FRAME_HEADER_BYTES: usize = 8;

/// What a rank says about itself when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Where it is.
    pub host: HostId,
    /// Its process there.
    pub pid: u32,
}

/// Defines the frames, and how each is written and read: a kind, and the fields in this order.
macro_rules! frames {
    ($(
        $(#[$doc:meta])*
        $kind:literal $name:ident $({ $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })?,
    )*) => {
        /// One frame.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Frame {
            $($(#[$doc])* $name $({ $($(#[$field_doc])* $field: $type,)* })?,)*
        }

        impl Frame {
            /// Writes the body; the kind.
            fn write(&self, body: &mut Writer) -> u8 {
                match self {
                    $(Frame::$name $({ $($field),* })? => {
                        $($(Wire::write($field, body);)*)?
                        $kind
                    })*
                }
            }

            /// Reads the body of a frame of this kind; `None` if there is none.
            fn read(kind: u8, body: &mut Reader<'_>) -> Option<Frame> {
                Some(match kind {
                    $($kind => Frame::$name $({ $($field: Wire::read(body)?,)* })?,)*
                    _ => return None,
                })
            }
        }
    };
}

// The kinds of ranks' frames begin at 1, those of the server's at 32.
frames! {
    /// Rank to server, first: here I am.
    1 Join {
        /// Where it is.
        presence: Presence,
    },
    /// Rank to server: my part of an exchange.
    2 Exchange {
        /// The rank's number for the answer.
        token: u64,
        /// How long the others may take.
        timeout_ms: u64,
        /// What it is about.
        key: String,
        /// Who takes part, as world ranks.
        members: Vec<u32>,
        /// My part.
        blob: Vec<u8>,
    },
    /// Rank to server: I am in this communicator from now on.
    3 Open {
        /// Which.
        communicator: u64,
        /// Its world ranks.
        members: Vec<u32>,
    },
    /// Rank to server: I leave this communicator in good order.
    4 Close {
        /// Which.
        communicator: u64,
    },
    /// Rank to server: something is wrong in this communicator.
    5 Report {
        /// Which.
        communicator: u64,
        /// What.
        fault: Fault,
    },
    /// Rank to server: this rank's process, on my host, has ended.
    6 Suspect {
        /// Whose.
        rank: u32,
    },
    /// Rank to server: the answer to an inquiry.
    7 Answer {
        /// The communicator.
        communicator: u64,
        /// The inquiry's number.
        inquiry: u64,
        /// How far I am.
        standing: Standing,
    },
    /// Rank to server: I have waited here for a while.
    11 Claim {
        /// The communicator.
        communicator: u64,
        /// The call that I wait in, and those with a root before.
        position: Box<Position>,
    },
    /// Rank to server: how far are the members of this communicator?
    10 Ask {
        /// Which.
        communicator: u64,
        /// The rank's number for the answer.
        token: u64,
        /// How long they have to answer.
        timeout_ms: u64,
    },
    /// Rank to server, last: I leave the job in good order.
    8 Goodbye,
    /// Rank to server: the answer to a ping.
    9 Pong,
    /// Server to rank: all are here.
    32 Welcome {
        /// A random number for this job.
        job: u64,
        /// A random secret for this job's other connections, on UNIX sockets; elsewhere zeros.
        key: [u8; 32],
        /// How long another host may be silent, in milliseconds.
        silence_ms: u64,
        /// Every rank.
        ranks: Vec<Presence>,
    },
    /// Server to rank: not all came.
    33 Cancelled {
        /// Who is missing or died.
        ranks: Vec<u32>,
        /// Why it ends here.
        reason: String,
    },
    /// Server to a rank that waits for others to join: one that came was refused.
    43 Refused {
        /// Who, and why.
        reason: String,
    },
    /// Server to rank: an exchange is complete.
    34 Gathered {
        /// The rank's number for it.
        token: u64,
        /// All parts in the order of the members; shared, because every member gets them.
        blobs: Arc<Vec<Vec<u8>>>,
    },
    /// Server to rank: an exchange will not be complete.
    35 Ungathered {
        /// The rank's number for it.
        token: u64,
        /// Why.
        fault: Fault,
    },
    /// Server to rank: this communicator is dead.
    36 Verdict {
        /// Which.
        communicator: u64,
        /// Why.
        fault: Fault,
    },
    /// Server to rank: that rank left this communicator in good order.
    37 Left {
        /// Which.
        communicator: u64,
        /// Who.
        rank: u32,
    },
    /// Server to rank: that rank left the job in good order; to the leaver itself: you may go.
    38 Departed {
        /// Who.
        rank: u32,
    },
    /// Server to rank: how far are you in this communicator?
    39 Inquiry {
        /// Which.
        communicator: u64,
        /// A number for the answer.
        inquiry: u64,
    },
    /// Server to rank: how far the members of a communicator are.
    42 Standings {
        /// The rank's number for the question.
        token: u64,
        /// In the order of the members; nothing from those that did not answer.
        standings: Vec<Option<Standing>>,
    },
    /// Server to rank: rank 0 leaves in good order, nothing more will come.
    40 Closing,
    /// Server to rank: keeps a connection from being silent.
    41 Ping,
}

impl Frame {
    /// The wire form, header included.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer::after(FRAME_HEADER_BYTES);
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
    fn write(&self, to: &mut Writer) {
        self.as_bytes().write(to);
    }

    fn read(from: &mut Reader<'_>) -> Option<HostId> {
        <[u8; HOST_ID_BYTES]>::read(from).map(HostId::from_bytes)
    }
}

impl Wire for Call {
    fn write(&self, to: &mut Writer) {
        self.encode().write(to);
    }

    fn read(from: &mut Reader<'_>) -> Option<Call> {
        Call::decode(&<[u8; CALL_BYTES]>::read(from)?)
    }
}

wire_struct!(Mark { sequence, digest });
wire_struct!(Position { call, rooted });

impl Wire for Marks {
    fn write(&self, to: &mut Writer) {
        self.0.iter().for_each(|mark| mark.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Option<Marks> {
        let mut marks = Marks::default();
        for mark in &mut marks.0 {
            *mark = Mark::read(from)?;
        }
        Some(marks)
    }
}

/// A blob of an exchange.
impl Wire for Vec<u8> {
    fn write(&self, to: &mut Writer) {
        to.bytes(self);
    }

    fn read(from: &mut Reader<'_>) -> Option<Vec<u8>> {
        from.bytes(BLOB_BYTES_MAX).map(<[u8]>::to_vec)
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub struct Splitter {
    bytes: Vec<u8>,
    limit: usize,
}

/// A peer sent bytes that are no frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

impl Splitter {
    /// Takes frames whose bodies have at most `limit` bytes.
    pub fn new(limit: usize) -> Splitter {
        Splitter {
            bytes: Vec::new(),
            limit,
        }
    }

    /// Appends what was received.
    pub fn push(&mut self, received: &[u8]) {
        self.bytes.extend_from_slice(received);
    }

    /// The next complete frame.
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
        let mut body = Reader::new(&self.bytes[FRAME_HEADER_BYTES..end]);
        let frame = Frame::read(kind, &mut body).filter(|_| body.is_empty());
        let frame = frame.ok_or(Malformed)?;
        self.bytes.drain(..end);
        Ok(Some(frame))
    }
}
