//! ringfold for C, and for languages that call C: `libringfold.so` and `ringfold.h`.
//!
//! The header is generated from these files by cbindgen, so the documentation of each function is
//! for its C caller. docs/reference/c.md has the rules that hold for all functions.
//!
//! # Invariants
//!
//! * No panic unwinds through C: a panic becomes `RINGFOLD_INTERNAL` (`status::guard`).
//! * Values from C are checked: numbers are looked up, handles and buffers may be null, a text may
//!   be invalid UTF-8. The caller promises only one thing, which cannot be checked: pointers that
//!   are not null point to objects as declared.
//! * Structures that may grow carry their size, and a field that an older header does not have
//!   counts as 0, so programs run with newer libraries of the same major version.
//! * A handle belongs to the process that made it: in a forked child, calls fail with an error.
//!
//! Nothing is decided here: the binding has no logic that a Rust user would miss.

mod arguments;
mod collectives;
mod communicator;
mod config;
mod memory;
pub mod names;
mod request;
mod status;
mod work;

use std::ffi::{c_char, c_int};

pub use status::ringfold_status_name;

/// The version of the interface that this header describes. `ringfold_abi_version` returns that of
/// the library; a program can run if both are equal.
pub const RINGFOLD_ABI_VERSION: c_int = 0;

/// Returns the version of the interface of the library that the program runs with.
#[unsafe(no_mangle)]
pub extern "C" fn ringfold_abi_version() -> c_int {
    RINGFOLD_ABI_VERSION
}

/// Returns the library's version, such as "0.1.0". Ranks of a job have the same version.
#[unsafe(no_mangle)]
pub extern "C" fn ringfold_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
