//! Frames, progress and errors, for both halves of a connection.

use std::io;

use crate::error::{Error, gone_by};
use crate::transport::HEADER_BYTES;

/// Length of the payload's checksum, which follows a payload that is not empty.
pub const TRAILER_BYTES: usize = 4;

/// Progress of a queue.
pub enum QueueProgress {
    /// Nothing is left to do.
    Idle,
    /// The socket is empty or full.
    Blocked,
    /// The budget is used up.
    More,
}

/// Returns the length of a message's frame.
pub fn frame_bytes(payload_bytes: usize) -> usize {
    let trailer = if payload_bytes > 0 { TRAILER_BYTES } else { 0 };
    HEADER_BYTES + payload_bytes + trailer
}

/// Converts a socket's error to one about the peer.
#[cold]
pub fn broken(peer: usize, error: io::Error) -> Error {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::OutOfMemory | Kind::InvalidInput | Kind::PermissionDenied => {
            Error::system(format!("cannot use the connection to rank {peer}"), error)
        }
        _ => Error::peer_failed(peer, gone_by(&error)),
    }
}
