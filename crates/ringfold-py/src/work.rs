//! The asynchronous call of the Python module.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ringfold::internals::sync::lock;

use crate::callbacks;
use crate::connection::Connection;
use crate::exceptions::exception;
use crate::request::Request;
use crate::signals::{Signals, seconds};

/// Minimum number of outstanding calls at which all of them are searched for calls that are done.
const LOOK_MIN: usize = 16;

/// A started call and its request, whose memory is held until the call completes, even without a
/// handle.
#[derive(Debug)]
pub struct Call {
    // Declared first, so dropped first: the memory outlives the call.
    work: Connection<ringfold::Work>,
    request: Mutex<Option<Py<Request>>>,
}

impl Call {
    pub fn new(work: ringfold::Work, request: Py<Request>) -> Call {
        Call {
            work: Connection::new(work),
            request: Mutex::new(Some(request)),
        }
    }

    /// Returns whether the call is done; if so, its memory is released.
    pub fn is_done(&self) -> bool {
        let done = self.work.is_done();
        if done {
            let mut held = lock(&self.request);
            let released = held.take();
            // Freeing an array may run Python code, which must not find the lock taken.
            drop(held);
            drop(released);
        }
        done
    }

    /// Waits until the call completes, and returns its result. If a signal handler raises, the
    /// communicator is aborted on all ranks and the handler's exception is the error.
    pub fn wait(&self, py: Python<'_>) -> PyResult<ringfold::Result<()>> {
        self.work.check()?;
        let mut signals = Signals::default();
        let outcome = py.detach(|| self.work.wait_with(&mut || signals.look()));
        self.is_done();
        signals.finish(py, outcome)
    }

    /// Waits like `wait`, but at most for `span`; returns whether the call has completed. Otherwise
    /// the call continues.
    fn wait_within(&self, py: Python<'_>, span: Duration) -> PyResult<bool> {
        self.work.check()?;
        let mut signals = Signals::default();
        let mut look = || signals.look();
        let outcome = py.detach(|| self.work.wait_timeout_with(span, &mut look));
        self.is_done();
        signals.finish(py, outcome)?.map_err(exception)
    }
}

/// Calls in progress, also those whose handle was dropped: their memory is in use.
#[derive(Debug, Default)]
pub struct Outstanding {
    calls: VecDeque<Arc<Call>>,
    /// Number of outstanding calls at which all of them are searched for calls that are done.
    look_at: usize,
}

impl Outstanding {
    pub fn push(&mut self, call: Arc<Call>) {
        self.calls.push_back(call);
    }

    /// Returns all calls, in the order in which they were started.
    pub fn all(&self) -> Vec<Arc<Call>> {
        self.calls.iter().cloned().collect()
    }

    /// Takes out the calls that are done: the oldest, which mostly end first; and all if there are
    /// twice as many as were left the last time, so that the cost of each call does not grow with
    /// their number.
    pub fn take_done(&mut self) -> Vec<Arc<Call>> {
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

/// The handle of an asynchronous call. The handle does not keep the communicator open.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct Work(pub Arc<Call>);

#[pymethods]
impl Work {
    /// Waits until the call completes, at most `timeout` seconds; returns whether it has. Raises
    /// the call's error.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        match seconds(timeout)? {
            None => self.0.wait(py)?.map(|()| true).map_err(exception),
            Some(span) => self.0.wait_within(py, span),
        }
    }

    /// Returns whether the call is done, successfully or not.
    fn done(&self) -> PyResult<bool> {
        self.0.work.check()?;
        Ok(self.0.is_done())
    }

    /// The sender of a receive that has succeeded.
    #[getter]
    fn source(&self) -> PyResult<usize> {
        self.0.work.check()?;
        self.0.work.source().ok_or_else(|| {
            PyRuntimeError::new_err("only a receive that has succeeded has a source")
        })
    }

    /// Runs `call()` once, when the call completes, successfully or not: on the library's notifier
    /// thread, or at once if it has completed already. Its exceptions go to `sys.unraisablehook`.
    fn when_done(&self, py: Python<'_>, call: Py<PyAny>) -> PyResult<()> {
        self.0.work.check()?;
        if self.0.is_done() {
            callbacks::run(py, call);
            return Ok(());
        }
        // Threads that complete calls do not wait for the GIL, so it may be held here.
        let later = move || callbacks::run_elsewhere(call);
        self.0.work.when_done(later).map_err(exception)
    }
}

/// The reason for which a rank ends the communicator; the other ranks read it.
pub const INTERRUPTED: &str = "interrupted by a signal";

/// Ends `communicator` on all ranks because a signal interrupted this rank.
pub fn interrupted(py: Python<'_>, communicator: &ringfold::Communicator) {
    py.detach(|| communicator.abort(INTERRUPTED));
}
