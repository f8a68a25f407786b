//! The settings of a simulation: the keys of a scenario file, and of `--set KEY=VALUE`.
//! `docs/reference/simulator-settings.md` says what each means.
//!
//! [`Layers`] holds them as the tables of a file, of which one lies over the other: measured
//! constants, the file, flags, a varied value. [`Settings`] are these tables, read.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use ringfold::internals::simulate::{Payload, Ports, Sending, Server, Slow};
use ringfold::internals::units::nearest;
use ringfold::{Collective, DType, Method, Op, Weighting};
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

use super::constants::{Fabric, MeasuredCosts};
use super::disturbances::{Dead, Late, SlowLink, Stall, SwitchLink};
use super::parse::{
    Bytes, DeviceRate, Rate, TimeSpan, hint, own_list, own_text, quoted, read_from_text, text,
    value, words,
};
use super::policy::PolicySettings;
use crate::parse::{Selection, parse_algorithm, parse_collective, parse_dtype};

/// Everything that can be set; `None` or an empty list is the default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    #[serde(deserialize_with = "collective")]
    pub collective: Option<Collective>,
    pub algorithm: Option<AlgorithmChoice>,
    pub ranks: Option<usize>,
    pub bytes: Option<Bytes>,
    pub chunk_bytes: Option<Bytes>,
    pub slice_bytes: Option<Slice>,
    #[serde(deserialize_with = "own_text")]
    pub weights: Option<Weighting>,
    #[serde(deserialize_with = "dtype")]
    pub datatype: Option<DType>,
    #[serde(deserialize_with = "own_text")]
    pub op: Option<Op>,
    pub root: Option<usize>,
    #[serde(deserialize_with = "payload")]
    pub payload: Option<Payload>,
    pub barriers: Option<bool>,
    pub seed: Option<u64>,
    pub timeout: Option<TimeSpan>,
    #[serde(deserialize_with = "own_list")]
    pub slow: Vec<Slow>,
    #[serde(deserialize_with = "own_list")]
    pub late: Vec<Late>,
    #[serde(deserialize_with = "own_list")]
    pub stall: Vec<Stall>,
    #[serde(deserialize_with = "own_list")]
    pub slow_link: Vec<SlowLink>,
    #[serde(deserialize_with = "own_list")]
    pub dead: Vec<Dead>,
    pub detect: Option<TimeSpan>,
    pub network: NetworkSettings,
    pub compute: ComputeSettings,
    pub devices: DeviceSettings,
    pub straggler: PolicySettings,
}

/// The network between the ranks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSettings {
    #[serde(deserialize_with = "fabric")]
    pub fabric: Option<Fabric>,
    pub registered: Option<bool>,
    pub grant: Option<TimeSpan>,
    pub alpha: Option<TimeSpan>,
    pub bandwidth: Option<Rate>,
    pub overhead: Option<TimeSpan>,
    pub crowded_overhead: Option<TimeSpan>,
    pub packets_overhead: Option<TimeSpan>,
    pub work_rate: Option<Rate>,
    pub gap: Option<TimeSpan>,
    #[serde(deserialize_with = "ports")]
    pub ports: Option<Ports>,
    #[serde(deserialize_with = "sending")]
    pub sending: Option<Sending>,
    pub ranks_per_host: Option<usize>,
    pub local_alpha: Option<TimeSpan>,
    pub local_bandwidth: Option<Rate>,
    pub local_overhead: Option<TimeSpan>,
    pub local_crowded_overhead: Option<TimeSpan>,
    pub local_work_rate: Option<Rate>,
    pub window_bytes: Option<Bytes>,
    pub local_window_bytes: Option<Bytes>,
    pub segment_bytes: Option<Bytes>,
    pub hosts_per_machine: Option<usize>,
    pub memory_bandwidth: Option<Rate>,
    #[serde(deserialize_with = "own_list")]
    pub switch: Vec<SwitchLink>,
}

