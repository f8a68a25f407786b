//! Waiting without the GIL and without going deaf: Python's signal handlers run while a call waits.

use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ringfold::internals::sync::lock;
use ringfold::internals::threads;
use ringfold::internals::wait::SPAN_MAX;
use ringfold::{Error, Result};

use crate::attach::attached;
use crate::exceptions::{exception, invalid_argument};

/// How long a signal may go unnoticed.
pub const SIGNAL_PERIOD: Duration = Duration::from_millis(50);

/// How long an interrupted thread may take to withdraw: it looks around 20 times a second, and says
/// goodbye.
const WITHDRAWAL: Duration = Duration::from_secs(5);

/// The signal handlers' side of one wait of the core: what they raised ends it.
#[derive(Default)]
pub struct Signals {
    raised: Option<PyErr>,
}

impl Signals {
    /// Runs pending signal handlers. An error means that one raised; `finish` has its exception.
    /// The core calls this a few dozen times per second while it waits.
    pub fn look(&mut self) -> Result<()> {
        let handled = attached(|py| {
            py.check_signals().map_err(|raised| {
                let kind = raised.get_type(py);
                let name = kind
                    .name()
                    .map_or_else(|_| kind.to_string(), |name| name.to_string());
                self.raised = Some(raised);
                // Only its text is used: the other ranks read it as the reason.
                Error::InvalidArgument(format!("a signal handler raised {name}"))
            })
        });
        // Without an interpreter, no thread waits for this call any more.
        handled.unwrap_or(Err(Error::Closed))
    }

    /// The wait's outcome, unless a handler raised.
    ///
    /// When the wait failed, signals that came meanwhile are handled first. A job's ranks are often
    /// interrupted together, so that a peer's end comes with this rank's own signal; Python would
    /// otherwise handle that one while it prints the error, and lose both.
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

/// How an interrupted caller parts with the thread that works for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// At once: the work changes nothing, and is left to its own deadline.
    AtOnce,
    /// When the thread has withdrawn, after [`WITHDRAWAL`], or as soon as another handler raises.
    Patient,
    /// When the thread has withdrawn: it works on the caller's memory.
    WhenDone,
}

/// Runs an operation that cannot be interrupted on a separate thread, while this one checks
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
                    "the set-up thread ended without an answer".into(),
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
            // It was done just then, or has failed; either way nothing stays.
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

/// A time span from Python's seconds; one that is too long to count, infinity too, is the longest.
pub fn seconds(value: Option<f64>) -> PyResult<Option<Duration>> {
    let span = |seconds: f64| {
        // `min` would take NaN for the longest.
        let seconds = match seconds > SPAN_MAX.as_secs_f64() {
            true => SPAN_MAX.as_secs_f64(),
            false => seconds,
        };
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            invalid_argument(format!(
                "a timeout of {seconds} s; give seconds, 0 or more, or None"
            ))
        })
    };
    value.map(span).transpose()
}
