//! What can be set about the TCP transport.

use super::zero_copy::ZeroCopy;
use crate::silence::Silence;
use crate::transport::bell::Bell;

/// The most threads that help: with a rank's own, as many as NCCL allows.
pub const THREADS_MAX: usize = 15;

/// What can be set about the TCP transport.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// The length of the pieces in which messages are reduced; a multiple of 64 that fits into the
    /// second-level cache.
    pub piece_bytes: usize,
    /// The size of the kernel's buffers, each way; the kernel's own tuning if not given.
    pub socket_buffer_bytes: Option<usize>,
    /// How long a peer's host may be silent.
    pub silence: Silence,
    /// Whether large payloads are sent without the kernel's copy.
    pub zero_copy: ZeroCopy,
    /// How many threads help to move long messages by several sockets, [`THREADS_MAX`] at most.
    pub threads: usize,
    /// What wakes this rank, besides its sockets; an event counter of its own if not given.
    pub bell: Option<Bell>,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            piece_bytes: 128 << 10,
            socket_buffer_bytes: None,
            silence: Silence::default(),
            zero_copy: ZeroCopy::default(),
            threads: 0,
            bell: None,
        }
    }
}
