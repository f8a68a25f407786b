//! The settings of devices that data is on: flags and keys like all others.

use clap::Args;
use ringfold::internals::simulate::Reducer;
use ringfold::internals::tune::DeviceConstants;
use serde::Deserialize;

use super::parse::{Bytes, DeviceRate, Rate, Span, own_text};

/// The heading of the help.
const DEVICES: &str = "The devices";

/// The devices that the data is on.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceSettings {
    /// Data is on devices (GPUs), whose links to the host have this bandwidth each way, or with
    /// `measured` what the file of --constants says; lanes copy it in slices [default: data is on
    /// the hosts]
    #[arg(long, value_name = "RATE", help_heading = DEVICES)]
    pub device: Option<DeviceRate>,

    /// What was measured of devices, if --constants has it: settings take precedence.
    #[arg(skip)]
    #[serde(skip)]
    pub measured: Option<DeviceConstants>,

    /// The links' bandwidth to the devices, if it differs [default: --device]
    #[arg(long, value_name = "RATE", help_heading = DEVICES)]
    pub device_in: Option<Rate>,

    /// Which part of its bandwidth each direction of a link has while both are busy [default: 1]
    #[arg(long, value_name = "PART", help_heading = DEVICES)]
    pub device_duplex: Option<f64>,

    /// What a copy takes beside its bytes [default: 10us]
    #[arg(long, value_name = "TIME", help_heading = DEVICES)]
    pub device_copy: Option<Span>,

    /// How long it takes until a rank sees what its device has written, and vice versa
    /// [default: 2us]
    #[arg(long, value_name = "TIME", help_heading = DEVICES)]
    pub device_signal: Option<Span>,

    /// What a call of the driver takes; a slice has six or more [default: 2us]
    #[arg(long, value_name = "TIME", help_heading = DEVICES)]
    pub device_enqueue: Option<Span>,

    /// Bytes of a slot, the most of a slice; shorter slices are used where that should be faster
    /// [default: 1M]
    #[arg(long, value_name = "BYTES", help_heading = DEVICES)]
    pub slot_bytes: Option<Bytes>,

    /// Slots in each direction, a power of two [default: 4]
    #[arg(long, value_name = "N", help_heading = DEVICES)]
    pub slots: Option<u32>,

    /// The rate at which a kernel reads and writes that combines slices [default: 400GB/s]
    #[arg(long, value_name = "RATE", help_heading = DEVICES)]
    pub device_reduce: Option<Rate>,

    /// What a kernel takes beside what it does [default: 4us]
    #[arg(long, value_name = "TIME", help_heading = DEVICES)]
    pub device_launch: Option<Span>,

    /// How long it takes until a kernel sees the flag of another one [default: 2us]
    #[arg(long, value_name = "TIME", help_heading = DEVICES)]
    pub device_flag: Option<Span>,

    /// The rate at which a kernel reads the host's memory [default: 0.64 of the links']
    #[arg(long, value_name = "RATE", help_heading = DEVICES)]
    pub device_read: Option<Rate>,

    /// What combines the elements of an all_reduce: host, device, or auto, what should be faster
    /// by the cost model [default: host]
    #[arg(long, value_name = "WHAT", help_heading = DEVICES)]
    #[serde(deserialize_with = "own_text")]
    pub reducer: Option<Reducer>,

    /// Whether one kernel may do a small all_reduce of ranks of one host that have a device each,
    /// where devices may combine [default: true]
    #[arg(long, value_name = "BOOL", help_heading = DEVICES)]
    pub one_shot: Option<bool>,

    /// Whether devices of one host read the slots of all ranks, in calls that only move data and
    /// in slices that they combine [default: true]
    #[arg(long, value_name = "BOOL", help_heading = DEVICES)]
    pub direct: Option<bool>,

    /// Ranks on each device, which share its links [default: 1]
    #[arg(long, value_name = "N", help_heading = DEVICES)]
    pub ranks_per_device: Option<usize>,
}
