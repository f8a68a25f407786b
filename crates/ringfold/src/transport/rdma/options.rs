//! What may be chosen of the transport.

use std::str::FromStr;

use crate::units::bytes;
use crate::verbs::LinkOptions;

/// From which length on the memory of a call is registered for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegisterBytes {
    /// Where that takes less than copying, as measured when ranks join.
    #[default]
    Auto,
    /// From this length on.
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

/// The transport's limits. All ranks have the same.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// Of connections.
    pub link: LinkOptions,
    /// The parts of long messages that pass through memory of the transport's own.
    pub piece_bytes: usize,
    /// How many of them there are on each side, for each device.
    pub pieces: usize,
    /// From this length on, the memory of a call is registered for it instead of copied.
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
