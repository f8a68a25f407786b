//! Options of the TCP transport.

use super::zero_copy::ZeroCopy;
use crate::silence::Silence;
use crate::transport::bell::Bell;

/// Maximum number of helper threads: with a rank's own, as many as NCCL allows.
pub const THREADS_MAX: usize = 15;

/// Options of the TCP transport.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Length of the pieces in which messages are reduced; a multiple of 64 that fits into the
    /// second-level cache.
    pub piece_bytes: usize,
    /// Size of the kernel's buffers, each way; `None` for the kernel's own tuning.
    pub socket_buffer_bytes: Option<usize>,
    /// Maximum silence of a peer's host.
    pub silence: Silence,
    /// Whether large payloads are sent without the kernel's copy.
    pub zero_copy: ZeroCopy,
    /// Number of threads that help to move long messages by several sockets, [`THREADS_MAX`] at
    /// most.
    pub threads: usize,
    /// The bell that wakes this rank, besides its sockets; `None` for an event counter of its own.
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
