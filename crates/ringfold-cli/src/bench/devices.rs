//! The devices of a measurement and the settings of its lanes: `--device` and its companions.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use ringfold::{Driver, LaneConfig, Platform};

use crate::info;
use crate::parse::parse_bytes;

/// The software driver's library, which is not shipped.
const SOFTWARE_DRIVER: &str = "libringfold_softcuda.so";

/// Flags about devices.
#[derive(clap::Args, Clone, Debug)]
pub struct DeviceFlags {
    /// Measure on device memory: cuda, hip (AMD) or soft (devices in software)
    ///
    /// cuda: the ranks of a host take its devices in turn. cuda:0,1: they take only these devices,
    /// in turn. cuda:same: all ranks share device 0. hip and soft accept the same lists. Two
    /// columns are added. `limit`: time of the call's copies between device and host alone, in both
    /// directions at once, without waiting for each other or for other ranks. `of limit`: rate of
    /// the collective, in percent of the rate of these copies. The column `algorithm` shows the
    /// host's algorithm, `devices` if devices move the elements of slices, or `one kernel` if one
    /// kernel of each device carries out the call. See docs/guides/devices.md.
    #[arg(long, value_name = "DEVICES")]
    pub device: Option<Devices>,

    /// With --device: bytes of a slot, the maximum size of a slice [default: 2M]
    #[arg(long, value_name = "BYTES", requires = "device", value_parser = parse_bytes)]
    pub slot_bytes: Option<u64>,

    /// With --device: maximum size of a slice in a slot [default: the predicted optimum]
    #[arg(long, value_name = "BYTES", requires = "device", value_parser = parse_bytes)]
    pub device_slice_bytes: Option<u64>,

    /// With --device: slots in each direction, a power of two [default: 4]
    #[arg(long, value_name = "N", requires = "device")]
    pub slots: Option<u32>,

    /// With --device: let devices of one host read the slots of all ranks [default: true]
    #[arg(long, value_name = "BOOL", requires = "device")]
    pub direct: Option<bool>,

    /// With --device: let one kernel do all small all_reduces of ranks with a device each, or none
    /// [default: those predicted to be faster, if a calibration has measured the device]
    #[arg(long, value_name = "BOOL", requires = "device")]
    pub one_shot: Option<bool>,
}

impl DeviceFlags {
    /// Returns the settings of the ranks' lanes.
    pub fn config(&self) -> LaneConfig {
        let default = LaneConfig::default();
        let slot_bytes = self.slot_bytes.map(|bytes| bytes as usize);
        LaneConfig {
            slot_bytes: slot_bytes.unwrap_or(default.slot_bytes),
            slice_bytes: self.device_slice_bytes.map(|bytes| bytes as usize),
            depth: self.slots.unwrap_or(default.depth),
            direct: self.direct.unwrap_or(default.direct),
            one_shot: self.one_shot.or(default.one_shot),
        }
    }
}

/// A driver, and the assignment of its devices to ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The value of the flag.
    text: String,
    driver: DriverName,
    share: Share,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverName {
    Cuda,
    Hip,
    Soft,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Share {
    /// All devices in turn, in the order of the ranks of a host.
    All,
    /// These devices in turn, in the order of the ranks of a host.
    List(Vec<usize>),
    /// The first device, for every rank.
    Same,
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Devices, String> {
        let (name, share) = match text.split_once(':') {
            Some((name, share)) => (name, Some(share)),
            None => (text, None),
        };
        let driver = match name {
            "cuda" => DriverName::Cuda,
            "hip" => DriverName::Hip,
            "soft" => DriverName::Soft,
            _ => {
                return Err(format!("unknown driver `{name}`: write cuda, hip or soft"));
            }
        };
        let number = |text: &str| text.trim().parse::<usize>();
        let share = match share {
            None => Share::All,
            Some("same") => Share::Same,
            Some(list) => {
                let numbers = list.split(',').map(number).collect::<Result<_, _>>();
                let wrong = |_| format!("invalid list of devices `{list}`: write 0,1 or `same`");
                Share::List(numbers.map_err(wrong)?)
            }
        };
        Ok(Devices {
            text: text.to_owned(),
            driver,
            share,
        })
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Devices {
    /// Loads the driver.
    pub fn driver(&self) -> Result<&'static Driver> {
        let platform = match self.driver {
            DriverName::Hip => Platform::Hip,
            DriverName::Cuda | DriverName::Soft => Platform::Cuda,
        };
        let named = info::driver_library(platform);
        let library = match self.driver {
            DriverName::Soft if named.is_none() => Some(software_driver()?),
            _ => named,
        };
        Ok(Driver::of(platform, library.as_deref())?)
    }

    /// Returns the device for the rank with number `local_rank` on its host, of the `count` devices
    /// that the rank sees.
    ///
    /// # Errors
    /// Fails if the list names a device that does not exist, even if it is another rank's.
    pub fn ordinal(&self, local_rank: usize, count: usize) -> Result<usize> {
        let list = match &self.share {
            Share::All => return Ok(local_rank % count.max(1)),
            Share::Same => return Ok(0),
            Share::List(list) => list,
        };
        match list.iter().find(|ordinal| **ordinal >= count) {
            Some(ordinal) => {
                bail!("there is no device {ordinal}: this process sees {count} (`--device {self}`)")
            }
            None => Ok(list[local_rank % list.len()]),
        }
    }
}

/// Finds Cargo's build of the software driver, in `deps` beside this program or beside it directly.
fn software_driver() -> Result<String> {
    let program = std::env::current_exe()?;
    let folders = program.parent().into_iter();
    let folders = folders.flat_map(|folder| [folder.join("deps"), folder.to_owned()]);
    let mut files = folders.map(|folder| folder.join(SOFTWARE_DRIVER));
    match files
        .find(|file| file.is_file())
        .as_deref()
        .and_then(|file| file.to_str())
    {
        Some(file) => Ok(file.to_owned()),
        None => bail!(
            "the software driver, {SOFTWARE_DRIVER}, is not beside this program: it is part of \
             ringfold's source only; build it there (cargo build -p ringfold-softcuda, with \
             --release if this program was), or name the library in RINGFOLD_CUDA_LIBRARY"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_shared_out_as_the_flag_says() {
        let of_ranks = |text: &str, count: usize| -> Vec<usize> {
            let devices: Devices = text.parse().unwrap();
            assert_eq!(devices.to_string(), text);
            (0..4)
                .map(|rank| devices.ordinal(rank, count).unwrap())
                .collect()
        };
        assert_eq!(of_ranks("cuda", 3), [0, 1, 2, 0]);
        assert_eq!(of_ranks("cuda:same", 3), [0; 4]);
        assert_eq!(of_ranks("soft:2,0", 3), [2, 0, 2, 0]);
        // Without devices, opening device 0 fails with the driver's error.
        assert_eq!(of_ranks("soft", 0), [0; 4]);
        let few: Devices = "cuda:0,3".parse().unwrap();
        let error = few.ordinal(0, 3).unwrap_err().to_string();
        assert!(
            error.contains("there is no device 3: this process sees 3"),
            "{error}"
        );
    }

    #[test]
    fn a_misspelt_device_gets_the_words_that_there_are() {
        for (text, word) in [
            ("gpu", "cuda, hip or soft"),
            ("cuda:", "0,1"),
            ("cuda:a", "0,1"),
        ] {
            let error = text.parse::<Devices>().unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
