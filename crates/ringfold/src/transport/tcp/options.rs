//! Options of the TCP transport.

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
    /// Maximum silence of a peer's host.
    pub silence: Silence,
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
            silence: Silence::default(),
            threads: 0,
            bell: None,
        }
    }
}
