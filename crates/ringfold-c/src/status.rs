//! The results of calls: a number, and for each thread the text and the ranks of its last failure.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use ringfold::{Error, Result};

/// The result of a call. The class of a failed collective is the same on all ranks.
///
/// After one of the first five errors (see `ringfold_is_fatal`) the communicator is dead: buffers
/// of its calls hold undefined data, and later calls fail in the same way.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    non_camel_case_types,
    clippy::upper_case_acronyms,
    reason = "C's names"
)]
pub enum Status {
    /// Success.
    RINGFOLD_OK = 0,
    /// A peer died, or left while it was still needed.
    RINGFOLD_PEER_FAILED = 1,
    /// A deadline passed.
    RINGFOLD_TIMEOUT = 2,
    /// Two ranks are in different calls, which is a defect of the program.
    RINGFOLD_MISMATCH = 3,
    /// Data from a peer is damaged.
    RINGFOLD_CORRUPT = 4,
    /// A rank called `ringfold_abort`.
    RINGFOLD_ABORTED = 5,
    /// The communicator was closed on this rank.
    RINGFOLD_CLOSED = 6,
    /// The arguments are invalid; the call had no effect.
    RINGFOLD_INVALID_ARGUMENT = 7,
    /// This build, machine or data type does not support the call.
    RINGFOLD_UNSUPPORTED = 8,
    /// The ranks could not join the job.
    RINGFOLD_BOOTSTRAP = 9,
    /// The operating system refused a request.
    RINGFOLD_SYSTEM = 10,
    /// A defect of the library; please report it.
    RINGFOLD_INTERNAL = 11,
}

impl Status {
    /// Returns the status of an error's class.
    fn of(error: &Error) -> Status {
        match error {
            Error::PeerFailed { .. } => Status::RINGFOLD_PEER_FAILED,
            Error::Timeout { .. } => Status::RINGFOLD_TIMEOUT,
            Error::Mismatch { .. } => Status::RINGFOLD_MISMATCH,
            Error::Corrupt { .. } => Status::RINGFOLD_CORRUPT,
            Error::Aborted { .. } => Status::RINGFOLD_ABORTED,
            Error::Closed => Status::RINGFOLD_CLOSED,
            Error::InvalidArgument(_) => Status::RINGFOLD_INVALID_ARGUMENT,
            Error::Unsupported(_) => Status::RINGFOLD_UNSUPPORTED,
            Error::Bootstrap(_) => Status::RINGFOLD_BOOTSTRAP,
            Error::System { .. } => Status::RINGFOLD_SYSTEM,
            _ => Status::RINGFOLD_INTERNAL,
        }
    }
}

/// A thread's last failure.
struct Failure {
    message: CString,
    ranks: Vec<c_int>,
}

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Runs the body of a function of the interface: an error, or a panic, becomes a status and this
/// thread's last failure.
pub fn guard(body: impl FnOnce() -> Result<()>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::RINGFOLD_OK,
        Ok(Err(error)) => {
            remember(&error.to_string(), ranks(&error));
            Status::of(&error)
        }
        Err(panic) => {
            remember(&text(&*panic), vec![]);
            Status::RINGFOLD_INTERNAL
        }
    }
}

/// Drops the object of a handle.
///
/// # Safety
/// `handle` was made by `Box::into_raw`, and is not used afterwards, or is null.
pub unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        guard(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}

fn remember(message: &str, ranks: Vec<c_int>) {
    // The library's texts have no zero byte, but a peer's may.
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has lost its memory of failures.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(Failure { message, ranks }));
}

/// Returns the message of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let message = (panic.downcast_ref::<&str>().copied())
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a defect of ringfold: {}", message.unwrap_or("a panic"))
}

/// Returns the ranks at fault.
fn ranks(error: &Error) -> Vec<c_int> {
    let ranks = match error {
        Error::PeerFailed { rank, .. } | Error::Aborted { rank, .. } => vec![*rank],
        Error::Timeout { waiting_for, .. } => waiting_for.clone(),
        Error::Mismatch { ranks, .. } => ranks.to_vec(),
        Error::Corrupt { peer, .. } => vec![*peer],
        _ => vec![],
    };
    let number = |rank| c_int::try_from(rank).unwrap_or(c_int::MAX);
    ranks.into_iter().map(number).collect()
}

/// Returns the text of the calling thread's last failed call, which names the call, the ranks and
/// the remedy; "" if no call has failed. Valid until the thread's next failed call, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn ringfold_error_message() -> *const c_char {
    LAST.try_with(|last| match &*last.borrow() {
        Some(failure) => failure.message.as_ptr(),
        None => c"".as_ptr(),
    })
    .unwrap_or(c"".as_ptr())
}

/// Writes to `ranks` at most `capacity` of the ranks that the calling thread's last failed call
/// names: ranks that died or were waited for, the two that differ, the one that aborted, or the one
/// whose data is damaged. Returns the number of ranks that the call names.
///
/// # Safety
/// `ranks` has room for `capacity` numbers, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfold_error_ranks(ranks: *mut c_int, capacity: usize) -> usize {
    LAST.try_with(|last| {
        let last = last.borrow();
        let named = last.as_ref().map_or(&[][..], |failure| &failure.ranks);
        let written = if ranks.is_null() {
            0
        } else {
            named.len().min(capacity)
        };
        // SAFETY: the caller's promise; the list is ours, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(named.as_ptr(), ranks, written) };
        named.len()
    })
    .unwrap_or(0)
}

/// Returns whether a communicator is dead after a call with this status.
#[unsafe(no_mangle)]
pub extern "C" fn ringfold_is_fatal(status: c_int) -> bool {
    let fatal = Status::RINGFOLD_PEER_FAILED as c_int..=Status::RINGFOLD_ABORTED as c_int;
    fatal.contains(&status)
}

/// Returns the name of a status, such as "RINGFOLD_TIMEOUT"; "unknown" for other numbers.
#[unsafe(no_mangle)]
pub extern "C" fn ringfold_status_name(status: c_int) -> *const c_char {
    let name = match status {
        0 => c"RINGFOLD_OK",
        1 => c"RINGFOLD_PEER_FAILED",
        2 => c"RINGFOLD_TIMEOUT",
        3 => c"RINGFOLD_MISMATCH",
        4 => c"RINGFOLD_CORRUPT",
        5 => c"RINGFOLD_ABORTED",
        6 => c"RINGFOLD_CLOSED",
        7 => c"RINGFOLD_INVALID_ARGUMENT",
        8 => c"RINGFOLD_UNSUPPORTED",
        9 => c"RINGFOLD_BOOTSTRAP",
        10 => c"RINGFOLD_SYSTEM",
        11 => c"RINGFOLD_INTERNAL",
        _ => c"unknown",
    };
    name.as_ptr()
}
