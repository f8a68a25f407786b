//! Calls that are in progress while the program continues.

use std::ffi::{c_int, c_void};
use std::slice;

use crate::arguments::{borrowed, check_place, invalid, seconds, store};
use crate::communicator::Communicator;
use crate::request::Request;
use crate::status::{Status, free, guard};

/// A call in progress. May be used from any thread.
pub struct Work(ringfold::Work);

/// A function of the program that is called once with its argument, when a call is done.
pub type OnDone = Option<unsafe extern "C" fn(argument: *mut c_void)>;

/// Starts the call that `request` describes, and returns at once. The request itself may be freed
/// afterwards.
///
/// # Safety
/// The request's buffers are valid, and not used otherwise, until the call is done; `work` is a
/// place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_start(
    comm: *const Communicator,
    request: *const Request,
    work: *mut *mut Work,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { ringfold_start_group(comm, request, 1, work) }
}

/// Starts `count` calls that are made together, in this order: like `ringfold_start` of each, but
/// they share the machine better. All ranks make the same groups. `requests` is an array of `count`
/// requests, `works` one of as many places. On failure no call is started.
///
/// # Safety
/// As for `ringfold_start` of each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_start_group(
    comm: *const Communicator,
    requests: *const Request,
    count: usize,
    works: *mut *mut Work,
) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        let comm = unsafe { borrowed(comm, "comm") }?.core();
        if count == 0 {
            return Ok(());
        }
        check_place(works, "works")?;
        // SAFETY: the caller's promise. The size of the first request is the array's stride.
        let bytes = unsafe { Request::read(requests) }?.size;
        let calls = (0..count).map(|index| {
            // SAFETY: the caller's promise: `count` requests of this size.
            unsafe { Request::read(requests.byte_add(index * bytes))?.call(comm) }
        });
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        // SAFETY: the caller's promise.
        let started = unsafe { comm.start_group(calls) }?;
        // SAFETY: the caller's promise: as many places.
        let places = unsafe { slice::from_raw_parts_mut(works, count) };
        for (place, work) in places.iter_mut().zip(started) {
            *place = Box::into_raw(Box::new(Work(work)));
        }
        Ok(())
    })
}

/// Waits until the call is done on this rank, and returns the call's status. The call's deadline
/// bounds the wait.
///
/// # Safety
/// `work` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_wait(work: *const Work) -> Status {
    // SAFETY: the caller's promise.
    guard(|| unsafe { borrowed(work, "work") }?.0.wait())
}

/// Waits at most `timeout_s` seconds, and stores in `is_done` whether the call is done. If not, the
/// call continues.
///
/// # Safety
/// `work` is a handle or null; `is_done` is a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_wait_for(
    work: *const Work,
    timeout_s: f64,
    is_done: *mut bool,
) -> Status {
    guard(|| {
        check_place(is_done, "is_done")?;
        let timeout = seconds(timeout_s, "timeout_s")?;
        // SAFETY: the caller's promise.
        let done = unsafe { borrowed(work, "work") }?.0.wait_timeout(timeout)?;
        // SAFETY: checked above.
        unsafe { store(is_done, done, "is_done") }
    })
}

/// Returns whether the call is done, successfully or not; true if `work` is null. Never blocks.
///
/// # Safety
/// `work` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_is_done(work: *const Work) -> bool {
    // SAFETY: the caller's promise.
    unsafe { work.as_ref() }.is_none_or(|work| work.0.is_done())
}

/// Returns the sender of a receive that has succeeded; otherwise -1.
///
/// # Safety
/// `work` is a handle or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_source(work: *const Work) -> c_int {
    // SAFETY: the caller's promise.
    let source = unsafe { work.as_ref() }.and_then(|work| work.0.source());
    source.map_or(-1, |rank| rank as c_int)
}

/// An argument that is moved to another thread.
struct Argument(*mut c_void);

// SAFETY: only an address; callers of `ringfold_when_done` promise that it may be moved.
unsafe impl Send for Argument {}

/// Calls `on_done(argument)` once when the call is done, successfully or not: at once on this
/// thread if the call is done already, otherwise on a thread of the library. `on_done` may make
/// calls, and wait.
///
/// # Safety
/// `on_done` may be called by another thread with `argument`, and raises no exception.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_when_done(
    work: *const Work,
    on_done: OnDone,
    argument: *mut c_void,
) -> Status {
    guard(|| {
        let on_done = on_done.ok_or_else(|| invalid("on_done is NULL"))?;
        let argument = Argument(argument);
        let call = move || {
            // Captures the structure as a whole: the pointer alone is not `Send`.
            let Argument(argument) = { argument };
            // SAFETY: the caller's promise.
            unsafe { on_done(argument) }
        };
        // SAFETY: the caller's promise.
        unsafe { borrowed(work, "work") }?.0.when_done(call)
    })
}

/// Waits until the call is done, because the call uses the program's buffers, and frees the handle;
/// null is ignored.
///
/// # Safety
/// `work` is a handle, which is not used afterwards, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_work_free(work: *mut Work) {
    // SAFETY: the caller's promise.
    unsafe { free(work) };
}
