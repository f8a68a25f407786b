//! A limit of file sizes, which many batch systems set: shared memory counts, too.

use crate::process::{Running, ringfold};

/// Returns a program's outcome with files limited to 50 or 100 KiB, depending on the shell's unit.
fn limited(program: &str) -> (Option<i32>, String) {
    let script = format!(
        "ulimit -f 100; exec {} {program}",
        env!("CARGO_BIN_EXE_ringfold")
    );
    let command = ringfold(&["run", "--ranks", "2", "--", "sh", "-c", &script]);
    let done = Running::start(command).finish();
    (done.status.code(), done.stdout + &done.stderr)
}

#[test]
fn too_large_a_memory_is_an_error_that_names_the_limit() {
    let (code, text) = limited("perf all_reduce -b 8 -e 1K -n 5");
    assert_eq!(code, Some(1), "{text}");
    let told = [
        "bytes of shared memory",
        "File too large",
        "raise the limit (ulimit -f)",
    ];
    assert!(told.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn a_job_without_shared_memory_works_within_the_limit() {
    let (code, text) = limited("perf all_reduce --transport tcp -b 8 -e 1K -n 2");
    assert_eq!(code, Some(0), "{text}");
}
