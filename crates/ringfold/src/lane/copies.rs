//! The copies of one slice.

use super::call::LaneCall;
use super::request::Transfer;
use super::staging::Staging;
use crate::device::Current;
use crate::error::Result;

/// Enqueues the copies of `slice` from the device into its slot.
pub fn bring(current: &Current<'_>, staging: &Staging, call: &LaneCall, slice: u32) -> Result<()> {
    let slot = staging.slot(call.number(slice));
    for Transfer { device, at } in call.brought(slice) {
        current.bring(&staging.out, device, slot.part(at))?;
    }
    Ok(())
}

/// Enqueues the copies of `slice` from its result's place to the device.
pub fn take(current: &Current<'_>, staging: &Staging, call: &LaneCall, slice: u32) -> Result<()> {
    let result = staging.result(call.number(slice));
    for Transfer { device, at } in call.taken(slice) {
        current.take(&staging.into, result.part(at), device)?;
    }
    Ok(())
}
