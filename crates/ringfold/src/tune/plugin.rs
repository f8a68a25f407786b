//! The hook for tuner plugins: third-party code that reprices the ways of a call.
//!
//! `RINGFOLD_TUNER_PLUGIN` names a plugin. A [`PluginHost`] loads the plugin; the program registers
//! the host once, before its first communicator. The command and the Python module register the
//! host of `crates/ringfold-tuner-host`, which loads shared libraries in NCCL's tuner interface; a
//! Rust program calls `ringfold_tuner_host::register()`. So the core needs no C compiler, and loads
//! no foreign code itself.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::{CostTable, Question};

/// A tuner plugin, which reprices ways for every new kind of call: a shared library in NCCL's tuner
/// interface, or a test.
pub trait Plugin: Send + Sync + fmt::Debug {
    /// Returns the plugin's name in the log.
    fn name(&self) -> &str;

    /// Changes the costs of usable ways in `table`, and `channels`, if the plugin has a preference.
    /// The result must be the same on all ranks.
    ///
    /// Unusable entries stay unusable, and negative costs and NaN are ignored
    /// ([`CostTable::reprice`]). `channels` begins as 0, which leaves the number to the scheduler.
    /// Several threads may call this method, and more than once for a kind of call: a communicator
    /// caches only the choices for its last kinds of calls.
    fn adjust(&self, call: &Question, table: &mut CostTable, channels: &mut i32);
}

/// The description of a communicator for plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicatorInfo {
    /// A number that identifies this communicator, the same on all ranks.
    pub communicator: u64,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of hosts.
    pub hosts: usize,
    /// Number of ranks of the host that has the fewest.
    pub ranks_per_host_min: usize,
    /// Number of ranks of the host that has the most.
    pub ranks_per_host_max: usize,
}

/// Loads plugins by their names.
pub trait PluginHost: Sync {
    /// Opens the plugin `name` for a communicator. If this fails, logs a warning and returns
    /// `None`.
    fn open(&self, name: &str, members: &CommunicatorInfo) -> Option<Arc<dyn Plugin>>;
}

static HOST: OnceLock<&'static dyn PluginHost> = OnceLock::new();

/// Registers `host` to load the plugins of all communicators that this process makes later. Only
/// the first registration takes effect.
pub fn register_plugin_host(host: &'static dyn PluginHost) {
    let _ = HOST.set(host);
}

/// Opens the plugin `name` by the registered host. `none` and an empty name mean no plugin.
pub(crate) fn open(name: &str, members: &CommunicatorInfo) -> Option<Arc<dyn Plugin>> {
    if name.is_empty() || name.eq_ignore_ascii_case("none") {
        return None;
    }
    let Some(host) = HOST.get() else {
        log::warn!(
            target: "ringfold::tuning",
            "tuner plugin `{name}` not loaded, so the model decides: this program has no plugin \
             host; call `ringfold_tuner_host::register()`"
        );
        return None;
    };
    host.open(name, members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Silent(String);

    impl Plugin for Silent {
        fn name(&self) -> &str {
            &self.0
        }

        fn adjust(&self, _: &Question, _: &mut CostTable, _: &mut i32) {}
    }

    struct TestHost;

    impl PluginHost for TestHost {
        fn open(&self, name: &str, _: &CommunicatorInfo) -> Option<Arc<dyn Plugin>> {
            Some(Arc::new(Silent(name.to_owned())))
        }
    }

    #[test]
    fn plugins_come_from_the_registered_host_only() {
        let members = CommunicatorInfo {
            communicator: 0,
            ranks: 2,
            hosts: 1,
            ranks_per_host_min: 2,
            ranks_per_host_max: 2,
        };
        assert!(open("mine", &members).is_none());
        register_plugin_host(&TestHost);
        let plugin = open("mine", &members);
        assert_eq!(plugin.as_deref().map(Plugin::name), Some("mine"));
        for nothing in ["", "none", "None"] {
            assert!(open(nothing, &members).is_none(), "{nothing}");
        }
    }
}
