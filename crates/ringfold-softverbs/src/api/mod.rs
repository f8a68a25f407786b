//! The functions of libibverbs, as `infiniband/verbs.h` declares them.
//!
//! Objects are allocated and freed here; the fabric keeps their state, by handle or address.

mod devices;
mod objects;
mod requests;

use std::ffi::{CStr, c_int, c_uint};
use std::ptr;

use crate::fabric::fabric;
use crate::layout::IbvContext;

/// Names of the devices; a device's handle is the address of its name.
static NAMES: [&CStr; 2] = [c"soft0", c"soft1"];
/// Limits of a device: queue entries, requests of a queue pair, inline bytes.
const QUEUE_ENTRIES_MAX: c_int = 1 << 16;
const REQUESTS_MAX: u32 = 1 << 12;
const INLINE_BYTES_MAX: u32 = 256;
/// `IBV_SEND_SIGNALED`, `IBV_SEND_INLINE`.
const SIGNALED: c_uint = 1 << 1;
const INLINE: c_uint = 1 << 3;

fn fail(code: c_int) {
    // SAFETY: the thread's own `errno`.
    unsafe { *libc::__errno_location() = code };
}

/// Returns the error with which a test makes this call fail.
fn refusal(function: &str) -> Option<c_int> {
    fabric().lock().faults.failure(function)
}

/// Whether a test makes this call fail; sets `errno` if so.
fn is_refused(function: &str) -> bool {
    let code = refusal(function);
    code.map(fail).is_some()
}

fn device_of(context: *mut IbvContext) -> usize {
    // SAFETY: a context of `ibv_open_device`.
    let device = unsafe { (*context).device } as usize;
    let place = |name: &&CStr| ptr::from_ref(*name).cast::<u8>() as usize == device;
    NAMES.iter().position(place).expect("a device")
}

/// Returns the number of objects of a kind: contexts, domains, channels, queues, queue pairs,
/// registrations.
#[unsafe(no_mangle)]
pub extern "C" fn softverbs_count(kind: c_int) -> u64 {
    let state = fabric().lock();
    let counts = [
        state.contexts.count(),
        state.domains.len(),
        state.channels.len(),
        state.queues.len(),
        state.pairs.len(),
        state.memories.count(),
    ];
    counts[kind as usize] as u64
}

/// Returns the number of pending faults of `SOFTVERBS_FAULTS`.
#[unsafe(no_mangle)]
pub extern "C" fn softverbs_due() -> u64 {
    fabric().lock().faults.due() as u64
}

/// Returns the seed of all delays and random orders.
#[unsafe(no_mangle)]
pub extern "C" fn softverbs_seed() -> u64 {
    fabric().lock().seed
}