/// The processors.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeSettings {
    pub reduce_time: Option<TimeSpan>,
    pub reduce_rate: Option<Rate>,
    pub copy_rate: Option<Rate>,
    pub cache_bytes: Option<Bytes>,
    pub miss_rate: Option<Rate>,
    #[serde(deserialize_with = "server")]
    pub server: Option<Server>,
    pub spin: Option<TimeSpan>,
    pub wake: Option<TimeSpan>,
    pub switch_time: Option<TimeSpan>,
    pub cores_per_host: Option<usize>,
}

/// The devices that the data is on.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceSettings {
    pub device: Option<DeviceRate>,
    pub device_in: Option<Rate>,
    pub device_duplex: Option<f64>,
    pub device_copy: Option<TimeSpan>,
    pub device_gap: Option<TimeSpan>,
    pub device_chain: Option<TimeSpan>,
    pub device_signal: Option<TimeSpan>,
    pub device_enqueue: Option<TimeSpan>,
    pub slot_bytes: Option<Bytes>,
    pub device_slice_bytes: Option<Bytes>,
    pub slots: Option<u32>,
    pub device_launch: Option<TimeSpan>,
    pub device_flag: Option<TimeSpan>,
    pub device_read: Option<Rate>,
    pub one_shot: Option<bool>,
    pub direct: Option<bool>,
    pub ranks_per_device: Option<usize>,
}

/// The algorithm of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmChoice {
    /// The tuner's choice.
    Auto,
    /// This algorithm.
    By(Method),
}

/// The pipeline's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    Whole,
    Bytes(u64),
}

words! { payload: Payload = "real" => Payload::Real, "hollow" => Payload::Hollow }
words! { fabric: Fabric = "sockets" => Fabric::Sockets, "rdma" => Fabric::Rdma }
words! { sending: Sending = "eager" => Sending::Eager, "rendezvous" => Sending::Rendezvous }
words! { server: Server = "serial" => Server::Serial, "parallel" => Server::Parallel }
words! {
    ports: Ports =
    "full" => Ports::Full,
    "half" => Ports::Half,
    "unlimited" => Ports::Unlimited
}

read_from_text!(Slice, AlgorithmChoice);

impl std::str::FromStr for Slice {
    type Err = String;
    fn from_str(text: &str) -> Result<Slice, String> {
        match text {
            "whole" => Ok(Slice::Whole),
            _ => match text.parse::<Bytes>()? {
                Bytes(0) => Err("a slice has at least 1 byte; write `whole` for no slices".into()),
                Bytes(bytes) => Ok(Slice::Bytes(bytes)),
            },
        }
    }
}

impl std::str::FromStr for AlgorithmChoice {
    type Err = ringfold::Error;
    fn from_str(text: &str) -> ringfold::Result<AlgorithmChoice> {
        match text {
            "auto" => Ok(AlgorithmChoice::Auto),
            _ => parse_algorithm(text).map(AlgorithmChoice::By),
        }
    }
}

fn parse_one_dtype(text: &str) -> Result<DType, ringfold::Error> {
    match parse_dtype(text)? {
        Selection::One(dtype) => Ok(dtype),
        Selection::All => Err(ringfold::Error::InvalidArgument(
            "one data type at a time; `--compare datatype=float16,float32` takes several".into(),
        )),
    }
}

fn collective<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Collective>, D::Error> {
    text(from, parse_collective).map(Some)
}

fn dtype<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DType>, D::Error> {
    text(from, parse_one_dtype).map(Some)
}

/// The tables of a scenario file; the first is the top level.
const SECTIONS: [&str; 5] = ["", "network", "compute", "devices", "straggler"];

/// A layer that has the first key takes the second one from the layers below.
const REPLACED: [(&str, &str); 4] = [
    ("bytes", "chunk_bytes"),
    ("chunk_bytes", "bytes"),
    ("overhead", "crowded_overhead"),
    ("local_overhead", "local_crowded_overhead"),
];

