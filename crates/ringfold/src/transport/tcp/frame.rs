//! What both halves of a connection know of frames, sockets and peers.

use std::io;

use crate::error::Error;
use crate::transport::HEADER_BYTES;

/// Bytes of the payload's checksum, which follows a payload that is not empty.
pub const TRAILER_BYTES: usize = 4;

/// What is said of a peer whose end of a connection is closed.
pub const CLOSED: &str = "closed its connection";

/// How far a queue got.
pub enum Progress {
    /// Nothing is left to do.
    Idle,
    /// The socket is empty or full.
    Blocked,
    /// The budget is used up.
    More,
}

/// Bytes of the frame of a message.
pub fn frame_bytes(payload_bytes: usize) -> usize {
    let trailer = if payload_bytes > 0 { TRAILER_BYTES } else { 0 };
    HEADER_BYTES + payload_bytes + trailer
}

/// What the socket's error says about the peer.
#[cold]
pub fn broken(peer: usize, error: io::Error) -> Error {
    use io::ErrorKind as Kind;
    let reason = match error.kind() {
        Kind::UnexpectedEof | Kind::BrokenPipe => CLOSED.into(),
        Kind::ConnectionReset => "connection reset".into(),
        Kind::TimedOut => "does not answer".into(),
        Kind::OutOfMemory | Kind::InvalidInput | Kind::PermissionDenied => {
            return Error::system(format!("cannot use the connection to rank {peer}"), error);
        }
        _ => error.to_string(),
    };
    Error::peer_failed(peer, reason)
}
