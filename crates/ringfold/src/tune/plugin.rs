//! The hook for tuner plugins: code of other people's that prices the ways of a call anew.
//!
//! `RINGFOLD_TUNER_PLUGIN` names a plugin. The core does not know how to load one: a [`PluginHost`]
//! does, which the program registers once, before its first communicator. The command and the
//! Python module register that of `crates/ringfold-tuner-host`, which loads shared libraries in
//! NCCL's tuner interface; a Rust program does the same with `ringfold_tuner_host::register()`. So
//! the core needs no C compiler, and loads no foreign code by itself.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::{CostTable, Question};

/// Prices ways anew for every new kind of call: a shared library in NCCL's tuner interface, or a
/// test.
pub trait Plugin: Send + Sync + fmt::Debug {
    /// What the log calls it.
    fn name(&self) -> &str;

    /// Changes the costs of usable ways in `table`, and `channels`, where it has an opinion. It
    /// answers the same on all ranks.
    ///
    /// Entries that are unusable stay so, and what is negative or not a number is ignored
    /// ([`CostTable::reprice`]). `channels` begins as 0, which leaves the number to the scheduler.
    /// It may be called from several threads, but never again for a kind of call that was seen.
    fn adjust(&self, call: &Question, table: &mut CostTable, channels: &mut i32);
}

/// A communicator, as plugins see it.
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

/// Loads plugins by their names.
pub trait PluginHost: Sync {
    /// The plugin that `name` stands for, ready for a communicator; `None` if there is none, which
    /// a warning says.
    fn open(&self, name: &str, members: &Members) -> Option<Arc<dyn Plugin>>;
}

static HOST: OnceLock<&'static dyn PluginHost> = OnceLock::new();

/// Has `host` load the plugins of all communicators that this process makes from now on. The first
/// one registered stays.
pub fn register_plugin_host(host: &'static dyn PluginHost) {
    // A second registration changes nothing.
    let _ = HOST.set(host);
}

/// The plugin that `name` stands for, by the registered host. `none` and an empty name stand for no
/// plugin.
pub(crate) fn open(name: &str, members: &Members) -> Option<Arc<dyn Plugin>> {
    if name.is_empty() || name.eq_ignore_ascii_case("none") {
        return None;
    }
    let Some(host) = HOST.get() else {
        log::warn!(
            target: "ringfold::tuning",
            "no tuner plugin `{name}`, so the model decides: this program has no plugin host; \
             `ringfold_tuner_host::register()` gives it one"
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

    struct Host;

    impl PluginHost for Host {
        fn open(&self, name: &str, _: &Members) -> Option<Arc<dyn Plugin>> {
            Some(Arc::new(Silent(name.to_owned())))
        }
    }

    #[test]
    fn plugins_come_from_the_registered_host_only() {
        let members = Members {
            communicator: 0,
            ranks: 2,
            hosts: 1,
            ranks_per_host_min: 2,
            ranks_per_host_max: 2,
        };
        assert!(open("mine", &members).is_none());
        register_plugin_host(&Host);
        let plugin = open("mine", &members);
        assert_eq!(plugin.as_deref().map(Plugin::name), Some("mine"));
        for nothing in ["", "none", "None"] {
            assert!(open(nothing, &members).is_none(), "{nothing}");
        }
    }
}
