//! The slices of a call: how long they are, and how many.
//!
//! A call on host memory is cut as its way specifies; a call on device memory, within each part.
//! Ranks have equal parts, except with a count for each pair: a rank exchanges nothing in parts
//! that it lacks.

use super::Job;
use super::gate::OwnSlots;
use super::geometry::DeviceParts;
use super::plan::ExecutionPlan;
use super::tiny::BLOCK_ALIGN_BYTES;
use super::wide;
use crate::error::{Error, Result};
use crate::types::Collective::AllToAll;

/// The slices of a call.
pub struct Slicing {
    /// Elements of a slice of the vector, or of every block.
    pub slice_elements: u64,
    /// Number of slices.
    pub slices: u32,
    /// The parts that a device moves, if one does.
    pub parts: Option<DeviceParts>,
}

impl Slicing {
    /// The slices of `job`, for the slots of a device if there are such.
    pub fn new(job: &Job, plan: &ExecutionPlan, slots: Option<&dyn OwnSlots>) -> Result<Slicing> {
        let schedule = &plan.schedule;
        // The counts of other pairs are not known.
        if schedule.needs_one_slice && job.collective == AllToAll && job.input_blocks.is_uneven() {
            return Err(Error::Unsupported(format!(
                "all_to_all with uneven counts by `{}`; use `direct`",
                job.way.method()
            )));
        }
        let longest = match slots {
            None => job.input_blocks.longest().max(job.output_blocks.longest()),
            Some(slots) => slots.part_elements(),
        };
        let slice_elements = if schedule.needs_one_slice || plan.is_registered() {
            longest.max(1)
        } else {
            // Blocks of a call of one slice are close together in their slot.
            let unit = (BLOCK_ALIGN_BYTES / job.dtype.size_bytes()) as u64;
            let whole = longest.max(1).checked_next_multiple_of(unit);
            // As many bytes of partial results in flight as in a call of their type.
            let scale = wide::scale(&schedule.spec, job.dtype) as u64;
            let elements = job.way.slice_elements(job.dtype) / scale;
            elements.clamp(1, whole.unwrap_or(u64::MAX))
        };
        let too_many = || {
            let text = "a call of more than 2^32 slices; raise the slice size";
            Error::Unsupported(text.into())
        };
        let slices = longest.div_ceil(slice_elements).max(1);
        let slices = u32::try_from(slices).map_err(|_| too_many())?;
        let cut = Slicing {
            slice_elements,
            slices,
            parts: None,
        };
        let Some(slots) = slots else {
            return Ok(cut);
        };
        let all = slots.parts().max(1).checked_mul(slices);
        let elements = longest.max(1);
        Ok(Slicing {
            slices: all.ok_or_else(too_many)?,
            parts: Some(DeviceParts { elements, slices }),
            ..cut
        })
    }
}
