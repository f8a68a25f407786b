//! What rank 0 knows when it decides how a lane's calls are carried out.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::config::LaneConfig;
use super::one_shot::limits::bytes_max;
use super::policy::{Policy, Setting};
use super::staging::Staging;
use crate::communicator::{Communicator, Counts, Request};
use crate::config::Reducer;
use crate::device::Device;
use crate::error::Result;
use crate::memory::Region;
use crate::tune::DeviceConstants;
use crate::tune::devices::pipeline::Shape;
use crate::types::{Collective, DType};

/// Two numbers that say which device it is, in every process that sees it.
const UUID_WORDS: usize = 2;

/// Whether devices may combine where `reducer` is asked for. Assumed constants are no reason to
/// take a program's device for other work: rank 0 knows measured ones, or a program asks for it.
/// Collective.
pub fn may_combine(communicator: &Communicator, reducer: Reducer) -> Result<bool> {
    let is_measured = communicator.rank() == 0 && measured(communicator).is_some();
    let mut word = [u8::from(is_measured)];
    communicator.broadcast(&mut word, 0)?;
    Ok(match reducer {
        Reducer::Auto => word == [1],
        Reducer::Host => false,
        Reducer::Device => true,
    })
}

/// What rank 0 knows of devices by measurement.
fn measured(communicator: &Communicator) -> Option<DeviceConstants> {
    let calibration = communicator.calibration();
    calibration.and_then(|calibration| calibration.devices)
}

/// How calls are carried out with this staging memory, as rank 0 decides it for `config`, where
/// one kernel can do small all-reduces if `has_one_shot`. Collective.
pub fn decide(
    communicator: &Communicator,
    device: &Arc<Device>,
    staging: &Staging,
    config: LaneConfig,
    has_one_shot: bool,
) -> Result<Policy> {
    let shape = Shape {
        ranks: communicator.world_size(),
        ranks_per_device: sharers(communicator, device)?,
        depth: staging.depth(),
    };
    let slot_bytes = staging.slot_bytes() as u64;
    let mut words = vec![0; Policy::WORDS];
    if communicator.rank() == 0 {
        let measured = measured(communicator);
        let constants = measured.unwrap_or_default();
        log::info!(
            target: "ringfold::device",
            "constants of devices, {}: {constants}",
            if measured.is_some() { "as measured" } else { "assumed" }
        );
        let setting = Setting {
            shape,
            constants,
            slot_bytes,
            slice_bytes: config.slice_bytes.map(|bytes| bytes as u64),
            is_direct: staging.is_direct(),
            one_shot_bytes: match has_one_shot {
                true => bytes_max(shape.ranks, staging.slot_bytes()) as u64,
                false => 0,
            },
            host_us: &|collective, bytes| host_us(communicator, collective, bytes),
        };
        let reducer = match (config.reducer, measured) {
            (Reducer::Auto, None) => Reducer::Host,
            _ => config.reducer,
        };
        words = Policy::decide(&setting, reducer).words();
    }
    communicator.broadcast(&mut words, 0)?;
    Policy::from_words(&words, slot_bytes, shape.ranks)
}

/// The most ranks that have the same device.
fn sharers(communicator: &Communicator, device: &Arc<Device>) -> Result<usize> {
    let own = u128::from_ne_bytes(device.attributes().uuid);
    let own = [(own >> 64) as u64, own as u64];
    let mut all = vec![0; UUID_WORDS * communicator.world_size()];
    communicator.all_gather(&own, &mut all)?;
    let ranks = all.chunks_exact(UUID_WORDS);
    let count = |one: &[u64]| ranks.clone().filter(|other| *other == one).count();
    Ok(ranks.clone().map(count).max().unwrap_or(1))
}

/// What a call of the host's of so many bytes should take by the way that is chosen for it; 0 where
/// it has no model.
fn host_us(communicator: &Communicator, collective: Collective, bytes: u64) -> f64 {
    let counts = Counts::Even(bytes);
    let whole = Request::new(collective, DType::U8, counts, Region::EMPTY, Region::EMPTY);
    let blocks = if whole.is_of_blocks() {
        communicator.world_size()
    } else {
        1
    };
    let request = Request {
        counts: Counts::Even(bytes / blocks as u64),
        ..whole
    };
    let explained = communicator.explain(&request).ok();
    let price = explained.and_then(|it| it.prices.get((it.way.method(), it.way.protocol())));
    price.map_or(0.0, f64::from)
}
