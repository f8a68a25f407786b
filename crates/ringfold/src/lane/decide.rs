//! A lane's tuner: its inputs, which are rank 0's constants of devices and the communicator's cost
//! model, equal on all ranks; its questions; and its log.

#![forbid(unsafe_code)]

use std::collections::HashSet;

use super::agree::Agreed;
use super::cut::goes_by_slots;
use super::one_shot::is_combined;
use super::one_shot::limits::bytes_max;
use super::staging::Staging;
use crate::call::Way;
use crate::communicator::{Communicator, Counts, Request};
use crate::memory::Region;
use crate::tune::devices::choice::{Carried, DevicePlan, DeviceQuestion, DeviceTuner, Setting};
use crate::tune::devices::pipeline::Shape;
use crate::tune::model::price;
use crate::tune::{DeviceConstants, Question};
use crate::types::{Collective, DType};

/// This rank's measured constants of devices, if there are any.
pub fn measured(communicator: &Communicator) -> Option<DeviceConstants> {
    let calibration = communicator.calibration();
    calibration.and_then(|calibration| calibration.devices)
}

/// The tuner of a lane, and the choices that are in the log.
#[derive(Debug)]
pub struct Decisions {
    tuner: DeviceTuner,
    world_size: usize,
    logged: HashSet<(Collective, u64, Carried)>,
}

impl Decisions {
    /// The tuner of a lane with this staging memory: the same on all ranks. `one_shot` says whether
    /// one kernel does all small all-reduces or the faster ones, if there is one.
    pub fn new(
        communicator: &Communicator,
        agreed: &Agreed,
        staging: &Staging,
        slice_bytes: Option<usize>,
        one_shot: Option<bool>,
    ) -> Decisions {
        let (ranks, slot_bytes) = (communicator.world_size(), staging.slot_bytes());
        let constants = agreed.constants.unwrap_or_default();
        log::info!(
            target: "ringfold::device",
            "constants of devices, {}: {constants}",
            if agreed.constants.is_some() { "as measured" } else { "assumed" }
        );
        let tuner = DeviceTuner::new(&Setting {
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
            1 + tuner.helpers_max()
        );
        Decisions {
            tuner,
            world_size: ranks,
            logged: HashSet::new(),
        }
    }

    /// The most helper threads that are worthwhile for sums in slots.
    pub fn helpers_max(&self) -> usize {
        self.tuner.helpers_max()
    }

    /// How `request` is carried out: in slices, or by one kernel if that is allowed.
    pub fn plan(&self, request: &Request, may_be_one_shot: bool) -> DevicePlan {
        let question = question(request, self.world_size);
        self.tuner.plan(&DeviceQuestion {
            has_kernel: may_be_one_shot && question.has_kernel,
            ..question
        })
    }

    /// Logs how calls like `request` are carried out: once for all up to a power of two of bytes.
    pub fn log(&mut self, request: &Request, plan: &DevicePlan) {
        let (collective, bytes) = (request.collective, request.bytes(self.world_size));
        let most = bytes.checked_next_power_of_two().unwrap_or(bytes);
        if !log::log_enabled!(target: "ringfold::device", log::Level::Info)
            || !self.logged.insert((collective, most, plan.carried))
        {
            return;
        }
        let how = match plan.carried {
            Carried::OneShot => "one kernel".to_owned(),
            Carried::Host if plan.overlaps => {
                format!(
                    "slices of {} bytes or less, which overlap",
                    plan.slice_bytes
                )
            }
            _ => format!("slices of {} bytes or less", plan.slice_bytes),
        };
        let [slices_us, one_shot_us] = plan.times_us;
        let by_one_kernel = match one_shot_us.is_finite() {
            true => format!(", {one_shot_us:.1} by one kernel"),
            false => String::new(),
        };
        let busiest = plan.busiest.name();
        log::info!(
            target: "ringfold::device",
            "{collective} of {bytes} bytes: {how}; microseconds by the model: {slices_us:.1} in \
             slices{by_one_kernel}; busiest of a slice: {busiest}"
        );
    }
}

/// The tuner's question about `request`.
pub fn question(request: &Request, world_size: usize) -> DeviceQuestion {
    use Collective::{AllReduce, Recv, Send};
    let longest = request.longest_block();
    DeviceQuestion {
        collective: request.collective,
        bytes: request.bytes(world_size),
        longest_bytes: longest.saturating_mul(request.dtype.size_bytes() as u64),
        blocks: match request.is_of_blocks() {
            true => world_size as u64,
            false => 1,
        },
        is_pairwise: matches!(request.collective, Send | Recv)
            || matches!(request.counts, Counts::Pairwise { .. }),
        goes_by_slots: goes_by_slots(request),
        has_kernel: request.collective == AllReduce
            && request.options.leave_reduction_open()
            && is_combined(request.op, request.dtype),
    }
}

/// The predicted microseconds of a call of `bytes` bytes on host memory, by the way chosen for it;
/// 0 without a prediction.
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
