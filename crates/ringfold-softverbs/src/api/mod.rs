//! The functions, as `infiniband/verbs.h` declares them.
//!
//! Objects are allocated here and freed by their own functions; what they are is in the fabric's
//! state, by their handles.

mod devices;
mod objects;
mod requests;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

use crate::fabric::fabric;
use crate::layout::Context;

/// The names of the devices; a device is the address of its own.
static NAMES: [&CStr; 2] = [c"soft0", c"soft1"];
/// What a device permits.
const QUEUE_ENTRIES_MAX: c_int = 1 << 16;
const REQUESTS_MAX: u32 = 1 << 12;
const INLINE_BYTES_MAX: u32 = 256;
/// `IBV_SEND_SIGNALED`, `IBV_SEND_INLINE`.
const SIGNALED: c_uint = 1 << 1;
const INLINE: c_uint = 1 << 3;

fn fail(code: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = code };
}

/// Whether a test wants this call to fail.
fn is_refused(function: &str) -> bool {
    let is_refused = fabric().lock().faults.fails(function);
    if is_refused {
        fail(libc::ENOMEM);
    }
    is_refused
}

fn device_of(context: *mut Context) -> usize {
    // SAFETY: a context of `ibv_open_device`.
    let device = unsafe { (*context).device } as usize;
    let place = |name: &&CStr| ptr::from_ref(*name).cast::<u8>() as usize == device;
    NAMES.iter().position(place).expect("a device")
}

/// Has the `at`-th call of a function from now on fail.
///
/// # Safety
/// `function` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softverbs_fail(function: *const c_char, at: u64) {
    // SAFETY: the caller's promise.
    let function = unsafe { CStr::from_ptr(function) };
    let name = function.to_string_lossy();
    fabric().lock().faults.fail(&name, at);
}

/// Cuts a device's cable, or repairs it.
#[unsafe(no_mangle)]
pub extern "C" fn softverbs_cut(device: c_int, is_cut: c_int) {
    fabric().lock().faults.is_cut[device as usize] = is_cut != 0;
}

/// How many registrations there are.
#[unsafe(no_mangle)]
pub extern "C" fn softverbs_registrations() -> u64 {
    fabric().lock().memories.count() as u64
}
