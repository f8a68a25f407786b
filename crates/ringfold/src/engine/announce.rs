//! What the log says of how calls are carried out: once for each plan, when it is made, so never on the data path.

use super::{Job, TinyJob, tiny};
use crate::call::Call;
use crate::schedule::Medium;
use crate::types::Algorithm;

/// A plan has been made for `job`, and will serve later calls that differ in size only.
pub fn plan(job: &Job, world_size: usize) {
    let medium = match job.medium {
        Medium::Shared if job.algorithm.works_in_registered() => "registered buffers",
        Medium::Shared => "published memory",
        Medium::Messages => "messages",
    };
    let place = if job.in_place { " in place" } else { "" };
    log::info!(
        target: "ringfold::tuning",
        "{} of {} {}{place}, {world_size} ranks: {} over {medium}, slices of up to {} bytes, channels: {}",
        job.collective,
        job.count,
        job.dtype,
        job.algorithm,
        job.slice_elements.saturating_mul(job.dtype.size_bytes() as u64),
        job.channels,
    );
}

/// For the first time a call could not go by `refused`, and goes as `fallback` says.
pub fn fallback(refused: Algorithm, fallback: &Call) {
    log::info!(
        target: "ringfold::tuning",
        "{} of {} {}: {} instead of {refused}, because not all ranks' buffers are registered (logged once)",
        fallback.collective,
        fallback.count,
        fallback.dtype,
        fallback.algorithm,
    );
}

/// The first tiny call goes its own way.
pub fn tiny(job: &TinyJob, world_size: usize) {
    log::info!(
        target: "ringfold::tuning",
        "{} of {} {}, {world_size} ranks: {} over published memory, without a plan",
        job.collective,
        job.count,
        job.dtype,
        tiny::part::algorithm(job.collective),
    );
}
