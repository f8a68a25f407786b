//! Options of the transport.

use std::str::FromStr;

use crate::units::bytes;
use crate::verbs::LinkOptions;

/// Length from which a call's memory is registered for the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegisterBytes {
    /// Length from which registering takes less time than copying, as measured when ranks join.
    #[default]
    Auto,
    /// Fixed length.
    From(usize),
}

impl FromStr for RegisterBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<RegisterBytes, String> {
        match text {
            "auto" => Ok(RegisterBytes::Auto),
            "off" => Ok(RegisterBytes::From(usize::MAX)),
            _ => match bytes(text) {
                Ok(bytes) => Ok(RegisterBytes::From(bytes)),
                Err(_) => Err("must be auto, off or a number of bytes such as 256K".into()),
            },
        }
    }
}

/// Limits of the transport, equal on all ranks.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// Options of the connections.
    pub link: LinkOptions,
    /// Length of the pieces of the transport's memory that carry long messages.
    pub piece_bytes: usize,
    /// Number of pieces on each side, for each device.
    pub pieces: usize,
    /// Length from which a call's memory is registered for the call instead of copied.
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
