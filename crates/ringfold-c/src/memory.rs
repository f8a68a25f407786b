//! Memory that the ranks of a host access directly.

use std::ffi::c_void;
use std::ptr;

use ringfold::{Region, Registered};

use crate::arguments::{borrowed, check_place, invalid, store};
use crate::communicator::Communicator;
use crate::status::{Status, free, guard};

/// Memory that `ringfold_alloc` has allocated.
pub struct Memory(Registered);

/// A registration of the program's own memory.
pub struct Registration(#[allow(dead_code, reason = "held, not read")] ringfold::Registration);

/// Allocates `bytes` bytes of zeros that calls of this host's ranks read and write without a copy.
/// All ranks call this function, at the same place in their order of calls; sizes may differ.
///
/// # Safety
/// `comm` is a handle or null; `memory` is a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_alloc(
    comm: *const Communicator,
    bytes: usize,
    memory: *mut *mut Memory,
) -> Status {
    guard(|| {
        check_place(memory, "memory")?;
        // SAFETY: the caller's promise.
        let made = unsafe { borrowed(comm, "comm") }?.core().alloc(bytes)?;
        // SAFETY: checked above.
        unsafe { store(memory, Box::into_raw(Box::new(Memory(made))), "memory") }
    })
}

/// Returns the address of the first byte, on a page boundary; null if `memory` is null.
///
/// # Safety
/// `memory` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_memory_address(memory: *const Memory) -> *mut c_void {
    // SAFETY: the caller's promise.
    let memory = unsafe { memory.as_ref() };
    memory.map_or(ptr::null_mut(), |memory| memory.0.region().address().cast())
}

/// Returns whether the peers on this host can access the memory.
///
/// # Safety
/// `memory` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_memory_is_shared(memory: *const Memory) -> bool {
    // SAFETY: the caller's promise.
    unsafe { memory.as_ref() }.is_some_and(|memory| memory.0.is_shared())
}

/// Frees memory, on this rank alone; null is ignored. No call may still use the memory.
///
/// # Safety
/// `memory` is a handle, which is not used afterwards, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_memory_free(memory: *mut Memory) {
    // SAFETY: the caller's promise.
    unsafe { free(memory) };
}

/// Registers the program's own `bytes` bytes at `buffer`, which keep their address. The memory must
/// be private, not that of a file or of the stack, and not pinned by a device. All ranks call this
/// function, as with `ringfold_alloc`. A registration costs as much as several calls save;
/// `ringfold_alloc` is cheaper.
///
/// # Safety
/// The memory stays mapped as it is until the registration is freed, and is not used while this
/// function runs and while the registration is freed. `registration` is a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_register(
    comm: *const Communicator,
    buffer: *mut c_void,
    bytes: usize,
    registration: *mut *mut Registration,
) -> Status {
    guard(|| {
        check_place(registration, "registration")?;
        if buffer.is_null() && bytes > 0 {
            return Err(invalid("buffer is NULL"));
        }
        // SAFETY: the caller's promise.
        let region = unsafe { Region::new(buffer.cast(), bytes) };
        // SAFETY: the caller's promise.
        let comm = unsafe { borrowed(comm, "comm") }?.core();
        // SAFETY: the caller's promise.
        let made = Registration(unsafe { comm.register_region(region) }?);
        // SAFETY: checked above.
        unsafe { store(registration, Box::into_raw(Box::new(made)), "registration") }
    })
}

/// Waits for this rank's calls in progress, and ends the registration; null is ignored. The memory
/// keeps its contents.
///
/// # Safety
/// `registration` is a handle, which is not used afterwards, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_registration_free(registration: *mut Registration) {
    // SAFETY: the caller's promise.
    unsafe { free(registration) };
}
