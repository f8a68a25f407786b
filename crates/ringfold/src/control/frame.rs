//! What travels on a control connection after the handshake.
//!
//! ```text
//! 0 length of the body: u32   4 kind: u8   5 zero: 3   8 body
//! ```
//!
//! Integers are little endian. A list is a u32 count and its elements; a count is compared with the bytes that are
//! there before anything is allocated for it. What does not decode to the last byte is an error of the sender.

use std::sync::Arc;

use super::fault::{Class, Fault};
use super::standing::{CALL_BYTES_MAX, Standing};
use crate::call::{CALL_BYTES, Call};
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

impl Frame {
    /// The wire form, header included.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer(vec![0; FRAME_HEADER_BYTES]);
        let kind = match self {
            Frame::Join(presence) => {
                body.presence(presence);
                1
            }
            Frame::Exchange {
                token,
                timeout_ms,
                key,
                members,
                blob,
            } => {
                body.u64(*token);
                body.u64(*timeout_ms);
                body.bytes(key.as_bytes());
                body.ranks(members);
                body.bytes(blob);
                2
            }
            Frame::Open {
                communicator,
                members,
            } => {
                body.u64(*communicator);
                body.ranks(members);
                3
            }
            Frame::Close { communicator } => {
                body.u64(*communicator);
                4
            }
            Frame::Report {
                communicator,
                fault,
            } => {
                body.u64(*communicator);
                body.fault(fault);
                5
            }
            Frame::Suspect { rank } => {
                body.u32(*rank);
                6
            }
            Frame::Answer {
                communicator,
                inquiry,
                standing,
            } => {
                body.u64(*communicator);
                body.u64(*inquiry);
                body.standing(standing);
                7
            }
            Frame::Goodbye => 8,
            Frame::Pong => 9,
            Frame::Ask {
                communicator,
                token,
                timeout_ms,
            } => {
                body.u64(*communicator);
                body.u64(*token);
                body.u64(*timeout_ms);
                10
            }
            Frame::Claim { communicator, call } => {
                body.u64(*communicator);
                body.0.extend_from_slice(&call.encode());
                11
            }
            other => other.encode_from_server(&mut body),
        };
        let mut bytes = body.0;
        let length = (bytes.len() - FRAME_HEADER_BYTES) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4] = kind;
        bytes
    }

    fn encode_from_server(&self, body: &mut Writer) -> u8 {
        match self {
            Frame::Welcome {
                job,
                key,
                silence_ms,
                ranks,
            } => {
                body.u64(*job);
                body.0.extend_from_slice(key);
                body.u64(*silence_ms);
                body.u32(ranks.len() as u32);
                ranks.iter().for_each(|presence| body.presence(presence));
                32
            }
            Frame::Cancelled { ranks, reason } => {
                body.ranks(ranks);
                body.bytes(reason.as_bytes());
                33
            }
            Frame::Gathered { token, blobs } => {
                body.u64(*token);
                body.u32(blobs.len() as u32);
                blobs.iter().for_each(|blob| body.bytes(blob));
                34
            }
            Frame::Ungathered { token, fault } => {
                body.u64(*token);
                body.fault(fault);
                35
            }
            Frame::Verdict {
                communicator,
                fault,
            } => {
                body.u64(*communicator);
                body.fault(fault);
                36
            }
            Frame::Left { communicator, rank } => {
                body.u64(*communicator);
                body.u32(*rank);
                37
            }
            Frame::Departed { rank } => {
                body.u32(*rank);
                38
            }
            Frame::Inquiry {
                communicator,
                inquiry,
            } => {
                body.u64(*communicator);
                body.u64(*inquiry);
                39
            }
            Frame::Closing => 40,
            Frame::Standings { token, standings } => {
                body.u64(*token);
                body.u32(standings.len() as u32);
                for standing in standings {
                    body.u32(standing.is_some() as u32);
                    standing.iter().for_each(|there| body.standing(there));
                }
                42
            }
            // The rest are encoded by the caller.
            _ => 41,
        }
    }

    /// The frame of this kind and body; `None` if there is none.
    pub fn decode(kind: u8, body: &[u8]) -> Option<Frame> {
        let mut body = Reader(body);
        let frame = match kind {
            1 => Frame::Join(body.presence()?),
            2 => Frame::Exchange {
                token: body.u64()?,
                timeout_ms: body.u64()?,
                key: body.text(KEY_BYTES_MAX)?,
                members: body.ranks()?,
                blob: body.bytes(BLOB_BYTES_MAX)?.to_vec(),
            },
            3 => Frame::Open {
                communicator: body.u64()?,
                members: body.ranks()?,
            },
            4 => Frame::Close {
                communicator: body.u64()?,
            },
            5 => Frame::Report {
                communicator: body.u64()?,
                fault: body.fault()?,
            },
            6 => Frame::Suspect { rank: body.u32()? },
            7 => Frame::Answer {
                communicator: body.u64()?,
                inquiry: body.u64()?,
                standing: body.standing()?,
            },
            8 => Frame::Goodbye,
            9 => Frame::Pong,
            10 => Frame::Ask {
                communicator: body.u64()?,
                token: body.u64()?,
                timeout_ms: body.u64()?,
            },
            11 => Frame::Claim {
                communicator: body.u64()?,
                call: Call::decode(body.take(CALL_BYTES)?.try_into().ok()?)?,
            },
            32 => Frame::Welcome {
                job: body.u64()?,
                key: body.take(32)?.try_into().ok()?,
                silence_ms: body.u64()?,
                ranks: body.list(HOST_ID_BYTES + 4, Reader::presence)?,
            },
            33 => Frame::Cancelled {
                ranks: body.ranks()?,
                reason: body.text(TEXT_BYTES_MAX)?,
            },
            34 => Frame::Gathered {
                token: body.u64()?,
                blobs: Arc::new(
                    body.list(4, |body| body.bytes(BLOB_BYTES_MAX).map(<[u8]>::to_vec))?,
                ),
            },
            35 => Frame::Ungathered {
                token: body.u64()?,
                fault: body.fault()?,
            },
            36 => Frame::Verdict {
                communicator: body.u64()?,
                fault: body.fault()?,
            },
            37 => Frame::Left {
                communicator: body.u64()?,
                rank: body.u32()?,
            },
            38 => Frame::Departed { rank: body.u32()? },
            39 => Frame::Inquiry {
                communicator: body.u64()?,
                inquiry: body.u64()?,
            },
            40 => Frame::Closing,
            41 => Frame::Ping,
            42 => Frame::Standings {
                token: body.u64()?,
                standings: body.list(4, |body| match body.u32()? {
                    0 => Some(None),
                    1 => body.standing().map(Some),
                    _ => None,
                })?,
            },
            _ => return None,
        };
        body.0.is_empty().then_some(frame)
    }
}

