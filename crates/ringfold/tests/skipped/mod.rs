//! Records the tests that cannot run on this machine; `check.sh` prints the records at its end.
//!
//! The tests of all crates include this file.

use std::io::Write;

/// The variable that names the file to which each skip adds a line; not set if a person runs a
/// test.
const VARIABLE: &str = "TEST_SKIPS";

/// Records that the calling test is skipped, or tests less here than elsewhere.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread without a name");
    let line = format!("{}::{test}: {}\n", env!("CARGO_CRATE_NAME"), reason.trim());
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os(VARIABLE) {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .append(true)
            .create(true)
            .open(path)
            .expect(VARIABLE);
        // One write: tests of several processes skip at the same time.
        file.write_all(line.as_bytes()).expect(VARIABLE);
    }
}
