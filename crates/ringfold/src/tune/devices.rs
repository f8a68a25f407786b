//! What the cost model knows of devices (GPUs) and of their links to the host.
//!
//! A [`DeviceConstants`] is the default, or what `ringfold tune calibrate --device` has measured.
//! Rank 0's hold for all ranks of a communicator. [`pipeline`] and [`one_shot`] have the closed
//! forms that read them, by which [`choice`] cuts calls, and the simulator's devices are like them
//! by default.

#![forbid(unsafe_code)]

pub mod choice;
pub mod one_shot;
pub mod pipeline;

use std::fmt;

use super::parameters::{self, Overrides, parameters};

/// The longest text of such constants that is read.
pub const TEXT_BYTES_MAX: usize = 1 << 10;

/// The most microseconds that one event takes.
const EVENT_US_MAX: f64 = 1e6;

/// The least and the most that a rate is, in GB/s.
const GBPS_MIN: f64 = 1e-3;
const GBPS_MAX: f64 = 1e5;

/// The least part of its rate that a direction has while both are busy.
const DUPLEX_MIN: f64 = 0.01;

/// Bytes per microsecond of a GB/s.
const BYTES_PER_US: f64 = 1e3;

parameters! {
    /// The constants of the ranks' devices.
    ///
    /// The defaults are assumed, not measured: PCI Express 4.0 with 16 lanes at 25 GB/s each way, 2
    /// µs for a word until it is seen and for a call of the driver. The gap between copies is that
    /// of an H200, measured; a copy and a chain are assumed to take some more than there. A kernel
    /// that reads host memory has the part of the link's rate that it has on an H100 (35 of 55
    /// GB/s, nvbandwidth's issue 24), and 4 and 2 µs for the launch and a flag make the 8 µs, with
    /// the call, that NCCL's small calls through host memory take.
    #[derive(Clone, Copy, Debug, PartialEq)]
    "device constant" DeviceConstants of f64, text up to TEXT_BYTES_MAX {
        /// The rate of a link from a device to the host, alone.
        device_out_gbps = 25.0, GBPS_MIN..=GBPS_MAX;
        /// The same from the host to a device.
        device_in_gbps = 25.0, GBPS_MIN..=GBPS_MAX;
        /// The part of its rate that each direction of a link has while both are busy.
        device_duplex = 1.0, DUPLEX_MIN..=1.0;
        /// What a copy takes in its stream beside its bytes.
        device_copy_us = 5.0, 0.0..=EVENT_US_MAX;
        /// What a copy takes of its link beside its bytes, while both directions are busy: no other
        /// copy has the link in this time.
        device_gap_us = 3.3, 0.0..=EVENT_US_MAX;
        /// What a stream takes for a wait, a copy and a write beyond the copy's time.
        device_chain_us = 5.0, 0.0..=EVENT_US_MAX;
        /// From the moment at which a device writes a word until its rank sees it, and vice versa.
        device_signal_us = 2.0, 0.0..=EVENT_US_MAX;
        /// What a call of the driver takes in the thread that enqueues.
        device_enqueue_us = 2.0, 0.0..=EVENT_US_MAX;
        /// What a kernel takes in its stream beside what it does.
        device_launch_us = 4.0, 0.0..=EVENT_US_MAX;
        /// From the moment at which a kernel raises a flag in host memory until another one that
        /// waits sees it.
        device_flag_us = 2.0, 0.0..=EVENT_US_MAX;
        /// The rate at which a kernel reads host memory.
        device_read_gbps = 16.0, GBPS_MIN..=GBPS_MAX;
    }
}

impl DeviceConstants {
    /// The constants that another rank sent, or a file holds; `None` unless they are whole and
    /// within their bounds.
    pub fn decode(text: &str) -> Option<DeviceConstants> {
        let mut values = Overrides::default();
        parameters::read::<DeviceConstants>(text, |name, value| values.add(name, value)).ok()?;
        let whole = values.is_whole();
        whole.then(|| values.over(DeviceConstants::default()))
    }

    /// What a copy takes in its stream beside its bytes: not less than its gap on the link.
    pub fn copy_us(&self) -> f64 {
        self.device_copy_us.max(self.device_gap_us)
    }

    /// What a byte takes on the link from a device, alone.
    pub fn out_us_per_byte(&self) -> f64 {
        1.0 / (self.device_out_gbps * BYTES_PER_US)
    }

    /// What a byte takes on the link to a device, alone.
    pub fn in_us_per_byte(&self) -> f64 {
        1.0 / (self.device_in_gbps * BYTES_PER_US)
    }

    /// What a byte of host memory takes that a kernel reads.
    pub fn read_us_per_byte(&self) -> f64 {
        1.0 / (self.device_read_gbps * BYTES_PER_US)
    }
}

/// The form that [`DeviceConstants::decode`] reads.
impl fmt::Display for DeviceConstants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        parameters::write(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_survive_their_text() {
        let constants = DeviceConstants {
            device_copy_us: 6.25,
            ..DeviceConstants::default()
        };
        let text = constants.to_string();
        assert_eq!(DeviceConstants::decode(&text), Some(constants));
        for (from, to) in [
            ("device_copy_us=6.25", "device_copy_us=-1"),
            ("device_copy_us=6.25", "device_copy_us=NaN"),
            ("device_copy_us=6.25,", ""),
            ("device_copy_us", "device_cpy_us"),
            ("device_duplex=1", "device_duplex=0"),
            ("device_duplex=1", "device_duplex=1.5"),
            ("device_out_gbps=25", "device_out_gbps=0"),
        ] {
            let spoiled = text.replacen(from, to, 1);
            assert_ne!(spoiled, text, "{from}");
            assert_eq!(DeviceConstants::decode(&spoiled), None, "{to}");
        }
    }
}
