//! The software driver in place of CUDA's, and a process for each test: a process has one driver,
//! which reads its settings once.

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic;
use std::path::PathBuf;
use std::process::{Command, Output, exit};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ringfold::Region;
use ringfold::internals::device::Driver;

/// The variable that is set in a test's own process.
const ALONE: &str = "TEST_DEVICE_ALONE";
/// Exit status of a test's process that passes; differs from that of a run without tests.
const PASSED: i32 = 42;
/// Time after which a test's process counts as hung.
const LIMIT: Duration = Duration::from_secs(300);

/// Page-aligned host memory.
pub struct Host(*mut u8, std::alloc::Layout);

impl Host {
    /// Allocates zeroed memory.
    pub fn new(bytes: usize) -> Arc<Host> {
        let layout = std::alloc::Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY: the layout's size is not 0.
        Arc::new(Host(unsafe { std::alloc::alloc_zeroed(layout) }, layout))
    }

    /// Returns all of it.
    pub fn region(&self) -> Region {
        // SAFETY: the memory lives as long as the test uses regions of it, which only copy.
        unsafe { Region::new(self.0, self.1.size()) }
    }
}

// SAFETY: only an address; regions copy.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.0, self.1) }
    }
}

/// Returns the path of the library, which Cargo builds beside the tests.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a test is a program");
    program.with_file_name("libringfold_softcuda.so")
}

/// Opens the software driver.
pub fn driver() -> ringfold::Result<&'static Driver> {
    Driver::open(library().to_str())
}

/// Returns the function `name` that the library has for tests; the crate documents its type.
fn symbol<F: Copy>(name: &CStr) -> F {
    let library = CString::new(library().into_os_string().into_encoded_bytes()).expect("a path");
    // SAFETY: the text ends with a zero. The library is never closed.
    let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: as above.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null(), "no {name:?}");
    assert_eq!(size_of::<F>(), size_of_val(&symbol));
    // SAFETY: `F` is a pointer to a function of the type that the crate documents.
    unsafe { std::mem::transmute_copy(&symbol) }
}

/// Returns the number of live `what`.
pub fn count(what: &CStr) -> u64 {
    let count: extern "C" fn(*const c_char) -> u64 = symbol(c"softcuda_count");
    count(what.as_ptr())
}

/// Returns the number of live objects of each kind.
pub fn live() -> [u64; 6] {
    [
        c"pinned",
        c"streams",
        c"events",
        c"contexts",
        c"memory",
        c"modules",
    ]
    .map(count)
}

/// Returns the number of calls of a function.
pub fn calls(name: &CStr) -> u64 {
    let calls: extern "C" fn(*const c_char) -> u64 = symbol(c"softcuda_calls");
    calls(name.as_ptr())
}

/// Returns the number of calls of all functions.
pub fn all_calls() -> u64 {
    let calls: extern "C" fn(*const c_char) -> u64 = symbol(c"softcuda_calls");
    calls(std::ptr::null())
}

/// Makes call `at` of a function, counted from now, fail with `code`; 0 as `at` cancels the
/// request. Returns whether the previous request was still pending.
pub fn fail(name: &CStr, at: u64, code: c_int) -> bool {
    let fail: extern "C" fn(*const c_char, u64, c_int) -> c_int = symbol(c"softcuda_fail");
    fail(name.as_ptr(), at, code) != 0
}

/// Sets the driver's answer to the query whether a stream is captured.
pub fn capture(stream: usize, status: c_int) {
    let capture: extern "C" fn(usize, c_int) = symbol(c"softcuda_capture");
    capture(stream, status);
}

/// Runs a step of a stream, if the driver has no threads. Returns whether a step could run.
pub fn step() -> bool {
    let step: extern "C" fn() -> c_int = symbol(c"softcuda_step");
    step() != 0
}

/// Runs `body` in a process of its own, which runs the calling test with the `settings` and must
/// succeed. That process never returns from this function: a test has one body, which may run with
/// several settings.
pub fn alone(settings: &[(&str, &str)], body: impl FnOnce()) {
    let thread = thread::current();
    let test = thread.name().expect("a test has a name").to_owned();
    if std::env::var_os(ALONE).is_some() {
        thread::spawn(|| {
            thread::sleep(LIMIT);
            eprintln!("the test takes too long");
            exit(3);
        });
        // Unwinding would run destructors, which may wait forever.
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |information| {
            report(information);
            exit(101);
        }));
        body();
        exit(PASSED);
    }
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(std::env::current_exe().expect("a test is a program"))
        .args(["--exact", &test, "--include-ignored", "--nocapture"])
        .args(["--test-threads", "1"])
        .env(ALONE, "1")
        .envs(settings.iter().copied())
        .output()
        .expect("the test program runs again");
    let [stdout, stderr] = [&stdout, &stderr].map(|text| String::from_utf8_lossy(text));
    assert!(
        status.code() == Some(PASSED),
        "{status} with {settings:?}: {stdout}{stderr}"
    );
}
