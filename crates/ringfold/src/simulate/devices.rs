//! What simulated devices (GPUs) are like: numbers, and what they mean.

use crate::error::{Error, Result};
use crate::tune::DeviceConstants;
use crate::tune::devices::choice::Carried;

/// Picoseconds of a microsecond, and of a nanosecond.
const PS_PER_US: f64 = 1e6;
const PS_PER_NS: f64 = 1e3;

/// The devices that hold the ranks' data, and how the ranks' lanes to them are made.
///
/// The default is a device for each rank as the cost model has them by default, with links of 25
/// GB/s each way and 5 µs for a copy beside its bytes, and lanes with 4 slots of 2 MiB.
#[derive(Clone, Debug, PartialEq)]
pub struct Devices {
    /// The inverse of a link's bandwidth from a device to the host.
    pub out_ps_per_byte: u64,
    /// The same from the host to a device.
    pub in_ps_per_byte: u64,
    /// Which part of its bandwidth each direction of a link has while both are busy: above 0, at
    /// most 1.
    pub duplex: f64,
    /// What a copy takes in its stream beside its bytes, with its gap on the link.
    pub copy_ps: u64,
    /// What a copy takes of its link beside its bytes.
    pub gap_ps: u64,
    /// What a stream takes for a wait, a copy and a write beyond the copy.
    pub chain_ps: u64,
    /// From the moment at which a device writes a word until its rank sees that, and vice versa.
    pub signal_ps: u64,
    /// What a call of the driver takes in the thread that enqueues.
    pub enqueue_ps: u64,
    /// What a kernel takes in its stream before it does something.
    pub launch_ps: u64,
    /// From the moment at which a kernel raises a flag until another kernel sees it.
    pub flag_ps: u64,
    /// What a byte of the host's memory takes that a kernel reads.
    pub read_ps_per_byte: u64,
    /// The most bytes that a slot holds.
    pub slot_bytes: u64,
    /// The most bytes of a slice; `None`: what should be fastest by the cost model, at most a slot.
    pub slice_bytes: Option<u64>,
    /// Slices that may be under way at the same time: a power of two.
    pub depth: u32,
    /// Whether devices of one host read the slots of all ranks, where CPUs combine in place.
    pub direct: bool,
    /// Whether one kernel of each device does small all-reduces, as in the product: where calls are
    /// direct, and each rank has a device. `None`: those that should be faster by the cost model.
    pub one_shot: Option<bool>,
    /// By what the call is carried out; `None`: what follows from the others.
    pub carried: Option<Carried>,
    /// Ranks on each device, in rank order. They share its links.
    pub ranks_per_device: usize,
}

/// Which way a copy goes, and the stream that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::simulate) enum Direction {
    /// From the device to the host.
    Out,
    /// From the host to the device.
    In,
}

impl Default for Devices {
    fn default() -> Devices {
        Devices::like(&DeviceConstants::default())
    }
}

impl Devices {
    /// Devices like those that the cost model assumes, or has measured.
    pub fn like(constants: &DeviceConstants) -> Devices {
        let ps = |us: f64| (us * PS_PER_US).round() as u64;
        Devices {
            out_ps_per_byte: ps(constants.out_us_per_byte()),
            in_ps_per_byte: ps(constants.in_us_per_byte()),
            duplex: constants.device_duplex,
            copy_ps: ps(constants.device_copy_us),
            gap_ps: ps(constants.device_gap_us),
            chain_ps: ps(constants.device_chain_us),
            signal_ps: ps(constants.device_signal_us),
            enqueue_ps: ps(constants.device_enqueue_us),
            launch_ps: ps(constants.device_launch_us),
            flag_ps: ps(constants.device_flag_us),
            read_ps_per_byte: ps(constants.read_us_per_byte()),
            slot_bytes: 2 << 20,
            slice_bytes: None,
            depth: 4,
            direct: true,
            one_shot: None,
            carried: None,
            ranks_per_device: 1,
        }
    }

    /// The same as the cost model has it.
    pub fn constants(&self) -> DeviceConstants {
        let gbps = |ps_per_byte: f64| PS_PER_NS / ps_per_byte.max(f64::MIN_POSITIVE);
        let us = |ps: u64| ps as f64 / PS_PER_US;
        DeviceConstants {
            device_out_gbps: gbps(self.out_ps_per_byte.max(1) as f64),
            device_in_gbps: gbps(self.in_ps_per_byte.max(1) as f64),
            device_duplex: self.duplex,
            device_copy_us: us(self.copy_ps),
            device_gap_us: us(self.gap_ps),
            device_chain_us: us(self.chain_ps),
            device_signal_us: us(self.signal_ps),
            device_enqueue_us: us(self.enqueue_ps),
            device_launch_us: us(self.launch_ps),
            device_flag_us: us(self.flag_ps),
            device_read_gbps: gbps(self.read_ps_per_byte.max(1) as f64),
        }
    }

    /// Which device a rank's data is on.
    pub fn device(&self, rank: usize) -> usize {
        rank / self.ranks_per_device.max(1)
    }

    /// What so many copies of `bytes` in all take on an idle link.
    pub(super) fn link_ps(&self, direction: Direction, bytes: u64, copies: u64) -> u64 {
        let bytes_ps = bytes.saturating_mul(match direction {
            Direction::Out => self.out_ps_per_byte,
            Direction::In => self.in_ps_per_byte,
        });
        bytes_ps.saturating_add(copies * self.gap_ps)
    }

    /// What a copy takes in its stream before it comes to the link.
    pub(super) fn before_link_ps(&self) -> u64 {
        self.copy_ps.saturating_sub(self.gap_ps)
    }

    /// Refuses what cannot be.
    pub fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::InvalidArgument(text));
        let Devices { duplex, depth, .. } = *self;
        if !(duplex > 0.0 && duplex <= 1.0) {
            return invalid(format!(
                "links of which each direction has {duplex} of its rate while both are busy; \
                 above 0, at most 1"
            ));
        }
        if !depth.is_power_of_two() {
            return invalid(format!("{depth} slots; 1, 2, 4, …"));
        }
        if self.ranks_per_device == 0 {
            return invalid("0 ranks on a device; at least 1".into());
        }
        Ok(())
    }
}
