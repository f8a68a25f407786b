//! The driver as a C program sees it, and tests that have a process of their own: the driver is one
//! a process, reads its settings once, and ends the process on an error.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::{CStr, c_int, c_uint};
use std::os::unix::process::ExitStatusExt;
use std::panic;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

// Its functions are linked by name.
use ringfold_softcuda as _;

/// Set in a test's own process.
const ALONE: &str = "SOFTCUDA_TEST_ALONE";
/// What such a process returns; another number than that of no tests at all.
const PASSED: i32 = 42;
/// After so long such a process has hung.
const LIMIT: Duration = Duration::from_secs(300);
pub const SIGABRT: i32 = 6;
pub const SIGSEGV: i32 = 11;
/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`.
pub const FLAGS: c_uint = 3;

macro_rules! interface {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)+) => {
        #[allow(non_snake_case)]
        mod raw {
            use super::*;
            unsafe extern "C" {
                $(pub fn $name($($argument: $type),*) -> $answer;)+
            }
        }
        $(#[allow(non_snake_case)]
        pub fn $name($($argument: $type),*) -> $answer {
            // SAFETY: the driver checks what it is given, and the tests give it live pointers.
            unsafe { raw::$name($($argument),*) }
        })+
    };
}

interface! {
    cuInit(flags: c_uint) -> c_int;
    cuDeviceGetCount(count: *mut c_int) -> c_int;
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> c_int;
    cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_int;
    cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int;
    cuCtxPushCurrent_v2(context: usize) -> c_int;
    cuCtxPopCurrent_v2(context: *mut usize) -> c_int;
    cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, priority: c_int) -> c_int;
    cuStreamDestroy_v2(stream: usize) -> c_int;
    cuStreamQuery(stream: usize) -> c_int;
    cuStreamSynchronize(stream: usize) -> c_int;
    cuStreamGetCtx(stream: usize, context: *mut usize) -> c_int;
    cuStreamIsCapturing(stream: usize, status: *mut c_int) -> c_int;
    cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) -> c_int;
    cuEventCreate(event: *mut usize, flags: c_uint) -> c_int;
    cuEventRecord(event: usize, stream: usize) -> c_int;
    cuEventQuery(event: usize) -> c_int;
    cuEventDestroy_v2(event: usize) -> c_int;
    cuMemAlloc_v2(address: *mut usize, bytes: usize) -> c_int;
    cuMemFree_v2(address: usize) -> c_int;
    cuMemHostRegister_v2(start: usize, bytes: usize, flags: c_uint) -> c_int;
    cuMemHostUnregister(start: usize) -> c_int;
    cuMemHostGetDevicePointer_v2(device: *mut usize, host: usize, flags: c_uint) -> c_int;
    cuPointerGetAttribute(value: *mut c_uint, attribute: c_int, address: usize) -> c_int;
    cuMemcpyDtoHAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) -> c_int;
    cuMemcpyHtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) -> c_int;
    cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) -> c_int;
    cuMemcpyDtoH_v2(to: usize, from: usize, bytes: usize) -> c_int;
    cuMemcpyHtoD_v2(to: usize, from: usize, bytes: usize) -> c_int;
    cuMemsetD8Async(at: usize, byte: u8, bytes: usize, stream: usize) -> c_int;
    cuStreamWaitValue32_v2(stream: usize, word: usize, value: u32, flags: c_uint) -> c_int;
    cuStreamWriteValue32_v2(stream: usize, word: usize, value: u32, flags: c_uint) -> c_int;
    cuStreamBatchMemOp_v2(
        stream: usize,
        count: c_uint,
        operations: *const [u64; 6],
        flags: c_uint
    ) -> c_int;
    cuStreamWaitValue32(stream: usize, word: usize, value: u32, flags: c_uint) -> c_int;
    cuStreamWriteValue32(stream: usize, word: usize, value: u32, flags: c_uint) -> c_int;
    softcuda_launch(stream: usize, kernel: Option<extern "C" fn(usize)>, argument: usize) -> c_int;
    softcuda_place(address: usize, bytes: usize) -> usize;
    softcuda_calls(name: *const std::ffi::c_char) -> u64;
    softcuda_count(what: *const std::ffi::c_char) -> u64;
    softcuda_step() -> c_int;
    softcuda_fail(name: *const std::ffi::c_char, at: u64, code: c_int) -> c_int;
    softcuda_capture(stream: usize, status: c_int) -> ();
    softcuda_report() -> ();
}

/// Asserts that a call succeeds.
#[track_caller]
pub fn ok(code: c_int) {
    assert_eq!(code, 0);
}

/// What a call stores.
#[track_caller]
pub fn get<T: Default>(call: impl FnOnce(*mut T) -> c_int) -> T {
    let mut value = T::default();
    ok(call(&mut value));
    value
}

/// Initializes the driver and makes the first device's context current.
pub fn begin() {
    ok(cuInit(0));
    enter(0);
}

/// Makes a device's context current.
pub fn enter(device: c_int) {
    ok(cuCtxPushCurrent_v2(get(|context| {
        cuDevicePrimaryCtxRetain(context, device)
    })));
}

pub fn stream() -> usize {
    get(|stream| cuStreamCreateWithPriority(stream, 1, 0))
}

pub fn event() -> usize {
    get(|event| cuEventCreate(event, 2))
}

pub fn device_memory(bytes: usize) -> usize {
    get(|address| cuMemAlloc_v2(address, bytes))
}

pub fn count(what: &CStr) -> u64 {
    softcuda_count(what.as_ptr())
}

pub fn calls(name: &CStr) -> u64 {
    softcuda_calls(name.as_ptr())
}

/// Host memory that is pinned; words and bytes.
pub struct Pinned(Box<[AtomicU32]>);

impl Pinned {
    pub fn new(bytes: usize) -> Pinned {
        let words = (0..bytes.div_ceil(4)).map(|_| AtomicU32::new(0)).collect();
        let pinned = Pinned(words);
        ok(cuMemHostRegister_v2(
            pinned.host(),
            pinned.0.len() * 4,
            FLAGS,
        ));
        pinned
    }

    /// The host's address.
    pub fn host(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// The device's address of a word.
    pub fn device(&self, word: usize) -> usize {
        let host = self.host();
        get(|device| cuMemHostGetDevicePointer_v2(device, host, 0)) + word * 4
    }

    pub fn load(&self, word: usize) -> u32 {
        // Acquire: pairs with the driver's Release store.
        self.0[word].load(Ordering::Acquire)
    }

    pub fn store(&self, word: usize, value: u32) {
        // Release: pairs with the driver's Acquire load.
        self.0[word].store(value, Ordering::Release);
    }

    pub fn unpin(&self) -> c_int {
        cuMemHostUnregister(self.host())
    }
}

/// Runs steps until none can run.
pub fn run_all() {
    while softcuda_step() != 0 {}
}

/// How a process of its own ended.
pub struct Ended {
    pub output: Output,
    pub settings: String,
}

impl Ended {
    pub fn text(&self) -> String {
        let [out, error] = [&self.output.stdout, &self.output.stderr];
        let [out, error] = [out, error].map(|text| String::from_utf8_lossy(text));
        format!("{out}{error}")
    }

    /// It succeeded; what it printed.
    #[track_caller]
    pub fn passed(self) -> String {
        let (text, settings) = (self.text(), &self.settings);
        assert_eq!(
            self.output.status.code(),
            Some(PASSED),
            "with {settings}: {text}"
        );
        text
    }

    /// It was ended by `signal`, after it said `sentence`.
    #[track_caller]
    pub fn ended_by(self, signal: i32, sentence: &str) {
        let (text, settings) = (self.text(), &self.settings);
        assert_eq!(
            self.output.status.signal(),
            Some(signal),
            "with {settings}: {text}"
        );
        assert!(text.contains(sentence), "with {settings}: {text}");
    }
}

/// Runs `body` in a process of its own, which runs the test that calls this with the `settings`.
/// That process never returns from here: a test has one body, which may run with several settings.
pub fn alone(settings: &[(&str, &str)], body: impl FnOnce()) -> Ended {
    let thread = thread::current();
    let test = thread.name().expect("a test has a name").to_owned();
    if std::env::var_os(ALONE).is_some() {
        thread::spawn(|| {
            thread::sleep(LIMIT);
            softcuda_report();
            eprintln!("the test takes too long");
            std::process::exit(3);
        });
        // Unwinding would run destructors, which may wait for what never comes.
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |information| {
            report(information);
            std::process::exit(101);
        }));
        body();
        std::process::exit(PASSED);
    }
    let output = Command::new(std::env::current_exe().expect("a test is a program"))
        .args(["--exact", &test, "--nocapture", "--test-threads", "1"])
        .env(ALONE, "1")
        .envs(settings.iter().copied())
        .output()
        .expect("the test program runs again");
    let settings = format!("{settings:?}");
    Ended { output, settings }
}
