//! Tuner plugins: shared libraries with NCCL's tuner interface, which are asked about every new
//! kind of call.
//!
//! `RINGFOLD_TUNER_PLUGIN` names a library; [`Host`] loads it once for a process and begins a
//! context in it for every communicator (`context`). The library sees NCCL's cost table: ringfold's
//! costs of `tree` and `ring` by `ll` and `simple`, and -1 in all other entries. The other
//! methods of ringfold have no rows in NCCL's table. Only the library's changes to these costs, and
//! its number of channels, are used.
//!
//! The command, the Python module and the C library [`register`] the host. A Rust program does so
//! itself, before its first communicator. The host is a separate crate because it runs foreign code
//! and needs a C compiler for the logger; the core has only the hook (`tune::plugin`).
//!
//! # Invariants
//!
//! * A plugin that is missing, fails or gives invalid answers causes one warning, and the model
//!   decides. NCCL's documentation promises the same; its code lets the call fail.
//! * An unusable way stays unusable, and a cost that is negative or not a number is ignored: of
//!   NCCL's releases some take -1 for "never" and some for "best". To avoid a way, a plugin makes
//!   it expensive.
//! * A library is loaded once and never unloaded. Only one thread at a time calls it, and once for
//!   each kind of call.
//!
//! Constants and NVLink domains are neutral numbers that ringfold's model does not read back, and
//! plugins are not asked for the size of chunks (`getChunkSize`). A library is foreign code with
//! all rights of this process.
//!
//! Source: `src/plugin/{tuner,plugin_open}.cc` of NCCL 2.30 for the order of symbols and names;
//! where NCCL's documentation and its code differ, the documentation holds.

pub mod abi;
mod context;
mod library;
mod logger;

use std::sync::Arc;

use context::Context;
use ringfold::internals::tune::Question;
use ringfold::internals::tune::{CommunicatorInfo, Plugin, PluginHost, register_plugin_host};

/// Log target of plugins' lines, and of lines about plugins.
const LOG: &str = "ringfold::tuning";

/// Makes this process's communicators load plugins with NCCL's tuner interface. A second call
/// changes nothing.
pub fn register() {
    register_plugin_host(&Host);
}

/// The host of plugins with NCCL's tuner interface.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl PluginHost for Host {
    /// Opens the plugin `name`: a path, or a name that the dynamic linker finds, or `NAME` for
    /// `libnccl-tuner-NAME.so`; `STATIC_PLUGIN` is the program itself. The result for a name, found
    /// or not, holds for the life of the process.
    fn open(&self, name: &str, members: &CommunicatorInfo) -> Option<Arc<dyn Plugin>> {
        let library = library::library(name)?;
        let context = Context::begin(library, members)?;
        Some(Arc::new(context))
    }
}
