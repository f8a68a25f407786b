//! Log lines on how calls are carried out: one for each plan, when it is made, so never on the data
//! path.

use super::Job;
use crate::call::Call;
use crate::types::{Access, Method};

/// Logs that a plan was made for `job`; later calls that differ only in size reuse the plan.
pub fn plan(job: &Job, world_size: usize) {
    let access = match job.way.access {
        Access::Registered => "registered buffers",
        Access::Staged => "published memory",
        Access::Messages => "messages",
        Access::Slots => "slots of devices",
    };
    let place = if job.in_place { " in place" } else { "" };
    log::debug!(
        target: "ringfold::tuning",
        "{} of {} {}{place}, {world_size} ranks: {} over {access}, slices of \
         up to {} bytes, channels: {}",
        job.collective,
        job.count,
        job.dtype,
        job.way.method(),
        job.way.slice_bytes,
        job.way.channels,
    );
}

/// Logs the first call that could not use the method `refused` and runs as `fallback` instead.
pub fn fallback(refused: Method, fallback: &Call) {
    log::info!(
        target: "ringfold::tuning",
        "{} of {} {}: {} instead of {refused}, because not all ranks' buffers \
         are registered (logged once)",
        fallback.collective,
        fallback.count,
        fallback.dtype,
        fallback.method(),
    );
}

/// Logs the first tiny call, which runs without a plan.
pub fn tiny(job: &Job, world_size: usize) {
    log::debug!(
        target: "ringfold::tuning",
        "{} of {} {}, {world_size} ranks: {} over published memory, without a plan",
        job.collective,
        job.count,
        job.dtype,
        job.way.algorithm,
    );
}
