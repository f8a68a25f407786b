//! Plugins: shared libraries in NCCL's tuner interface, asked about every new kind of call.
//!
//! `RINGFOLD_TUNER_PLUGIN` names a library; [`open`] loads it once for a process and begins a context in it for every
//! communicator (`context`). What it sees is NCCL's cost table: our costs of `tree` and `ring` by `ll` and `simple`, all
//! other entries -1, because NCCL has no rows for them. What it changes there is taken over, and nothing else.
//!
//! # Invariants
//!
//! * A plugin that is missing, fails or answers nonsense costs one warning, and the model decides. NCCL's documentation
//!   promises the same; its code lets the call fail.
//! * A way that is unusable stays so, and what is negative or no number is ignored: of NCCL's releases some take -1 for
//!   "never" and some for "best", so it means nothing here. To avoid a way a plugin makes it dear.
//! * A library is loaded once and never unloaded. It is called by one thread at a time, and never for a kind of call that
//!   was seen.
//!
//! Constants and NVLink domains are neutral numbers that ringfold's model does not read back, and the size of chunks is not
//! asked for (`getChunkSize`). A library is somebody else's code with all rights of this process.
//!
//! Source: `src/plugin/{tuner,plugin_open}.cc` of NCCL 2.30 for the order of symbols and names; where its documentation
//! and its code differ, the documentation holds.

pub mod abi;
mod context;
mod library;
mod logger;

use std::sync::Arc;

pub use super::tuning::{Plugin, PluginCall};
use context::Context;

/// Where plugins' lines go in the log, and lines about them.
const LOG: &str = "ringfold::tuning";

/// What a plugin is told of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// A number that tells this communicator from others, the same on all ranks.
    pub communicator: u64,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of hosts.
    pub hosts: usize,
    /// Ranks of the host that has the fewest.
    pub ranks_per_host_min: usize,
    /// Ranks of the host that has the most.
    pub ranks_per_host_max: usize,
}

/// The plugin that `name` stands for, ready for a communicator; `None` where there is none, which a warning says.
///
/// `name` is a path, or a name that the dynamic linker finds, or `NAME` for `libnccl-tuner-NAME.so`. `STATIC_PLUGIN` is the
/// program itself, and `none` nobody. What was found, or not found, under a name holds for the life of the process.
pub fn open(name: &str, members: &Members) -> Option<Arc<dyn Plugin>> {
    if name.is_empty() || name.eq_ignore_ascii_case("none") {
        return None;
    }
    let library = library::library(name)?;
    let context = Context::begin(library, members)?;
    Some(Arc::new(context))
}
