//! The ranks of a measurement: their number, how they are started, and how they join.

use std::time::Duration;

use anyhow::{Result, bail};
use ringfold::{Config, TransportChoice};

use crate::launch::{self, BindFlag, JobOutcome, itself};
use crate::numbers::bytes_label;
use crate::parse::{parse_ranks, parse_seconds};

/// Flags of every command that measures.
#[derive(clap::Args, Clone, Debug)]
pub struct JobFlags {
    /// Number of ranks to start on this host [default: one per core, at least 2]
    #[arg(long, value_name = "N", value_parser = parse_ranks)]
    pub ranks: Option<usize>,

    /// Transport: auto, shm, tcp, rdma [default: auto]
    #[arg(long, value_name = "NAME")]
    pub transport: Option<TransportChoice>,

    #[command(flatten)]
    pub binding: BindFlag,

    /// Deadline of every call, in seconds or with a unit: 10, 2.5s, 500ms [default: the library's]
    #[arg(short = 'T', long, value_name = "TIME", value_parser = parse_seconds)]
    pub timeout: Option<Duration>,

    /// Measure on registered memory, which the ranks of a host access directly (1), or on ordinary
    /// memory (0)
    #[arg(short = 'R', long = "local-register", alias = "local_register", value_name = "0|1",
        default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub local_register: u8,

    /// Set by the launcher in the ranks it has started
    #[arg(long, hide = true)]
    pub launched: bool,
}

impl JobFlags {
    /// Returns this process's rank; `None` if this process is to start the ranks.
    pub fn rank(&self) -> Result<Option<usize>> {
        itself::rank(self.launched, self.ranks)
    }

    /// Returns the number of ranks to start.
    pub fn count(&self) -> usize {
        self.ranks.unwrap_or_else(launch::default_ranks)
    }

    /// Starts the ranks with this command line and waits for them, like [`itself::launch`].
    /// `largest` is the largest size, in bytes.
    pub fn launch(&self, command: &str, largest: u64, consequence: &str) -> Result<JobOutcome> {
        let ranks = self.count();
        check_memory(largest, ranks)?;
        itself::launch(command, ranks, self.binding.bind, consequence)
    }

    /// Returns the configuration with which a rank joins.
    pub fn config(&self) -> Config {
        Config {
            timeout: self.timeout,
            transport: self.transport,
            bind: itself::bind_of_rank(self.launched, self.binding.bind),
            ..Config::default()
        }
    }
}

/// Rejects a size that would make the machine swap: every rank has an input and an output.
fn check_memory(largest: u64, ranks: usize) -> Result<()> {
    let needed = u128::from(largest) * 2 * ranks as u128;
    match crate::info::memory_available_bytes() {
        Some(available) if needed > u128::from(available) => bail!(
            "{ranks} ranks with two buffers of {} each do not fit into the {} that are available; \
             choose a smaller `--maxbytes` or fewer ranks",
            bytes_label(largest as f64),
            bytes_label(available as f64),
        ),
        _ => Ok(()),
    }
}
