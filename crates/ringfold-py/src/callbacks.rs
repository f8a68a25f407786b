//! Python callbacks that the library's threads run when calls complete, and the end of callbacks at
//! interpreter exit.
//!
//! The exit waits for callbacks as it waits for Python's own threads ([`finish_callbacks`]). A
//! callback may still run afterwards: Ctrl-C ends the wait, and a later call may complete. The
//! interpreter then ends the callback's thread while the thread is inside Python. Before Python
//! 3.14 the interpreter unwinds the thread's stack, which ends the process when the unwinding
//! reaches a frame of Rust; here such a thread stops for good instead.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PySystemExit;
use pyo3::ffi;
use pyo3::prelude::*;
use ringfold::internals::notifier;

use crate::attach::attached;
use crate::signals::SIGNAL_PERIOD;

/// Interval at which the exit polls for the end of callbacks.
const EXIT_PERIOD: Duration = Duration::from_millis(1);

/// Waits until the callbacks that are due now have returned. Raises the exception of a signal
/// handler.
#[pyfunction]
pub fn finish_callbacks(py: Python<'_>) -> PyResult<()> {
    let due = notifier::due();
    let have_returned = || {
        let begin = Instant::now();
        loop {
            match notifier::have_returned(due) {
                false if begin.elapsed() < SIGNAL_PERIOD => thread::sleep(EXIT_PERIOD),
                have_returned => break have_returned,
            }
        }
    };
    while !py.detach(have_returned) {
        py.check_signals()?;
    }
    Ok(())
}

/// Calls `call` on a thread that is not Python's own; does nothing without an interpreter.
///
/// If `call` forks, this thread is the child's only one, and the child ends with the call.
pub fn run_elsewhere(call: Py<PyAny>) {
    let process = std::process::id();
    attached(|py| {
        let exit = returned(py, call);
        if std::process::id() != process {
            end_child(py, exit);
        }
    });
}

/// Calls `call` on this thread. Its exception goes to `sys.unraisablehook`, but an exception by
/// which a forked child exits ends the child.
pub fn run(py: Python<'_>, call: Py<PyAny>) {
    if let Some(exit) = returned(py, call) {
        // Ends the process.
        exit.print(py);
    }
}

/// Calls `call`. Returns the exception by which a child that `call` forked exits; any other
/// exception goes to `sys.unraisablehook`.
fn returned(py: Python<'_>, call: Py<PyAny>) -> Option<PyErr> {
    let process = std::process::id();
    let stop = Stop;
    // SAFETY: `call` is an object, and the thread is attached to the interpreter.
    let returned = unsafe { PyObject_CallNoArgs(call.as_ptr()) };
    std::mem::forget(stop);
    // SAFETY: the result of a call is a new reference, or null with an exception set.
    let raised = unsafe { Bound::from_owned_ptr_or_err(py, returned) }.err()?;
    if std::process::id() != process && raised.is_instance_of::<PySystemExit>(py) {
        return Some(raised);
    }
    raised.write_unraisable(py, Some(call.bind(py)));
    None
    // `call` is dropped here, which can run Python code.
}

/// Ends this process, a child whose only thread is not Python's own.
fn end_child(py: Python<'_>, exit: Option<PyErr>) -> ! {
    let exit = exit.map(|exit| exit.into_value(py));
    let module = py.import("ringfold._exit");
    let ended = module.and_then(|module| module.call_method1("end_child_of_callback", (exit,)));
    if let Err(error) = ended {
        error.write_unraisable(py, None);
    }
    std::process::exit(1)
}

unsafe extern "C-unwind" {
    /// Declared as in `pyo3::ffi`, except that the interpreter may unwind the caller's stack.
    fn PyObject_CallNoArgs(callable: *mut ffi::PyObject) -> *mut ffi::PyObject;
}

/// Stops a thread for good when the thread's stack is unwound.
struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}
