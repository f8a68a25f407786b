//! What the decisions for a lane are made from: rank 0's constants of devices, and the cost model
//! of the communicator, which is the same on all ranks.

#![forbid(unsafe_code)]

use super::agree::Agreed;
use super::one_shot::limits::bytes_max;
use super::policy::{Policy, Setting};
use super::staging::Staging;
use crate::call::Way;
use crate::communicator::{Communicator, Counts, Request};
use crate::memory::Region;
use crate::tune::devices::pipeline::Shape;
use crate::tune::model::price;
use crate::tune::{DeviceConstants, Question};
use crate::types::{Collective, DType};

/// What this rank knows of devices by measurement.
pub fn measured(communicator: &Communicator) -> Option<DeviceConstants> {
    let calibration = communicator.calibration();
    calibration.and_then(|calibration| calibration.devices)
}

/// How calls are carried out with this staging memory: the same on all ranks. `one_shot` says
/// whether one kernel does all small all-reduces or the faster ones, if there is one.
pub fn decide(
    communicator: &Communicator,
    agreed: &Agreed,
    staging: &Staging,
    slice_bytes: Option<usize>,
    one_shot: Option<bool>,
) -> Policy {
    let (ranks, slot_bytes) = (communicator.world_size(), staging.slot_bytes());
    let constants = agreed.constants.unwrap_or_default();
    log::info!(
        target: "ringfold::device",
        "constants of devices, {}: {constants}",
        if agreed.constants.is_some() { "as measured" } else { "assumed" }
    );
    let policy = Policy::decide(&Setting {
        shape: Shape {
            ranks,
            ranks_per_device: agreed.ranks_per_device,
            depth: staging.depth(),
        },
        constants,
        slot_bytes: slot_bytes as u64,
        slice_bytes: slice_bytes.map(|bytes| bytes as u64),
        is_direct: staging.is_direct(),
        threads: agreed.threads,
        one_shot_bytes: one_shot.map_or(0, |_| bytes_max(ranks, slot_bytes) as u64),
        is_one_shot_asked: one_shot.unwrap_or(false),
        host_us: &|collective, bytes| host_us(communicator, collective, bytes),
        slots_us: &|collective, bytes| {
            let (way, tuning) = (Way::by_slots(slot_bytes), &communicator.policy.tuning);
            let question = Question::new(collective, bytes, ranks);
            f64::from(price(&question, &way, &tuning.constants))
        },
    });
    log::info!(
        target: "ringfold::device",
        "threads that combine a slice: {}",
        1 + policy.helpers_max()
    );
    policy
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
