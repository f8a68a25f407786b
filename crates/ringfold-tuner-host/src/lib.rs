//! Plugins: shared libraries in NCCL's tuner interface, asked about every new kind of call.
//!
//! `RINGFOLD_TUNER_PLUGIN` names a library; [`Host`] loads it once for a process and begins a
//! context in it for every communicator (`context`). What it sees is NCCL's cost table: our costs
//! of `tree` and `ring` by `ll` and `simple`, all other entries -1, because NCCL has no rows for
//! them. What it changes there is taken over, and nothing else.
//!
//! The command and the Python module [`register`] the host. A Rust program does so itself, before
//! its first communicator. A crate of its own, because it runs foreign code and needs a C compiler
//! for the logger; the core has only the hook (`tune::plugin`).
//!
//! # Invariants
//!
//! * A plugin that is missing, fails or answers nonsense costs one warning, and the model decides.
//!   NCCL's documentation promises the same; its code lets the call fail.
//! * A way that is unusable stays so, and what is negative or not a number is ignored: of NCCL's
//!   releases some take -1 for "never" and some for "best", so it means nothing here. To avoid a
//!   way a plugin makes it expensive.
//! * A library is loaded once and never unloaded. It is called by one thread at a time, and once
//!   for each kind of call.
//!
//! Constants and NVLink domains are neutral numbers that ringfold's model does not read back, and
//! the size of chunks is not asked for (`getChunkSize`). A library is foreign code with all rights
//! of this process.
//!
//! Source: `src/plugin/{tuner,plugin_open}.cc` of NCCL 2.30 for the order of symbols and names;
//! where its documentation and its code differ, the documentation holds.

pub mod abi;
mod context;
mod library;
mod logger;

use std::sync::Arc;

use context::Context;
use ringfold::internals::tune::Question;
use ringfold::internals::tune::{Members, Plugin, PluginHost, register_plugin_host};

/// Where plugins' lines go in the log, and lines about them.
const LOG: &str = "ringfold::tuning";

/// Has this process's communicators load plugins in NCCL's tuner interface. A second call changes
/// nothing.
pub fn register() {
    register_plugin_host(&Host);
}

/// Loads plugins in NCCL's tuner interface.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl PluginHost for Host {
    /// `name` is a path, or a name that the dynamic linker finds, or `NAME` for
    /// `libnccl-tuner-NAME.so`; `STATIC_PLUGIN` is the program itself. What was found, or not
    /// found, under a name holds for the life of the process.
    fn open(&self, name: &str, members: &Members) -> Option<Arc<dyn Plugin>> {
        let library = library::library(name)?;
        let context = Context::begin(library, members)?;
        Some(Arc::new(context))
    }
}
