//! Frames as bytes and back.

use std::sync::Arc;

use super::{BLOB_BYTES_MAX, FRAME_HEADER_BYTES, Frame, KEY_BYTES_MAX, Presence, TEXT_BYTES_MAX};
use crate::call::{CALL_BYTES, Call};
use crate::control::fault::{Class, Fault};
use crate::control::standing::{CALL_BYTES_MAX, Standing};
use crate::control::wire::{Reader, Writer};
use crate::topology::HostId;
use crate::topology::host::HOST_ID_BYTES;

/// The kinds of frames: those of ranks, then those of the server.
mod kind {
    pub const JOIN: u8 = 1;
    pub const EXCHANGE: u8 = 2;
    pub const OPEN: u8 = 3;
    pub const CLOSE: u8 = 4;
    pub const REPORT: u8 = 5;
    pub const SUSPECT: u8 = 6;
    pub const ANSWER: u8 = 7;
    pub const GOODBYE: u8 = 8;
    pub const PONG: u8 = 9;
    pub const ASK: u8 = 10;
    pub const CLAIM: u8 = 11;
    /// The largest number for a frame that a rank sends.
    pub const FROM_RANK_LAST: u8 = 31;
    pub const WELCOME: u8 = 32;
    pub const CANCELLED: u8 = 33;
    pub const GATHERED: u8 = 34;
    pub const UNGATHERED: u8 = 35;
    pub const VERDICT: u8 = 36;
    pub const LEFT: u8 = 37;
    pub const DEPARTED: u8 = 38;
    pub const INQUIRY: u8 = 39;
    pub const CLOSING: u8 = 40;
    pub const PING: u8 = 41;
    pub const STANDINGS: u8 = 42;
}

