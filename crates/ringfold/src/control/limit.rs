//! Time limits of the steps that connect ranks: a deadline, and a check whether waiting has become
//! pointless.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use super::poll::remaining;
use crate::error::{Error, Result};

/// Check that returns an error if waiting has become pointless: the communicator's verdict, or the
/// caller's cancellation.
pub type Cancelled<'a> = &'a (dyn Fn() -> Option<Error> + Sync);

/// Interval at which a wait checks whether it still makes sense.
pub const GLANCE: Duration = Duration::from_millis(50);

/// The end of a wait: a deadline and, unless made from a bare deadline, a check for cancellation.
#[derive(Clone, Copy)]
pub struct Limit<'a> {
    deadline: Instant,
    cancelled: Option<Cancelled<'a>>,
}

impl From<Instant> for Limit<'_> {
    fn from(deadline: Instant) -> Self {
        Limit {
            deadline,
            cancelled: None,
        }
    }
}

impl fmt::Debug for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limit({:?})", self.deadline)
    }
}

impl<'a> Limit<'a> {
    /// Creates a limit that ends at `deadline`, or once `cancelled` returns an error.
    pub fn new(deadline: Instant, cancelled: Cancelled<'a>) -> Limit<'a> {
        Limit {
            deadline,
            cancelled: Some(cancelled),
        }
    }

    /// Returns the same limit, but at most `span` from now.
    pub fn within(self, span: Duration) -> Limit<'a> {
        Limit {
            deadline: self.deadline.min(Instant::now() + span),
            ..self
        }
    }

    /// Returns the same limit, extended by `span`.
    pub fn extended(self, span: Duration) -> Limit<'a> {
        Limit {
            deadline: self.deadline + span,
            ..self
        }
    }

    /// Returns the deadline.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        remaining(self.deadline).is_zero()
    }

    /// Fails with the error that makes waiting pointless, if any.
    pub fn check(&self) -> Result<()> {
        match self.cancelled.and_then(|cancelled| cancelled()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Returns the time until which a wait may last before the next check.
    pub fn next_look(&self) -> Instant {
        match self.cancelled {
            Some(_) => self.deadline.min(Instant::now() + GLANCE),
            None => self.deadline,
        }
    }

    /// Sleeps for `span`, or until the limit.
    pub fn pause(&self, span: Duration) -> Result<()> {
        let whole = self.within(span);
        loop {
            self.check()?;
            let left = remaining(whole.next_look());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left);
        }
    }

    /// Calls `wait` until it returns true; its argument is the time until which it may wait.
    pub(super) fn wait(&self, mut wait: impl FnMut(Instant) -> io::Result<bool>) -> io::Result<()> {
        loop {
            // `Error::system` recovers our error from the `io::Error`.
            self.check().map_err(io::Error::other)?;
            if wait(self.next_look())? {
                return Ok(());
            }
            if self.is_over() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}
