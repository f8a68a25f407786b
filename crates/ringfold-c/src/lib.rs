//! ringfold for C, and for languages that call C: `libringfold.so` and `ringfold.h`.
//!
//! The header is written from these files by cbindgen, so the documentation of each function is
//! what its C caller reads. docs/reference/c.md has the rules that hold for all of them.
//!
//! # Invariants
//!
//! * No panic passes through C: it becomes `RINGFOLD_INTERNAL` (`status::guard`).
//! * What comes from C is a claim: numbers are looked up, handles and buffers may be null, a text
//!   may be no UTF-8. Only what cannot be checked is the caller's promise: that pointers which are
//!   not null point to what the declaration says.
//! * Structures that grow carry their size, and a value of 0 is what a field means that an older
//!   header did not have; so programs run with newer libraries of the same major version.
//! * A handle belongs to the process that made it: in a forked child, functions say so.

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

/// The version of the interface that this header describes. `ringfold_abi_version` gives that of
/// the library; a program can run if both are equal.
pub const RINGFOLD_ABI_VERSION: c_int = 0;

/// The version of the interface of the library that the program runs with.
#[unsafe(no_mangle)]
pub extern "C" fn ringfold_abi_version() -> c_int {
    RINGFOLD_ABI_VERSION
}

/// The library's version, such as "0.1.0". Ranks of a job have the same version.
#[unsafe(no_mangle)]
pub extern "C" fn ringfold_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
