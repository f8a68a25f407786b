//! Who this process is among the ranks, and where rank 0 is met.

use super::socket::Address;

/// A process' place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// This process' rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This process' number on its host, if the launcher says so.
    pub local_rank: Option<usize>,
    /// The number of ranks on this host, if the launcher says so.
    pub local_world_size: Option<usize>,
    /// Where rank 0 is met; `None` only for a job of one rank.
    pub address: Option<Address>,
    /// Who said all this.
    pub origin: &'static str,
}
