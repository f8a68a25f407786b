//! A collective call under way: the operation, its executor, and the call's deadline.

use super::Job;
use super::context::Context;
use super::executor::Executor;
use super::executors::{AnyExecutor, Kept};
use super::operation::PreparedOperation;
use crate::error::{Error, Ranks, Result, Site};
use crate::transport::Time;
use crate::wait::WordWait;

/// A collective call under way.
#[derive(Debug)]
pub struct Running {
    /// The data that all executors share.
    pub operation: PreparedOperation,
    /// The executor of the call.
    pub executor: AnyExecutor,
    /// The job to run instead if not all ranks' memory can be reached.
    fallback: Option<Job>,
}

impl Running {
    /// Creates a call that has not begun.
    pub fn new(operation: PreparedOperation, executor: AnyExecutor) -> Running {
        Running {
            operation,
            executor,
            fallback: None,
        }
    }

    /// Sets the job to run instead if not all ranks' memory can be reached.
    pub fn or(self, fallback: Option<Job>) -> Running {
        Running { fallback, ..self }
    }

    /// Does all work that is ready; returns whether there was any.
    #[inline]
    pub fn advance(&mut self, context: &mut Context, kept: &mut Kept) -> Result<bool> {
        self.executor.advance(&self.operation, context, kept)
    }

    /// Returns the progress of the call.
    pub fn progress(&self) -> &dyn Executor {
        self.executor.get()
    }

    /// Whether the call is done.
    pub fn is_done(&self) -> bool {
        self.progress().slices_done() == self.operation.slices
    }

    /// Whether this rank is in the call as far as its peers are concerned.
    pub fn has_begun(&self) -> bool {
        self.progress().has_begun(&self.operation)
    }

    /// Returns how the call waits if it waits for words of devices, which wake no thread.
    pub fn words(&self) -> Option<WordWait> {
        self.progress().words(&self.operation)
    }

    /// Takes the fallback if the executor found that not all ranks' memory can be reached.
    pub fn take_fallback(&mut self) -> Option<Job> {
        let executor = &self.executor;
        self.fallback.take_if(|_| executor.get().fell_back())
    }

    /// Returns the ranks that the call waits for now.
    pub fn waiting_for(&self, context: &Context) -> Vec<usize> {
        let mut ranks = self.progress().waiting_for(&self.operation, context);
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Describes the progress of the call, for errors.
    pub fn site(&self, context: &Context) -> Site {
        let (slice, slices) = (self.progress().slices_done() + 1, self.operation.slices);
        let phase = match &self.waiting_for(context)[..] {
            [] => format!("slice {slice} of {slices}"),
            ranks => format!("waiting for {}, slice {slice} of {slices}", Ranks(ranks)),
        };
        Site {
            call: self.operation.call,
            phase,
        }
    }

    /// Sets the deadline if there is none yet and the call is timed; returns `Timeout` if the
    /// deadline has passed.
    pub fn check_deadline(&mut self, now: Time, context: &Context) -> Result<()> {
        if !self.progress().is_timed(&self.operation, context) {
            self.operation.deadline = None;
            return Ok(());
        }
        let timeout = self.operation.timeout;
        let deadline = self.operation.deadline.get_or_insert(now.after(timeout));
        if now < *deadline {
            return Ok(());
        }
        Err(Error::Timeout {
            waiting_for: self.waiting_for(context),
            after_ms: timeout.as_millis() as u64,
            site: Some(self.site(context)),
        })
    }
}
