//! What may be chosen of the transport.

use crate::verbs::LinkOptions;

/// The transport's limits. All ranks have the same.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// Of connections.
    pub link: LinkOptions,
    /// The parts of long messages that pass through memory of the transport's own.
    pub piece_bytes: usize,
    /// How many of them there are on each side, for each device.
    pub pieces: usize,
    /// From this length on, memory that is not registered is registered for one message instead of
    /// copied.
    pub register_bytes_min: usize,
}

impl Default for RdmaOptions {
    fn default() -> RdmaOptions {
        RdmaOptions {
            link: LinkOptions::default(),
            piece_bytes: 128 << 10,
            pieces: 32,
            register_bytes_min: usize::MAX,
        }
    }
}
