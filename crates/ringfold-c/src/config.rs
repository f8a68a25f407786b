//! Settings for joining a job, by the names that Python's `ringfold.init` and the environment use.

use std::ffi::c_char;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use ringfold::internals::tune::Rules;
use ringfold::internals::units::nearest;
use ringfold::{Config as Core, Result, Secret};

use crate::arguments::{borrowed, check_place, invalid, seconds, store, text};
use crate::status::{Status, free, guard};

/// Settings for `ringfold_connect`.
pub struct Config {
    core: Core,
    /// File of tuner rules, which is read when a job is joined.
    tuner_config: Option<String>,
}

impl Config {
    /// Returns the library's configuration.
    pub fn core(&self) -> Result<Core> {
        let rules = self.tuner_config.as_ref().map(Rules::read).transpose()?;
        Ok(Core {
            tuner_rules: rules,
            ..self.core.clone()
        })
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match SETTINGS.iter().find(|(known, _)| *known == name) {
            // No error contains the secret.
            Some((_, set)) if name == SECRET => set(self, value),
            Some((_, set)) => {
                set(self, value).map_err(|error| invalid(format!("{name}=`{value}`: {error}")))
            }
            None if value == SECRET => Err(invalid("the name of a setting must precede its value")),
            None => {
                let nearest = nearest(name, SETTINGS.iter().map(|(known, _)| *known));
                Err(invalid(format!(
                    "unknown setting `{name}`; did you mean `{nearest}`?"
                )))
            }
        }
    }
}

/// A function that sets one setting from its text.
type Setter = fn(&mut Config, &str) -> Result<()>;

const SECRET: &str = "secret";

/// All settings, by name.
const SETTINGS: &[(&str, Setter)] = &[
    ("rank", |config, value| parsed(&mut config.core.rank, value)),
    ("world_size", |config, value| {
        parsed(&mut config.core.world_size, value)
    }),
    ("address", |config, value| {
        parsed(&mut config.core.address, value)
    }),
    (SECRET, |config, value| {
        config.core.secret = Some(Secret::given(value.as_bytes(), "the setting `secret`")?);
        Ok(())
    }),
    ("timeout", |config, value| {
        span(&mut config.core.timeout, value)
    }),
    ("connect_timeout", |config, value| {
        span(&mut config.core.connect_timeout, value)
    }),
    ("peer_timeout", |config, value| {
        span(&mut config.core.peer_timeout, value)
    }),
    ("transport", |config, value| {
        parsed(&mut config.core.transport, value)
    }),
    ("algorithm", |config, value| {
        parsed(&mut config.core.algorithm, value)
    }),
    ("protocol", |config, value| {
        parsed(&mut config.core.protocol, value)
    }),
    ("late_rank", |config, value| {
        parsed(&mut config.core.late_rank, value)
    }),
    ("max_channels", |config, value| {
        parsed(&mut config.core.max_channels, value)
    }),
    ("slice_bytes", |config, value| {
        parsed(&mut config.core.slice_bytes, value)
    }),
    ("socket_ifname", |config, value| {
        parsed(&mut config.core.socket_ifname, value)
    }),
    ("sockets", |config, value| {
        parsed(&mut config.core.sockets, value)
    }),
    ("helpers", |config, value| {
        parsed(&mut config.core.helpers, value)
    }),
    ("straggler", |config, value| {
        parsed(&mut config.core.straggler, value)
    }),
    ("reproducible", |config, value| {
        parsed(&mut config.core.reproducible, value)
    }),
    ("bind", |config, value| parsed(&mut config.core.bind, value)),
    ("tuner_plugin", |config, value| {
        parsed(&mut config.core.tuner_plugin, value)
    }),
    ("tuner_config", |config, value| {
        parsed(&mut config.tuner_config, value)
    }),
];

fn parsed<T: FromStr<Err: Display>>(field: &mut Option<T>, value: &str) -> Result<()> {
    *field = Some(
        value
            .parse()
            .map_err(|error: T::Err| invalid(error.to_string()))?,
    );
    Ok(())
}

fn span(field: &mut Option<Duration>, value: &str) -> Result<()> {
    let refused = |_| invalid("invalid number; use seconds, such as 2.5");
    *field = Some(seconds(value.parse().map_err(refused)?, "it")?);
    Ok(())
}

/// Creates empty settings: every value comes from the environment.
///
/// # Safety
/// `config` is a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_config_new(config: *mut *mut Config) -> Status {
    guard(|| {
        check_place(config, "config")?;
        let made = Box::new(Config {
            core: Core::default(),
            tuner_config: None,
        });
        // SAFETY: checked above.
        unsafe { store(config, Box::into_raw(made), "config") }
    })
}

/// Sets the setting `name` to `value`, a text: time spans in seconds, flags as "true" and "false".
/// Names are rank, world_size, address, secret, timeout, connect_timeout, peer_timeout, transport,
/// algorithm, protocol, late_rank, max_channels, slice_bytes, socket_ifname, sockets, helpers,
/// straggler, reproducible, bind, tuner_plugin and tuner_config.
///
/// # Safety
/// `config` is a handle or null, which no other thread uses; both texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_config_set(
    config: *mut Config,
    name: *const c_char,
    value: *const c_char,
) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { borrowed(config, "config") }?;
        // SAFETY: the caller's promise.
        let (name, value) = unsafe { (text(name, "name")?, text(value, "value")?) };
        // SAFETY: the caller's promise; not null.
        unsafe { &mut *config }.set(name, value)
    })
}

/// Frees settings; null is ignored.
///
/// # Safety
/// `config` is a handle, which is not used afterwards, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_config_free(config: *mut Config) {
    // SAFETY: the caller's promise.
    unsafe { free(config) };
}
