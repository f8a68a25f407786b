//! The asynchronous call of the Python package.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use ringfold::internals::sync::lock;

use crate::callbacks;
use crate::connection::forked_by;
use crate::exceptions::exception;
use crate::signals::{Signals, seconds};

/// Minimum number of outstanding calls at which all of them are searched for calls that are done.
const LOOK_MIN: usize = 16;

/// The objects that keep a call's memory alive.
pub type Held = (Py<PyAny>, Option<Py<PyAny>>);

/// A started call and the objects of its memory, which are held until the call completes, even
/// without a handle.
#[derive(Debug)]
pub struct Call {
    // Declared first, so dropped first: the memory outlives the call.
    work: ringfold::Work,
    held: Mutex<Option<Held>>,
    /// The process that started the call.
    process: u32,
}

impl Call {
    /// Returns whether the call is done; if so, its memory is released.
    pub fn is_done(&self) -> bool {
        let done = self.work.is_done();
        if done {
            let mut held = lock(&self.held);
            let released = held.take();
            // Freeing an array may run Python code, which must not find the lock taken.
            drop(held);
            drop(released);
        }
        done
    }

    /// Waits until the call completes, at most for `span`; returns whether it has, or its error. If
    /// a signal handler raises, the communicator is aborted on all ranks and the handler's
    /// exception is the error.
    pub fn wait(&self, py: Python<'_>, span: Option<Duration>) -> PyResult<ringfold::Result<bool>> {
        let mut signals = Signals::default();
        let outcome = match span {
            _ if self.work.is_done() => self.work.wait().map(|()| true),
            None => py.detach(|| self.work.wait_with(&mut || signals.look()).map(|()| true)),
            Some(span) => py.detach(|| self.work.wait_timeout_with(span, &mut || signals.look())),
        };
        self.is_done();
        signals.finish(py, outcome)
    }
}

/// The calls in progress of one communicator, also those whose handle was dropped: their memory is
/// in use.
#[derive(Debug)]
pub struct Outstanding {
    queue: Mutex<Queue>,
    process: u32,
}

#[derive(Debug, Default)]
struct Queue {
    calls: VecDeque<Arc<Call>>,
    /// Number of outstanding calls at which all of them are searched for calls that are done.
    look_at: usize,
}

impl Outstanding {
    /// Returns the calls of a communicator that this process makes.
    pub fn new() -> Outstanding {
        Outstanding {
            queue: Mutex::default(),
            process: std::process::id(),
        }
    }

    /// Returns a started call, which is kept until it is done.
    pub fn keep(&self, work: ringfold::Work, held: Held) -> Arc<Call> {
        let call = Arc::new(Call {
            work,
            held: Mutex::new(Some(held)),
            process: self.process,
        });
        if !call.is_done() {
            lock(&self.queue).calls.push_back(Arc::clone(&call));
        }
        call
    }

    /// Releases the calls that are done.
    pub fn release_done(&self) {
        let done = lock(&self.queue).take_done();
        // Freeing a call's memory may run Python code, which must not find the lock taken.
        done.iter().for_each(|call| _ = call.is_done());
    }

    /// Returns all calls, in the order in which they were started.
    pub fn all(&self) -> Vec<Arc<Call>> {
        lock(&self.queue).calls.iter().cloned().collect()
    }
}

impl Queue {
    /// Takes out the calls that are done: the oldest, which mostly end first; and all if there are
    /// twice as many as were left the last time, so that the cost of each call does not grow with
    /// their number.
    fn take_done(&mut self) -> Vec<Arc<Call>> {
        let mut done = Vec::new();
        while self.calls.front().is_some_and(|call| call.work.is_done()) {
            done.extend(self.calls.pop_front());
        }
        if self.calls.len() >= self.look_at {
            let calls = std::mem::take(&mut self.calls).into_iter();
            let (ended, left): (VecDeque<_>, _) = calls.partition(|call| call.work.is_done());
            done.extend(ended);
            self.calls = left;
            self.look_at = LOOK_MIN.max(2 * self.calls.len());
        }
        done
    }
}

/// The result of a call that is still to be made.
#[derive(Debug)]
pub struct Promised {
    /// The array that the call fills, if any.
    pub array: Option<Py<PyAny>>,
    /// The caller's array, to whose framework the result is converted.
    pub like: Option<Py<PyAny>>,
    /// Whether the result includes the sender, because any rank may be the sender.
    pub has_source: bool,
}

impl Promised {
    /// Returns the result of a call that has none.
    pub fn nothing() -> Promised {
        Promised {
            array: None,
            like: None,
            has_source: false,
        }
    }

