//! One channel of a call, and the outcome of an attempt to issue one of its steps.

use super::kept::StepsKept;
use super::progress::ChannelProgress;
use super::ticks::Ticks;
use crate::engine::context::Context;
use crate::engine::operation::PreparedOperation;
use crate::engine::plan::ExecutionPlan;
use crate::memory::Region;
use crate::schedule::Span;
use crate::transport::Posted;

/// One channel of a call, during one attempt.
pub(super) struct Channel<'a> {
    pub number: usize,
    /// The slices before this one may begin: a device has brought their data, if one does.
    pub slices_brought: u32,
    pub ticks: Ticks,
    pub plan: &'a ExecutionPlan,
    pub operation: &'a PreparedOperation,
    pub at: &'a mut ChannelProgress,
    pub context: &'a mut Context,
    pub kept: &'a mut StepsKept,
}

impl Channel<'_> {
    /// Returns the memory of `span` in the current slice.
    pub fn region(&self, span: Span) -> Region {
        self.operation.region(span, self.at.slice)
    }

    /// Returns the window generation of the current slice.
    pub fn generation(&self) -> u64 {
        self.operation.generation(self.at.slice)
    }
}

/// The result of an attempt to issue a step.
pub(super) enum Issue {
    Done,
    Pending,
    Blocked,
    /// A piece of the step is done; the rest does not wait for any rank.
    Begun,
    /// The step cannot be done, which all ranks know alike.
    Refused,
}

impl From<Posted> for Issue {
    fn from(posted: Posted) -> Issue {
        match posted {
            Posted::Done => Issue::Done,
            Posted::Pending => Issue::Pending,
        }
    }
}
