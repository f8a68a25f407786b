//! Waits without the GIL, while Python's signal handlers still run.

use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ringfold::internals::sync::lock;
use ringfold::internals::threads;
use ringfold::internals::wait::SPAN_MAX;
use ringfold::{Error, Result};

use crate::attach::attached;
use crate::exceptions::{exception, invalid_argument};

/// Maximum time for which a signal may go unnoticed.
pub const SIGNAL_PERIOD: Duration = Duration::from_millis(50);

/// Maximum time that an interrupted thread may take to withdraw: it checks for the interruption
/// about 20 times a second, and says goodbye.
const WITHDRAWAL: Duration = Duration::from_secs(5);

/// The signal handlers' side of one wait of the core: an exception that a handler raises ends the
/// wait.
#[derive(Default)]
pub struct Signals {
    raised: Option<PyErr>,
}

impl Signals {
    /// Runs pending signal handlers. An error means that a handler raised; `finish` returns the
    /// exception. The core calls this method a few dozen times per second while it waits.
    pub fn look(&mut self) -> Result<()> {
        let handled = attached(|py| {
            py.check_signals().map_err(|raised| {
                let kind = raised.get_type(py);
                let name = kind
                    .name()
                    .map_or_else(|_| kind.to_string(), |name| name.to_string());
                self.raised = Some(raised);
                // Only the error's text is used: the other ranks read it as the reason.
                Error::InvalidArgument(format!("a signal handler raised {name}"))
            })
        });
        // Without an interpreter, no thread still waits for this call.
        handled.unwrap_or(Err(Error::Closed))
    }

    /// Returns the wait's outcome, unless a handler raised.
    ///
    /// If the wait failed, signals that arrived meanwhile are handled first. A job's ranks are
    /// often interrupted together, so that a peer's end coincides with this rank's own signal.
    /// Otherwise Python would handle the signal while it prints the error, and lose both.
    pub fn finish<T>(self, py: Python<'_>, outcome: Result<T>) -> PyResult<Result<T>> {
        if let Some(raised) = self.raised {
            return Err(raised);
        }
        if outcome.is_err() {
            py.check_signals()?;
        }
        Ok(outcome)
    }
}

/// The time at which an interrupted caller stops waiting for the thread that works for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// At once: the work changes nothing, and is left to its own deadline.
    AtOnce,
    /// When the thread has withdrawn, after [`WITHDRAWAL`], or as soon as another handler raises.
    Patient,
    /// When the thread has withdrawn: the thread works on the caller's memory.
    WhenDone,
}

/// Runs an operation that cannot be interrupted on a separate thread, while the caller checks
/// signals. If a handler raises, `interrupt` makes the operation end early, and its result is
/// undone before the exception propagates.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    parting: Parting,
    work: impl FnOnce() -> Result<T> + Send + 'static,
    interrupt: impl FnOnce(),
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let thread = threads::start("ringfold-setup", move || {
        // After an interruption the receiver is gone; dropping the value undoes the work.
        let _ = sender.send(work());
    })
    .map_err(exception)?;
    let receiver = Mutex::new(receiver);
    let wait = || py.detach(|| lock(&receiver).recv_timeout(SIGNAL_PERIOD));
    let raised = loop {
        match wait() {
            Ok(outcome) => return outcome.map_err(exception),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    break raised;
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(exception(Error::Unsupported(
                    "the set-up thread ended without a result".into(),
                )));
            }
        }
    };
    interrupt();
    let begin = Instant::now();
    loop {
        match wait() {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let is_impatient = py.check_signals().is_err();
                let is_over = match parting {
                    Parting::AtOnce => true,
                    Parting::Patient => is_impatient || begin.elapsed() > WITHDRAWAL,
                    Parting::WhenDone => false,
                };
                if is_over {
                    return Err(raised);
                }
            }
            // The work was done just then, or has failed; either way nothing is left.
            outcome => {
                py.detach(|| {
                    drop(outcome);
                    // A panic in the thread has been printed.
                    let _ = thread.join();
                });
                return Err(raised);
            }
        }
    }
}

/// Converts Python's seconds to a time span; a span that is too long, such as infinity, becomes the
/// longest.
pub fn seconds(value: Option<f64>) -> PyResult<Option<Duration>> {
    let span = |seconds: f64| {
        // `min` would turn NaN into the longest span.
        let seconds = match seconds > SPAN_MAX.as_secs_f64() {
            true => SPAN_MAX.as_secs_f64(),
            false => seconds,
        };
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            invalid_argument(format!(
                "invalid timeout of {seconds} s; use seconds, 0 or more, or None"
            ))
        })
    };
    value.map(span).transpose()
}