/// Settings one over the other.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    set: Table,
    /// Constants of measured links and devices; every setting takes precedence.
    pub measured: MeasuredCosts,
    /// The delay of all slow reductions and late ranks, if it varies.
    pub delay_ps: Option<u64>,
}

impl Layers {
    /// Adds the settings of a scenario file.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let name = path.display();
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read `{name}`"))?;
        let wrong = |error: toml::de::Error| {
            let (text, hint) = (error.to_string(), hint(error.message()));
            anyhow!("`{name}`: {}{hint}", text.trim_end())
        };
        toml::from_str::<Settings>(&text).map_err(wrong)?;
        overlay(&mut self.set, toml::from_str(&text).map_err(wrong)?);
        Ok(())
    }

    /// Adds a setting as a user writes it; `also` are keys that the caller knows itself.
    pub fn set(&mut self, key: &str, text: &str, also: &[&str]) -> Result<()> {
        self.add(key, value(text), text, also)
    }

    /// Adds a list of texts.
    pub fn set_list(&mut self, key: &str, texts: &[String]) -> Result<()> {
        let values = texts.iter().map(|text| Value::from(text.as_str()));
        self.add(key, Value::Array(values.collect()), &texts.join(" "), &[])
    }

    fn add(&mut self, key: &str, value: Value, text: &str, also: &[&str]) -> Result<()> {
        let key = key.replace('-', "_");
        let mut known: Vec<String> = also.iter().map(|&key| key.to_owned()).collect();
        for section in SECTIONS {
            let inner = Table::from_iter([(key.clone(), value.clone())]);
            let layer = match section {
                "" => inner,
                _ => Table::from_iter([(section.to_owned(), Value::Table(inner))]),
            };
            match layer.clone().try_into::<Settings>() {
                Ok(_) => {
                    overlay(&mut self.set, layer);
                    return Ok(());
                }
                Err(error) if error.message().starts_with("unknown field") => {
                    known.extend(quoted(error.message()).skip(1).map(str::to_owned));
                }
                Err(error) => {
                    let message = error.message();
                    bail!("`{key}={text}`: {message}{}", hint(message));
                }
            }
        }
        bail!(
            "unknown setting `{key}`; did you mean `{}`?",
            nearest(&key, known.iter().map(String::as_str))
        )
    }

    /// All layers together, over the measured constants of the network that they are about.
    pub fn settings(&self) -> Result<Settings> {
        let given: Settings = self.set.clone().try_into()?;
        let is_registered = given.network.registered.unwrap_or(false);
        let mut all = self.measured.under(given.network.fabric, is_registered)?;
        overlay(&mut all, self.set.clone());
        Ok(all.try_into()?)
    }
}

/// Puts one layer over another.
fn overlay(under: &mut Table, over: Table) {
    for (key, replaced) in REPLACED {
        if over.contains_key(key) {
            under.remove(replaced);
        }
    }
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => overlay(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_replaces_what_it_says_in_other_words() {
        let mut layers = Layers::default();
        for (key, text) in [
            ("bytes", "1M"),
            ("crowded-overhead", "1us"),
            ("overhead", "2us"),
        ] {
            layers.set(key, text, &[]).unwrap();
        }
        layers.set("chunk_bytes", "4K", &[]).unwrap();
        let settings = layers.settings().unwrap();
        assert_eq!(
            (settings.bytes, settings.chunk_bytes),
            (None, Some(Bytes(4096)))
        );
        assert_eq!(settings.network.crowded_overhead, None);
        let both = "overhead = '1us'\ncrowded_overhead = '2us'"
            .parse()
            .unwrap();
        let both = Table::from_iter([("network".to_owned(), Value::Table(both))]);
        overlay(&mut layers.set, both);
        let crowded = layers.settings().unwrap().network.crowded_overhead;
        assert_eq!(crowded, Some(TimeSpan { ps: 2_000_000 }));
    }
}