    /// Returns the result of the call, which has succeeded.
    pub fn result<'py>(
        &self,
        py: Python<'py>,
        source: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = match (&self.array, &self.like) {
            (None, _) => py.None().into_bound(py),
            (Some(array), None) => array.bind(py).clone(),
            (Some(array), Some(like)) => {
                let arrays = py.import("ringfold.arrays")?;
                arrays.call_method1("restored", (like, array))?
            }
        };
        match self.has_source {
            true => Ok((array, source).into_pyobject(py)?.into_any()),
            false => Ok(array),
        }
    }
}

/// A call that was started with `async_=True`.
///
/// Until the call has completed, do not write to its input and do not access its output. Both are
/// kept alive, even if the handle is dropped. Calls of one communicator run in the order in which
/// they were started.
#[pyclass(frozen, weakref, module = "ringfold")]
#[derive(Debug)]
pub struct Work {
    /// The call, once it is started: calls of a group are started at the end of its block.
    call: OnceLock<Arc<Call>>,
    promised: Promised,
    /// The communicator that stays open as long as the handle exists.
    #[allow(dead_code, reason = "held, not read")]
    communicator: Option<Py<PyAny>>,
}

impl Work {
    /// Returns the handle of a call that is not started yet.
    pub fn new(communicator: Option<Py<PyAny>>, promised: Promised) -> Work {
        Work {
            call: OnceLock::new(),
            promised,
            communicator,
        }
    }

    /// Sets the call when it is started.
    pub fn start(&self, call: Arc<Call>) {
        // A handle is in one list of calls, which is started once.
        let _ = self.call.set(call);
    }

    /// Returns whether the call has completed successfully.
    pub fn has_succeeded(&self) -> bool {
        let call = self.call.get();
        call.is_some_and(|call| call.work.is_done() && call.work.wait().is_ok())
    }

    /// Returns the call; an error before its start and in a forked child.
    fn started(&self) -> PyResult<&Call> {
        let Some(call) = self.call.get() else {
            return Err(PyRuntimeError::new_err(
                "the call's group is not started; leave the `with` block first",
            ));
        };
        match call.work.is_forked() {
            true => Err(forked_by(call.process)),
            false => Ok(call),
        }
    }
}

#[pymethods]
impl Work {
    /// Wait until the call has completed and return its result, or raise its error.
    ///
    /// After `timeout` seconds, raises the builtin `TimeoutError`; the call then continues and can
    /// be waited for again. (If the call's own deadline passes, `RingfoldTimeoutError` is raised,
    /// and the communicator fails.)
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let call = self.started()?;
        if !call.wait(py, seconds(timeout)?)?.map_err(exception)? {
            let timeout = timeout.unwrap_or_default();
            return Err(PyTimeoutError::new_err(format!(
                "the call is not done after {timeout} s; it continues"
            )));
        }
        self.promised.result(py, call.work.source())
    }

    /// Whether the call has completed, successfully or not.
    fn done(&self) -> PyResult<bool> {
        match self.call.get() {
            Some(_) => Ok(self.started()?.is_done()),
            None => Ok(false),
        }
    }

    /// The rank of the sender, after a successful receive; otherwise raises `RuntimeError`.
    #[getter]
    fn source(&self) -> PyResult<usize> {
        self.started()?.work.source().ok_or_else(|| {
            PyRuntimeError::new_err("only a receive that has succeeded has a source")
        })
    }

    /// Run `call()` once after this call has completed, successfully or not.
    ///
    /// The library's thread `ringfold-done` runs callbacks one at a time; if the call has already
    /// completed, `call()` runs at once in the caller's thread. Callbacks may make calls and wait
    /// for them and for their callbacks. Exceptions of callbacks go to `sys.unraisablehook`.
    fn when_done(&self, py: Python<'_>, call: Py<PyAny>) -> PyResult<()> {
        let started = self.started()?;
        if started.is_done() {
            callbacks::run(py, call);
            return Ok(());
        }
        // Threads that complete calls do not wait for the GIL, so it may be held here.
        let later = move || callbacks::run_elsewhere(call);
        started.work.when_done(later).map_err(exception)
    }

    /// The result of the call; waits if necessary.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.wait(py, None)
    }

    /// The error of the call, or `None`; waits if necessary.
    fn exception(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        let outcome = self.started()?.wait(py, None)?;
        Ok(outcome.err().map(exception))
    }

    fn __repr__(&self) -> PyResult<String> {
        let state = match self.done()? {
            true => "done",
            false => "in progress",
        };
        Ok(format!("<ringfold.Work, {state}>"))
    }

    /// An array may refer to the handle that refers to it.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.promised.array)?;
        visit.call(&self.promised.like)
    }
}

/// The reason for which a rank ends the communicator; the other ranks read it.
pub const INTERRUPTED: &str = "interrupted by a signal";

/// Ends `communicator` on all ranks because a signal interrupted this rank.
pub fn interrupted(py: Python<'_>, communicator: &ringfold::Communicator) {
    py.detach(|| communicator.abort(INTERRUPTED));
}
