//! Forwards plugins' log lines to ringfold's log.
//!
//! A plugin receives a function with C's variable arguments, which stable Rust can call but not
//! define: `logger.c` defines it. The function formats the line and passes it to this module, if
//! lines of its level are wanted.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use log::Level;

use super::LOG;
use super::abi::{Logger, level};

type Wanted = extern "C" fn(c_uint) -> c_int;
type Write = extern "C" fn(c_uint, *const c_char);

unsafe extern "C" {
    fn ringfold_plugin_logger(wanted: Wanted, write: Write) -> Logger;
}

/// Returns the log function for plugins.
pub fn logger() -> Logger {
    static LOGGER: OnceLock<Logger> = OnceLock::new();
    // SAFETY: both functions have the types that `logger.c` declares, and the call is made once.
    *LOGGER.get_or_init(|| unsafe { ringfold_plugin_logger(is_wanted, write) })
}

extern "C" fn is_wanted(level: c_uint) -> c_int {
    // A program's own logger may panic, and the panic must not unwind through C.
    let is_wanted = catch_unwind(|| log::log_enabled!(target: LOG, log_level(level)));
    c_int::from(is_wanted.unwrap_or(false))
}

extern "C" fn write(level: c_uint, line: *const c_char) {
    // SAFETY: `logger.c` passes an array that ends with a zero and outlives this call.
    let line = unsafe { CStr::from_ptr(line) }.to_string_lossy();
    let _ = catch_unwind(|| log::log!(target: LOG, log_level(level), "{}", line.trim_end()));
}

fn log_level(level: c_uint) -> Level {
    match level {
        level::WARN => Level::Warn,
        ..=level::INFO => Level::Info,
        _ => Level::Trace,
    }
}
