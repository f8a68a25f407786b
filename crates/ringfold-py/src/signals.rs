//! Waiting without the GIL and without going deaf: Python's signal handlers run while a call waits.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ringfold::{Error, Result};

use crate::exceptions::{exception, invalid_argument};

/// How long a signal may go unnoticed.
pub const SIGNAL_PERIOD: Duration = Duration::from_millis(50);
/// How often a wait that asks all the time really takes the GIL to look.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// The signal handlers' side of one wait: what they raised ends it.
pub struct Signals {
    looked: Instant,
    raised: Option<PyErr>,
}

impl Signals {
    pub fn new() -> Signals {
        Signals {
            looked: Instant::now(),
            raised: None,
        }
    }

    /// Runs pending signal handlers, if it is time. An error means that one raised; `finish` has what.
    pub fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() < LOOK_PERIOD {
            return Ok(());
        }
        self.looked = Instant::now();
        match Python::try_attach(|py| py.check_signals()) {
            Some(Ok(())) => Ok(()),
            Some(Err(raised)) => {
                self.raised = Some(raised);
                Err(Error::InvalidArgument("a signal handler raised".into()))
            }
            // The interpreter is going away, and nobody is left who waits for this call.
            None => Err(Error::Closed),
        }
    }

    /// The wait's outcome, in which a handler's exception comes first.
    pub fn finish<T>(self, outcome: Result<T>) -> PyResult<T> {
        match self.raised {
            Some(raised) => Err(raised),
            None => outcome.map_err(exception),
        }
    }
}

/// Does something that only ends by itself, on a thread of its own, while this one looks at signals. When a handler
/// raises, `interrupt` is told and the thread is left to its own deadline.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
    interrupt: impl FnOnce(),
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("ringfold-setup".into())
        .spawn(move || {
            // Nobody listens after an interruption; the value is dropped then, which undoes the work.
            let _ = sender.send(work());
        })
        .map_err(|error| exception(Error::system("cannot start a thread", error)))?;
    let receiver = std::sync::Mutex::new(receiver);
    loop {
        let answer = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(|poison| poison.into_inner());
            receiver.recv_timeout(SIGNAL_PERIOD)
        });
        match answer {
            Ok(outcome) => return outcome.map_err(exception),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    interrupt();
                    return Err(raised);
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(exception(Error::Unsupported(
                    "the set-up thread ended without an answer".into(),
                )));
            }
        }
    }
}

/// A time span from Python's seconds.
pub fn seconds(value: Option<f64>) -> PyResult<Option<Duration>> {
    value
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                invalid_argument(format!(
                    "a timeout of {seconds} s; give seconds, 0 or more, or None"
                ))
            })
        })
        .transpose()
}
