//! Calls of the program: counted by name, failed on order, answered with the real driver's codes.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

use crate::driver::{Driver, driver, lock};

/// Why a call is refused: the driver's code and the name that it has in `cuda.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub c_int);

macro_rules! refusals {
    ($($constant:ident = $code:literal $name:literal;)*) => {
        impl Refusal {
            $(pub const $constant: Refusal = Refusal($code);)*
        }

        /// The codes that have names.
        const NAMES: &[(c_int, &CStr)] = &[$(($code, $name)),*];
    };
}

refusals! {
    INVALID_VALUE = 1 c"CUDA_ERROR_INVALID_VALUE";
    OUT_OF_MEMORY = 2 c"CUDA_ERROR_OUT_OF_MEMORY";
    NOT_INITIALIZED = 3 c"CUDA_ERROR_NOT_INITIALIZED";
    INVALID_DEVICE = 101 c"CUDA_ERROR_INVALID_DEVICE";
    INVALID_CONTEXT = 201 c"CUDA_ERROR_INVALID_CONTEXT";
    INVALID_HANDLE = 400 c"CUDA_ERROR_INVALID_HANDLE";
    NOT_FOUND = 500 c"CUDA_ERROR_NOT_FOUND";
    NOT_READY = 600 c"CUDA_ERROR_NOT_READY";
    CONTEXT_IS_DESTROYED = 709 c"CUDA_ERROR_CONTEXT_IS_DESTROYED";
    ALREADY_REGISTERED = 712 c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    NOT_REGISTERED = 713 c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    NOT_SUPPORTED = 801 c"CUDA_ERROR_NOT_SUPPORTED";
}

/// Further names, of codes that only tests inject.
const INJECTED_NAMES: &[(c_int, &CStr)] = &[
    (0, c"CUDA_SUCCESS"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED"),
    (999, c"CUDA_ERROR_UNKNOWN"),
];

/// The name of a code, if it has one.
pub fn name_of(code: c_int) -> Option<&'static CStr> {
    let mut names = NAMES.iter().chain(INJECTED_NAMES);
    names.find(|(each, _)| *each == code).map(|(_, name)| *name)
}

/// What a call answers.
pub type Answer<T = ()> = Result<T, Refusal>;

/// An order to fail a call.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Of which function; `*` for any but [`POLLED`].
    name: String,
    /// Which of its calls; 1 is the next.
    at: u64,
    code: c_int,
    /// Whether all later calls fail, too.
    sticky: bool,
}

impl Failure {
    /// `name:n:code` or `name:n:code:sticky`.
    pub fn parse(text: &str) -> Option<Failure> {
        let (text, sticky) = match text.strip_suffix(":sticky") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let mut parts = text.splitn(3, ':');
        Some(Failure {
            name: parts.next()?.to_owned(),
            at: parts.next()?.parse().ok()?,
            code: parts.next()?.parse().ok()?,
            sticky,
        })
    }

    /// Call `at` of `name`, counted from now.
    pub fn new(name: &str, at: u64, code: c_int) -> Failure {
        let name = name.to_owned();
        Failure {
            name,
            at,
            code,
            sticky: false,
        }
    }
}

/// How often each function was called, and what is to fail.
#[derive(Debug, Default)]
pub struct Calls(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    by_name: BTreeMap<&'static str, u64>,
    fail: Option<Failure>,
    /// What all calls answer after a sticky failure.
    broken: Option<c_int>,
    /// Whether `cuInit` was called.
    is_initialized: bool,
}

/// Functions that a program repeats until they say that it is done, so how often depends on its
/// speed.
const POLLED: [&str; 2] = ["cuStreamQuery", "cuEventQuery"];

/// Functions that may be called before `cuInit`.
const EARLY: [&str; 3] = ["cuInit", "cuDriverGetVersion", "cuGetErrorName"];

impl Calls {
    /// No calls yet.
    pub fn new(fail: Option<Failure>) -> Calls {
        Calls(Mutex::new(Counted {
            fail,
            ..Counted::default()
        }))
    }

    /// Calls of `name`, or of all functions.
    pub fn count(&self, name: Option<&str>) -> u64 {
        let calls = lock(&self.0);
        let counted = |(each, count): (&&str, &u64)| {
            let counts = name.is_none_or(|name| name == *each);
            if counts { *count } else { 0 }
        };
        calls.by_name.iter().map(counted).sum()
    }

    /// Allows all calls.
    pub fn initialize(&self) {
        lock(&self.0).is_initialized = true;
    }

    /// Has a later call fail; whether the order before this one was still to be met.
    pub fn fail(&self, failure: Option<Failure>) -> bool {
        std::mem::replace(&mut lock(&self.0).fail, failure).is_some()
    }

    fn enter(&self, name: &'static str, process: u32) -> Answer {
        let mut calls = lock(&self.0);
        *calls.by_name.entry(name).or_default() += 1;
        // A name is asked for to report a failure: that must not fail.
        if name == "cuGetErrorName" {
            return Ok(());
        }
        // A forked child has no driver.
        let is_forked = process != std::process::id();
        if is_forked || !calls.is_initialized && !EARLY.contains(&name) {
            return Err(Refusal::NOT_INITIALIZED);
        }
        if let Some(code) = calls.broken {
            return Err(Refusal(code));
        }
        let is_meant = |failure: &&mut Failure| match &*failure.name {
            "*" => !POLLED.contains(&name),
            meant => meant == name,
        };
        let Some(failure) = calls.fail.as_mut().filter(is_meant) else {
            return Ok(());
        };
        failure.at = failure.at.saturating_sub(1);
        if failure.at > 0 {
            return Ok(());
        }
        let (code, sticky) = (failure.code, failure.sticky);
        calls.fail = None;
        calls.broken = sticky.then_some(code);
        Err(Refusal(code))
    }
}

/// One call: `body` runs unless the call is to fail.
pub fn call(name: &'static str, body: impl FnOnce(&'static Driver) -> Answer) -> c_int {
    let driver = driver();
    let answer = driver
        .calls
        .enter(name, driver.process)
        .and_then(|()| body(driver));
    match answer {
        Ok(()) => 0,
        Err(Refusal(code)) => code,
    }
}

/// Where the program wants an answer: a pointer by the C interface.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the answer; a null pointer is an invalid value.
    pub fn put(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Refusal::INVALID_VALUE);
        }
        // SAFETY: the interface promises that a pointer which is not null takes a value.
        unsafe { self.0.write(value) }
        Ok(())
    }

    /// The `index`-th place, of several.
    pub fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }

    /// The address itself, as another type's.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// What stands there.
    pub fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Refusal::INVALID_VALUE);
        }
        // SAFETY: the interface promises that a pointer which is not null has a value.
        Ok(unsafe { self.0.read() })
    }
}

impl Out<c_char> {
    /// Stores a text of at most `room` bytes, its final zero counted.
    pub fn put_text(self, text: &str, room: c_int) -> Answer {
        let kept = text.bytes().take((room.max(1) - 1) as usize);
        for (index, byte) in kept.chain([0]).enumerate() {
            self.at(index).put(byte as c_char)?;
        }
        Ok(())
    }
}

/// A text of the program; nothing where it is null.
pub fn text_at(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the interface promises text that ends with a zero.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}
