//! The copies of one slice.

use super::call::LaneCall;
use super::request::{Fetch, Transfer};
use super::staging::{Bank, Staging};
use crate::device::Current;
use crate::error::Result;

/// Enqueues the copies of `slice` from the device into its slot.
pub fn bring(current: &Current<'_>, staging: &Staging, call: &LaneCall, slice: u32) -> Result<()> {
    let slot = staging.slot(call.bank, call.number(slice));
    for Transfer { device, at } in call.brought(slice) {
        current.bring(&staging.out, device, slot.part(at))?;
    }
    Ok(())
}

/// Enqueues the copies of `slice` to the device: from its result's place, or from the slots of all
/// ranks.
pub fn take(current: &Current<'_>, staging: &Staging, call: &LaneCall, slice: u32) -> Result<()> {
    match call.bank {
        Bank::Host => take_result(current, staging, call, slice),
        Bank::Direct => fetch(current, staging, call, slice),
    }
}

fn take_result(
    current: &Current<'_>,
    staging: &Staging,
    call: &LaneCall,
    slice: u32,
) -> Result<()> {
    let result = staging.result(call.number(slice));
    for Transfer { device, at } in call.taken(slice) {
        current.take(&staging.into, result.part(at), device)?;
    }
    Ok(())
}

fn fetch(current: &Current<'_>, staging: &Staging, call: &LaneCall, slice: u32) -> Result<()> {
    let number = call.number(slice);
    for Fetch { rank, transfer } in call.fetched(slice) {
        // Calls are direct only where all are reached.
        let place = staging.of_rank(rank).expect("a rank that is reached");
        let slot = place.slot(Bank::Direct, number);
        current.take(&staging.into, slot.part(transfer.at), transfer.device)?;
    }
    for Transfer { device, at } in call.taken_sums(slice) {
        current.take(&staging.into, staging.sum(number).part(at), device)?;
    }
    for (from, into) in call.kept(slice) {
        current.copy(&staging.into, from, into)?;
    }
    Ok(())
}
