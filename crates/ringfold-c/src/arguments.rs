//! Checks of values that C passes: handles, texts, time spans, places for results.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use ringfold::internals::wait::SPAN_MAX;
use ringfold::{Error, Result};

/// Returns an error about the caller's arguments.
pub fn invalid(text: impl Into<String>) -> Error {
    Error::InvalidArgument(text.into())
}

/// Returns the object of a handle, or an error if the handle is null.
///
/// # Safety
/// `handle` is null, or valid for reads for as long as the reference is used.
pub unsafe fn borrowed<'a, T>(handle: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid(format!("{name} is NULL")))
}

/// Stores a result in `place`.
///
/// # Safety
/// `place` is null, or valid for writing.
pub unsafe fn store<T>(place: *mut T, value: T, name: &str) -> Result<()> {
    check_place(place, name)?;
    // SAFETY: the caller's promise. The old value is not dropped.
    unsafe { place.write(value) };
    Ok(())
}

/// Refuses a null pointer before a result exists that could not be stored.
pub fn check_place<T>(place: *mut T, name: &str) -> Result<()> {
    match place.is_null() {
        true => Err(invalid(format!("{name} is NULL"))),
        false => Ok(()),
    }
}

/// Returns a text that must not be null.
///
/// # Safety
/// `text` is null, or ends with a zero byte, and is not changed while the reference is used.
pub unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    // The error omits the text, which may be the secret.
    let refused = |_| invalid(format!("{name} is not UTF-8"));
    text.to_str().map_err(refused)
}

/// Converts seconds to a time span; a span longer than the maximum, such as infinity, becomes the
/// maximum.
pub fn seconds(value: f64, name: &str) -> Result<Duration> {
    if value >= SPAN_MAX.as_secs_f64() {
        return Ok(SPAN_MAX);
    }
    let refused = |_| invalid(format!("{name} is {value}; use seconds, 0 or more"));
    Duration::try_from_secs_f64(value).map_err(refused)
}
