//! How a rank joins and how its communicator behaves.

use std::time::Duration;

use crate::error::Error;
use crate::types::Algorithm;

/// Which transports a communicator may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// Shared memory to ranks of this host, TCP to the others.
    #[default]
    Auto,
    /// Shared memory only; an error if ranks are on several hosts.
    Shm,
    /// TCP to every rank, this host's too.
    Tcp,
}

impl TransportChoice {
    /// The name used in commands and variables.
    pub fn name(self) -> &'static str {
        match self {
            TransportChoice::Auto => "auto",
            TransportChoice::Shm => "shm",
            TransportChoice::Tcp => "tcp",
        }
    }
}

impl std::str::FromStr for TransportChoice {
    type Err = Error;
    fn from_str(text: &str) -> Result<TransportChoice, Error> {
        match text {
            "auto" => Ok(TransportChoice::Auto),
            "shm" => Ok(TransportChoice::Shm),
            "tcp" => Ok(TransportChoice::Tcp),
            _ => Err(Error::InvalidArgument(format!(
                "unknown transport `{text}`; one of auto, shm, tcp"
            ))),
        }
    }
}

/// How to join a job. What is `None` comes from the environment: `RINGFOLD_*`, then the launcher's variables.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// This process' rank.
    pub rank: Option<usize>,
    /// The number of ranks.
    pub world_size: Option<usize>,
    /// Where rank 0 is met: `host:port`, or `unix:@name` on one host.
    pub address: Option<String>,
    /// The job's secret.
    pub secret: Option<String>,
    /// The deadline of every operation that has none of its own.
    pub timeout: Option<Duration>,
    /// The deadline for bringing the ranks together.
    pub connect_timeout: Option<Duration>,
    /// Which transports may be used.
    pub transport: Option<TransportChoice>,
    /// The algorithm of every collective that has it, instead of the tuner's choice.
    pub algorithm: Option<Algorithm>,
    /// Independent pipelines per collective, 1 unless set: connections per pair of ranks on TCP.
    pub channels: Option<usize>,
    /// The pipeline's unit in bytes, instead of the tuner's choice.
    pub slice_bytes: Option<usize>,
}
