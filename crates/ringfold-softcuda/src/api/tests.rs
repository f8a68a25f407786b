//! What only tests call.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

use crate::call::{Failure, Refusal, text_at};
use crate::driver::{driver, lock};
use crate::operation::{Kernel, Operation};
use crate::report::{end, report};

calls! {
    // What the real driver has as `cuLaunchKernel`: `kernel` runs as an operation of the stream, on
    // a thread of the driver, and must not call the driver except for `softcuda_place`.
    softcuda_launch(driver, stream: usize, kernel: Option<Kernel>, argument: usize) {
        let kernel = kernel.ok_or(Refusal::INVALID_VALUE)?;
        driver.enqueue(stream, Operation::Launch { kernel, argument })
    }
}

/// Where kernels find `bytes` bytes of device memory; ends the process if they are not there.
#[unsafe(no_mangle)]
extern "C" fn softcuda_place(address: usize, bytes: usize) -> usize {
    let place = driver().memory.device(address, bytes);
    place.unwrap_or_else(|why| end(format!("a kernel runs, but {why}")))
}

/// Calls of the function `name`; of all functions if it is null.
#[unsafe(no_mangle)]
extern "C" fn softcuda_calls(name: *const c_char) -> u64 {
    driver().calls.count(text_at(name).as_deref())
}

/// How many live: `pinned`, `streams`, `events`, `contexts`, `modules`,
/// `memory`.
#[unsafe(no_mangle)]
extern "C" fn softcuda_count(what: *const c_char) -> u64 {
    let driver = driver();
    match text_at(what).as_deref() {
        Some("pinned") => driver.memory.pinned() as u64,
        Some("streams") => {
            let streams = lock(&driver.streams);
            streams
                .values()
                .filter(|stream| !stream.is_default())
                .count() as u64
        }
        Some("events") => lock(&driver.events).len() as u64,
        Some("contexts") => driver.devices.iter().map(|device| device.retained()).sum(),
        Some("modules") => lock(&driver.modules).len() as u64,
        Some("memory") => driver.memory.live() as u64,
        other => end(format!("softcuda_count does not count {other:?}")),
    }
}

/// Runs a step of a random operation; 0 if none can run.
#[unsafe(no_mangle)]
extern "C" fn softcuda_step() -> c_int {
    c_int::from(driver().step())
}

/// Has call `at` of `name` (`*` for all but `cuStreamQuery` and `cuEventQuery`) from now fail with
/// `code`; 0 takes the order back. Whether the order before this one was still to be met.
#[unsafe(no_mangle)]
extern "C" fn softcuda_fail(name: *const c_char, at: u64, code: c_int) -> c_int {
    let name = text_at(name).unwrap_or_else(|| "*".into());
    let failure = (at > 0).then(|| Failure::new(&name, at, code));
    c_int::from(driver().calls.fail(failure))
}

/// Sets what `cuStreamIsCapturing` answers for a stream.
#[unsafe(no_mangle)]
extern "C" fn softcuda_capture(stream: usize, status: c_int) {
    if let Ok(stream) = driver().stream(stream) {
        // Relaxed: the test orders its own calls.
        stream.capture.store(status, Ordering::Relaxed);
    }
}

/// Prints all queues and the words that they wait for.
#[unsafe(no_mangle)]
extern "C" fn softcuda_report() {
    eprintln!("{}", report(driver()));
}
