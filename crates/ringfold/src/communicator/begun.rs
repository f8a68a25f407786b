//! Blocking calls in two parts, for callers that hold a lock of their own, such as an
//! interpreter's: most small calls end within the first part, which spins for a few microseconds at
//! most, and need no release of that lock.

use std::sync::Arc;

use super::completion::Completion;
use super::driver::{DriveOutcome, OnWait};
use super::handle::Communicator;
use super::request::Request;
use crate::engine::Job;
use crate::error::Result;

/// A call that has begun.
#[allow(
    clippy::large_enum_variant,
    reason = "a box would cost each call that continues an allocation"
)]
pub enum Begun {
    /// The call is done; the source of a receive.
    Done(Option<usize>),
    /// The call continues in [`Communicator::see_through`].
    UnderWay(BegunCall),
}

/// The rest of a call.
pub struct BegunCall(Rest);

#[allow(clippy::large_enum_variant, reason = "as for `Begun`")]
enum Rest {
    Unsubmitted(Job),
    Submitted(Arc<Completion>),
}

impl Communicator {
    /// Executes `request` like [`run`](Communicator::run), but returns after a few microseconds at
    /// most, without a callback: a call that takes longer is continued by
    /// [`see_through`](Communicator::see_through).
    ///
    /// # Safety
    /// As for `run`, until the call is done. A call under way must be passed to `see_through`.
    #[doc(hidden)]
    pub unsafe fn begin(&self, request: &Request) -> Result<Begun> {
        let job = self.checked_job(request)?;
        let begun = match job.is_tiny() {
            true => self.driver.begin_promptly(&job)?,
            false => None,
        };
        Ok(match begun {
            Some(DriveOutcome::Done(source)) => Begun::Done(source),
            Some(DriveOutcome::UnderWay(completion)) => {
                Begun::UnderWay(BegunCall(Rest::Submitted(completion)))
            }
            None => Begun::UnderWay(BegunCall(Rest::Unsubmitted(job))),
        })
    }

    /// Executes the rest of a call of this communicator, like [`run`](Communicator::run).
    #[doc(hidden)]
    pub fn see_through(&self, call: BegunCall, on_wait: OnWait<'_>) -> Result<Option<usize>> {
        match call.0 {
            Rest::Unsubmitted(job) => self.driver.run(job, on_wait),
            Rest::Submitted(completion) => {
                self.driver.wait(&completion, None, on_wait)?;
                Ok(completion.source())
            }
        }
    }
}