/// The longest text in a frame; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 1024;

struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn ranks(&mut self, ranks: &[u32]) {
        self.u32(ranks.len() as u32);
        ranks.iter().for_each(|rank| self.u32(*rank));
    }

    fn presence(&mut self, presence: &Presence) {
        self.0.extend_from_slice(presence.host.as_bytes());
        self.u32(presence.pid);
    }

    fn fault(&mut self, fault: &Fault) {
        self.u32(fault.class as u32);
        self.u64(fault.after_ms);
        self.ranks(&fault.ranks);
        self.text(&fault.text, TEXT_BYTES_MAX);
    }

    fn standing(&mut self, standing: &Standing) {
        self.u64(standing.finished);
        self.u64(standing.begun);
        self.text(&standing.call, CALL_BYTES_MAX);
    }

    /// At most `limit` bytes of a text.
    fn text(&mut self, text: &str, limit: usize) {
        let mut end = text.len().min(limit);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end]);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self, limit: usize) -> Option<&'a [u8]> {
        let count = self.u32()? as usize;
        (count <= limit).then(|| self.take(count))?
    }

    fn text(&mut self, limit: usize) -> Option<String> {
        String::from_utf8(self.bytes(limit)?.to_vec()).ok()
    }

    /// A list whose elements take at least `least` bytes each, so that its count cannot outgrow the body.
    fn list<T>(
        &mut self,
        least: usize,
        mut element: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.0.len() / least {
            return None;
        }
        (0..count).map(|_| element(self)).collect()
    }

    fn ranks(&mut self) -> Option<Vec<u32>> {
        self.list(4, Reader::u32)
    }

    fn presence(&mut self) -> Option<Presence> {
        let host: [u8; HOST_ID_BYTES] = self.take(HOST_ID_BYTES)?.try_into().ok()?;
        Some(Presence {
            host: HostId::from_bytes(host),
            pid: self.u32()?,
        })
    }

    fn standing(&mut self) -> Option<Standing> {
        Some(Standing {
            finished: self.u64()?,
            begun: self.u64()?,
            call: self.text(CALL_BYTES_MAX)?,
        })
    }

    fn fault(&mut self) -> Option<Fault> {
        Some(Fault {
            class: Class::from_wire(self.u32()?)?,
            after_ms: self.u64()?,
            ranks: self.ranks()?,
            text: self.text(TEXT_BYTES_MAX)?,
        })
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug)]
pub struct Splitter {
    bytes: Vec<u8>,
    limit: usize,
}

/// A peer sent what is no frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Nonsense;

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
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Nonsense> {
        let Some(header) = self.bytes.first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = header[4];
        if length > self.limit || header[5..] != [0; 3] {
            return Err(Nonsense);
        }
        let end = FRAME_HEADER_BYTES + length;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let frame = Frame::decode(kind, &self.bytes[FRAME_HEADER_BYTES..end]).ok_or(Nonsense)?;
        self.bytes.drain(..end);
        Ok(Some(frame))
    }
}
