//! Attaches threads to the interpreter, also threads that Python did not create.
//!
//! Python creates a new thread state for such a thread each time, under a lock. If another thread
//! forks at that moment, the child finds the lock taken, and Python 3.11 waits for the lock in the
//! child (`PyOS_AfterFork_Child`) forever. Later versions reinitialize the lock first, and from
//! 3.13 on, a fork takes the lock itself. So on 3.11 the state is created while forks are held off,
//! unless tracemalloc traces: every allocation then waits for the interpreter's own lock.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{RTLD_DEFAULT, dlsym};
use pyo3::ffi;
use pyo3::prelude::*;
use ringfold::internals::sys::fork::hold_off;

/// The interpreter, if its forks must not meet a thread state that is being created.
static INTERPRETER: AtomicPtr<ffi::PyInterpreterState> = AtomicPtr::new(null_mut());

/// Type of `PyTraceMalloc_Untrack`, which has no effect on an unknown address, and returns -2 if
/// nothing is traced.
type Untrack = unsafe extern "C" fn(domain: c_uint, address: usize) -> c_int;

static UNTRACK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Returns whether tracemalloc traces.
fn is_traced() -> bool {
    // Pairs with the store in `prepare`.
    let untrack = UNTRACK.load(Ordering::Acquire);
    if untrack.is_null() {
        return false;
    }
    // SAFETY: the function of this name, which has this type in all versions.
    let untrack = unsafe { transmute::<*mut c_void, Untrack>(untrack) };
    // SAFETY: needs no lock of the caller; no memory has this address.
    unsafe { untrack(0, 0) != -2 }
}

/// Prepares [`attached`] for Python versions before 3.12; called by the import of the module.
pub fn prepare(py: Python<'_>) {
    if py.version_info() < (3, 12) {
        // SAFETY: this thread is attached.
        let interpreter = unsafe { ffi::PyInterpreterState_Get() };
        // SAFETY: any name may be looked up; this one is not in Python's stable interface.
        let untrack = unsafe { dlsym(RTLD_DEFAULT, c"PyTraceMalloc_Untrack".as_ptr()) };
        // Pairs with the load in `is_traced`.
        UNTRACK.store(untrack, Ordering::Release);
        // Pairs with the load in `State::make`.
        INTERPRETER.store(interpreter, Ordering::Release);
    }
}

/// Calls `call` with this thread attached; `None` without an interpreter.
pub fn attached<R>(call: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _state = State::make();
    Python::try_attach(call)
}

/// A thread state to which this thread is attached until the value is dropped.
struct State;

impl State {
    /// Creates a thread state and attaches this thread; `None` if Python is to create the state, or
    /// has done so.
    fn make() -> Option<State> {
        // Pairs with the store in `prepare`.
        let interpreter = INTERPRETER.load(Ordering::Acquire);
        if interpreter.is_null() {
            return None;
        }
        // SAFETY: may be called at any time.
        let is_initialized = unsafe { ffi::Py_IsInitialized() } != 0;
        // SAFETY: may be called at any time.
        let known = unsafe { ffi::PyGILState_GetThisThreadState() };
        if !is_initialized || !known.is_null() || is_traced() {
            return None;
        }
        // The wait for the interpreter's own lock comes afterwards, because a forking thread holds
        // that lock. If another thread's fork never ends, forks are not held off, but that fork's
        // child was lost before.
        let held_off = hold_off();
        // SAFETY: the main interpreter, which is initialized.
        let state = unsafe { ffi::PyThreadState_New(interpreter) };
        drop(held_off);
        if state.is_null() {
            return None;
        }
        // SAFETY: the state is this thread's, which is not attached. Does not return while the
        // interpreter ends.
        unsafe { ffi::PyEval_RestoreThread(state) };
        Some(State)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: this thread is attached to the state of `make`, which counts as one that
        // `PyGILState_Ensure` made (`PyThreadState_New`), so that this call deletes the state.
        unsafe { ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED) };
    }
}
