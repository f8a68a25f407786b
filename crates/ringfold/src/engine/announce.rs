//! What the log says of how calls are carried out: once for each plan, when it is made, so never on
//! the data path.

use super::Job;
use crate::call::Call;
use crate::types::{Access, Method};

/// A plan has been made for `job`, and will serve later calls that differ in size only.
pub fn plan(job: &Job, world_size: usize) {
    let access = match job.way.access {
        Access::Registered => "registered buffers",
        Access::Staged => "published memory",
        Access::Messages => "messages",
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

/// For the first time a call could not go by `refused`, and goes as `fallback` says.
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

/// The first tiny call goes its own way.
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
