//! How long a step of bringing ranks together may wait: until its deadline, or until waiting has
//! become pointless.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use super::poll::remaining;
use crate::error::{Error, Result};

/// Finds out whether waiting has become pointless: by the communicator's verdict, or because the
/// caller gave up.
pub type Cancelled<'a> = &'a (dyn Fn() -> Option<Error> + Sync);

/// How often waiting is interrupted to ask whether it still makes sense.
pub const GLANCE: Duration = Duration::from_millis(50);

/// The end of a wait. A bare deadline is one that nothing but time brings about.
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
    /// Until `deadline`, or until `cancelled` gives an error.
    pub fn new(deadline: Instant, cancelled: Cancelled<'a>) -> Limit<'a> {
        Limit {
            deadline,
            cancelled: Some(cancelled),
        }
    }

    /// The same, and no longer than `span` from now.
    pub fn within(self, span: Duration) -> Limit<'a> {
        Limit {
            deadline: self.deadline.min(Instant::now() + span),
            ..self
        }
    }

    /// The same, and `span` longer.
    pub fn extended(self, span: Duration) -> Limit<'a> {
        Limit {
            deadline: self.deadline + span,
            ..self
        }
    }

    /// The deadline.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        remaining(self.deadline).is_zero()
    }

    /// The error that makes waiting pointless, if there is one.
    pub fn check(&self) -> Result<()> {
        match self.cancelled.and_then(|cancelled| cancelled()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Until when a wait may last before it asks again.
    pub fn next_look(&self) -> Instant {
        match self.cancelled {
            Some(_) => self.deadline.min(Instant::now() + GLANCE),
            None => self.deadline,
        }
    }

    /// Sleeps for `span` or until the limit.
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

    /// Waits with `wait`, which gets a time until which it may last and says whether it has got
    /// what it waits for.
    pub(super) fn wait(&self, mut wait: impl FnMut(Instant) -> io::Result<bool>) -> io::Result<()> {
        loop {
            // Comes out again where the wait's error becomes one of ours.
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
