//! The frames of a control connection, after the handshake.
//!
//! ```text
//! 0 length of the body: u32   4 kind: u8   5 zero: 3   8 body
//! ```
//!
//! Bodies are written as [`wire`](super::wire) says. What does not decode to the last byte is an
//! error of the sender.

mod codec;

use std::sync::Arc;

use super::fault::Fault;
use super::standing::Standing;
use crate::call::Call;
use crate::topology::HostId;

/// The largest blob a rank may give to an exchange.
pub const BLOB_BYTES_MAX: usize = 64 << 10;
/// The longest key of an exchange.
pub const KEY_BYTES_MAX: usize = 256;
/// The largest frame a rank may send: a blob, a key and a list of 64 Ki ranks.
pub const RANK_FRAME_BYTES_MAX: usize = BLOB_BYTES_MAX + KEY_BYTES_MAX + (256 << 10) + 64;
/// The largest frame the server may send: all blobs of an exchange.
pub const SERVER_FRAME_BYTES_MAX: usize = 256 << 20;
/// The longest text in a frame; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 1024;
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

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// Rank to server, first: here I am.
    Join(Presence),
    /// Rank to server: my part of an exchange.
    Exchange {
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
    Open {
        /// Which.
        communicator: u64,
        /// Its world ranks.
        members: Vec<u32>,
    },
    /// Rank to server: I leave this communicator in good order.
    Close {
        /// Which.
        communicator: u64,
    },
    /// Rank to server: something is wrong in this communicator.
    Report {
        /// Which.
        communicator: u64,
        /// What.
        fault: Fault,
    },
    /// Rank to server: this rank's process, on my host, has ended.
    Suspect {
        /// Whose.
        rank: u32,
    },
    /// Rank to server: the answer to an inquiry.
    Answer {
        /// The communicator.
        communicator: u64,
        /// The inquiry's number.
        inquiry: u64,
        /// How far I am.
        standing: Standing,
    },
    /// Rank to server: I have waited in this call for a while.
    Claim {
        /// The communicator.
        communicator: u64,
        /// What it is that I wait in.
        call: Call,
    },
    /// Rank to server: how far are the members of this communicator?
    Ask {
        /// Which.
        communicator: u64,
        /// The rank's number for the answer.
        token: u64,
        /// How long they have to answer.
        timeout_ms: u64,
    },
    /// Rank to server, last: I leave the job in good order.
    Goodbye,
    /// Rank to server: the answer to a ping.
    Pong,
    /// Server to rank: all are here.
    Welcome {
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
    Cancelled {
        /// Who is missing or died.
        ranks: Vec<u32>,
        /// Why it ends here.
        reason: String,
    },
    /// Server to rank: an exchange is complete.
    Gathered {
        /// The rank's number for it.
        token: u64,
        /// All parts in the order of the members; shared, because every member gets them.
        blobs: Arc<Vec<Vec<u8>>>,
    },
    /// Server to rank: an exchange will not be complete.
    Ungathered {
        /// The rank's number for it.
        token: u64,
        /// Why.
        fault: Fault,
    },
    /// Server to rank: this communicator is dead.
    Verdict {
        /// Which.
        communicator: u64,
        /// Why.
        fault: Fault,
    },
    /// Server to rank: that rank left this communicator in good order.
    Left {
        /// Which.
        communicator: u64,
        /// Who.
        rank: u32,
    },
    /// Server to rank: that rank left the job in good order; to the leaver itself: you may go.
    Departed {
        /// Who.
        rank: u32,
    },
    /// Server to rank: how far are you in this communicator?
    Inquiry {
        /// Which.
        communicator: u64,
        /// A number for the answer.
        inquiry: u64,
    },
    /// Server to rank: how far the members of a communicator are.
    Standings {
        /// The rank's number for the question.
        token: u64,
        /// In the order of the members; nothing from those that did not answer.
        standings: Vec<Option<Standing>>,
    },
    /// Server to rank: rank 0 leaves in good order, nothing more will come.
    Closing,
    /// Server to rank: keeps a connection from being silent.
    Ping,
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
        let frame = Frame::decode(kind, &self.bytes[FRAME_HEADER_BYTES..end]).ok_or(Malformed)?;
        self.bytes.drain(..end);
        Ok(Some(frame))
    }
}
