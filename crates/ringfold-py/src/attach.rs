//! Attaching threads to the interpreter, also those that Python did not make.
//!
//! Python gives such a thread a new thread state each time, and makes it under a lock. A child that
//! is forked by another thread at that moment finds the lock taken; Python 3.11 waits for it in the
//! child (`PyOS_AfterFork_Child`), for ever. Later versions make the lock anew before, and from
//! 3.13 on a fork takes it itself. So on 3.11 the state is made while forks are held off.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use ringfold::internals::sys::fork::hold_off;

/// The interpreter, if its forks must not meet a thread state that is being made.
static INTERPRETER: AtomicPtr<ffi::PyInterpreterState> = AtomicPtr::new(null_mut());

/// Called by the import of the module.
pub fn prepare(py: Python<'_>) {
    if py.version_info() < (3, 12) {
        // SAFETY: this thread is attached.
        let interpreter = unsafe { ffi::PyInterpreterState_Get() };
        // Pairs with the load in `State::make`.
        INTERPRETER.store(interpreter, Ordering::Release);
    }
}

/// Calls `call` with this thread attached; `None` without an interpreter.
pub fn attached<R>(call: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _state = State::make();
    Python::try_attach(call)
}

/// A thread state of this thread, which is attached to it, until it is dropped.
struct State;

impl State {
    /// `None` if Python is to make the thread state, or has made one.
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
        if !is_initialized || !known.is_null() {
            return None;
        }
        // The wait for the interpreter's own lock comes afterwards: a thread that forks has it. If
        // another thread's fork does not end, its child was lost before.
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
        // `PyGILState_Ensure` made (`PyThreadState_New`), so that this deletes it.
        unsafe { ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED) };
    }
}