impl Frame {
    /// The wire form, header included.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer::after(FRAME_HEADER_BYTES);
        let kind = match self.encode_from_rank(&mut body) {
            Some(kind) => kind,
            None => self.encode_from_server(&mut body),
        };
        let mut bytes = body.into_bytes();
        let length = (bytes.len() - FRAME_HEADER_BYTES) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4] = kind;
        bytes
    }

    /// The body of a frame that a rank sends, and its kind.
    fn encode_from_rank(&self, body: &mut Writer) -> Option<u8> {
        Some(match self {
            Frame::Join(presence) => {
                body.presence(presence);
                kind::JOIN
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
                kind::EXCHANGE
            }
            Frame::Open {
                communicator,
                members,
            } => {
                body.u64(*communicator);
                body.ranks(members);
                kind::OPEN
            }
            Frame::Close { communicator } => {
                body.u64(*communicator);
                kind::CLOSE
            }
            Frame::Report {
                communicator,
                fault,
            } => {
                body.u64(*communicator);
                body.fault(fault);
                kind::REPORT
            }
            Frame::Suspect { rank } => {
                body.u32(*rank);
                kind::SUSPECT
            }
            Frame::Answer {
                communicator,
                inquiry,
                standing,
            } => {
                body.u64(*communicator);
                body.u64(*inquiry);
                body.standing(standing);
                kind::ANSWER
            }
            Frame::Goodbye => kind::GOODBYE,
            Frame::Pong => kind::PONG,
            Frame::Ask {
                communicator,
                token,
                timeout_ms,
            } => {
                body.u64(*communicator);
                body.u64(*token);
                body.u64(*timeout_ms);
                kind::ASK
            }
            Frame::Claim { communicator, call } => {
                body.u64(*communicator);
                body.raw(&call.encode());
                kind::CLAIM
            }
            _ => return None,
        })
    }

    /// The body of a frame that the server sends, and its kind.
    fn encode_from_server(&self, body: &mut Writer) -> u8 {
        match self {
            Frame::Welcome {
                job,
                key,
                silence_ms,
                ranks,
            } => {
                body.u64(*job);
                body.raw(key);
                body.u64(*silence_ms);
                body.u32(ranks.len() as u32);
                ranks.iter().for_each(|presence| body.presence(presence));
                kind::WELCOME
            }
            Frame::Cancelled { ranks, reason } => {
                body.ranks(ranks);
                body.bytes(reason.as_bytes());
                kind::CANCELLED
            }
            Frame::Gathered { token, blobs } => {
                body.u64(*token);
                body.u32(blobs.len() as u32);
                blobs.iter().for_each(|blob| body.bytes(blob));
                kind::GATHERED
            }
            Frame::Ungathered { token, fault } => {
                body.u64(*token);
                body.fault(fault);
                kind::UNGATHERED
            }
            Frame::Verdict {
                communicator,
                fault,
            } => {
                body.u64(*communicator);
                body.fault(fault);
                kind::VERDICT
            }
            Frame::Left { communicator, rank } => {
                body.u64(*communicator);
                body.u32(*rank);
                kind::LEFT
            }
            Frame::Departed { rank } => {
                body.u32(*rank);
                kind::DEPARTED
            }
            Frame::Inquiry {
                communicator,
                inquiry,
            } => {
                body.u64(*communicator);
                body.u64(*inquiry);
                kind::INQUIRY
            }
            Frame::Closing => kind::CLOSING,
            Frame::Standings { token, standings } => {
                body.u64(*token);
                body.u32(standings.len() as u32);
                for standing in standings {
                    body.u32(standing.is_some() as u32);
                    standing.iter().for_each(|there| body.standing(there));
                }
                kind::STANDINGS
            }
            // The caller encodes the rest.
            _ => kind::PING,
        }
    }

    /// The frame of this kind and body; `None` if there is none.
    pub fn decode(kind: u8, body: &[u8]) -> Option<Frame> {
        let mut body = Reader::new(body);
        let frame = match kind {
            ..=kind::FROM_RANK_LAST => Frame::decode_from_rank(kind, &mut body)?,
            _ => Frame::decode_from_server(kind, &mut body)?,
        };
        body.is_empty().then_some(frame)
    }

    fn decode_from_rank(kind: u8, body: &mut Reader<'_>) -> Option<Frame> {
        Some(match kind {
            kind::JOIN => Frame::Join(presence(body)?),
            kind::EXCHANGE => Frame::Exchange {
                token: body.u64()?,
                timeout_ms: body.u64()?,
                key: body.text(KEY_BYTES_MAX)?,
                members: ranks(body)?,
                blob: body.bytes(BLOB_BYTES_MAX)?.to_vec(),
            },
            kind::OPEN => Frame::Open {
                communicator: body.u64()?,
                members: ranks(body)?,
            },
            kind::CLOSE => Frame::Close {
                communicator: body.u64()?,
            },
            kind::REPORT => Frame::Report {
                communicator: body.u64()?,
                fault: fault(body)?,
            },
            kind::SUSPECT => Frame::Suspect { rank: body.u32()? },
            kind::ANSWER => Frame::Answer {
                communicator: body.u64()?,
                inquiry: body.u64()?,
                standing: standing(body)?,
            },
            kind::GOODBYE => Frame::Goodbye,
            kind::PONG => Frame::Pong,
            kind::ASK => Frame::Ask {
                communicator: body.u64()?,
                token: body.u64()?,
                timeout_ms: body.u64()?,
            },
            kind::CLAIM => Frame::Claim {
                communicator: body.u64()?,
                call: Call::decode(body.take(CALL_BYTES)?.try_into().ok()?)?,
            },
            _ => return None,
        })
    }

    fn decode_from_server(kind: u8, body: &mut Reader<'_>) -> Option<Frame> {
        Some(match kind {
            kind::WELCOME => Frame::Welcome {
                job: body.u64()?,
                key: body.take(32)?.try_into().ok()?,
                silence_ms: body.u64()?,
                ranks: body.list(HOST_ID_BYTES + 4, presence)?,
            },
            kind::CANCELLED => Frame::Cancelled {
                ranks: ranks(body)?,
                reason: body.text(TEXT_BYTES_MAX)?,
            },
            kind::GATHERED => Frame::Gathered {
                token: body.u64()?,
                blobs: Arc::new(
                    body.list(4, |body| body.bytes(BLOB_BYTES_MAX).map(<[u8]>::to_vec))?,
                ),
            },
            kind::UNGATHERED => Frame::Ungathered {
                token: body.u64()?,
                fault: fault(body)?,
            },
            kind::VERDICT => Frame::Verdict {
                communicator: body.u64()?,
                fault: fault(body)?,
            },
            kind::LEFT => Frame::Left {
                communicator: body.u64()?,
                rank: body.u32()?,
            },
            kind::DEPARTED => Frame::Departed { rank: body.u32()? },
            kind::INQUIRY => Frame::Inquiry {
                communicator: body.u64()?,
                inquiry: body.u64()?,
            },
            kind::CLOSING => Frame::Closing,
            kind::PING => Frame::Ping,
            kind::STANDINGS => Frame::Standings {
                token: body.u64()?,
                standings: body.list(4, |body| match body.u32()? {
                    0 => Some(None),
                    1 => standing(body).map(Some),
                    _ => None,
                })?,
            },
            _ => return None,
        })
    }
}

impl Writer {
    fn ranks(&mut self, ranks: &[u32]) {
        self.u32(ranks.len() as u32);
        ranks.iter().for_each(|rank| self.u32(*rank));
    }

    fn presence(&mut self, presence: &Presence) {
        self.raw(presence.host.as_bytes());
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
}

fn ranks(body: &mut Reader<'_>) -> Option<Vec<u32>> {
    body.list(4, Reader::u32)
}

fn presence(body: &mut Reader<'_>) -> Option<Presence> {
    let host: [u8; HOST_ID_BYTES] = body.take(HOST_ID_BYTES)?.try_into().ok()?;
    Some(Presence {
        host: HostId::from_bytes(host),
        pid: body.u32()?,
    })
}

fn standing(body: &mut Reader<'_>) -> Option<Standing> {
    Some(Standing {
        finished: body.u64()?,
        begun: body.u64()?,
        call: body.text(CALL_BYTES_MAX)?,
    })
}

fn fault(body: &mut Reader<'_>) -> Option<Fault> {
    Some(Fault {
        class: Class::from_wire(body.u32()?)?,
        after_ms: body.u64()?,
        ranks: ranks(body)?,
        text: body.text(TEXT_BYTES_MAX)?,
    })
}
