//! The table of executors: the only place that knows all of them.
//!
//! | executor | carries out |
//! |---|---|
//! | [`Tiny`] | calls that fit one published slot, written out: latency is measured with these |
//! | [`Direct`] | the `direct` all-reduce over published memory, as one loop over slices |
//! | [`Steps`] | any schedule, step by step |
//! | [`LateRing`] | a ring over messages that bypasses stragglers |
//! | [`Gated`] | calls whose data devices move |
//!
//! The way alone, and whether helper threads share the call, select the executor, so a measurement
//! by name measures what a tuned call gets.

use std::sync::Arc;

use super::Job;
use super::context::Context;
use super::direct::Direct;
use super::executor::Executor;
use super::gated::Gated;
use super::late_ring::{LateMergeState, LateRing};
use super::operation::PreparedOperation;
use super::plan::ExecutionPlan;
use super::steps::{Steps, StepsKept};
use super::tiny::Tiny;
use crate::error::Result;

/// The executor of a call, with its progress.
#[derive(Debug)]
pub enum AnyExecutor {
    /// A call of one published slice.
    Tiny(Tiny),
    /// The `direct` all-reduce over published memory.
    Direct(Direct),
    /// Any schedule.
    Steps(Steps),
    /// A ring that bypasses stragglers.
    LateRing(Box<LateRing>),
    /// A call whose data devices move.
    Gated(Gated),
}

/// The state that executors keep from one call to the next, to avoid allocations.
#[derive(Debug)]
pub struct Kept {
    /// The state of calls by steps.
    pub steps: StepsKept,
    /// The state of late-merge calls, if the communicator has them.
    pub late_merge: Option<Box<LateMergeState>>,
}

impl Kept {
    /// Creates the initial state among `world_size` ranks.
    pub fn new(world_size: usize) -> Kept {
        Kept {
            steps: StepsKept::new(world_size),
            late_merge: None,
        }
    }

    /// Returns the mark of the policy by which `job` bypasses slow ranks, if there is one.
    pub fn straggler_policy(&self, job: &Job, world_size: usize) -> Option<u32> {
        let state = self.late_merge.as_ref()?;
        LateMergeState::serves(job, world_size).then(|| state.policy.mark())
    }

    fn late_merge(&mut self) -> &mut LateMergeState {
        let state = self.late_merge.as_deref_mut();
        state.expect("a late-merge call was prepared with it")
    }
}

impl AnyExecutor {
    /// Creates the executor of a call that bypasses slow ranks.
    pub fn late_ring(
        operation: &PreparedOperation,
        kept: &mut Kept,
        context: &Context,
    ) -> Result<AnyExecutor> {
        let (rank, world_size) = (context.rank, context.world_size);
        let ring = kept.late_merge().ring(operation, rank, world_size)?;
        Ok(AnyExecutor::LateRing(ring))
    }

    /// Creates the executor that suits `plan`.
    pub fn planned(plan: Arc<ExecutionPlan>, is_divided: bool, kept: &mut Kept) -> AnyExecutor {
        // Steps can be divided among threads; the blocks of the direct loop are too small.
        if plan.has_direct_loop() && !is_divided {
            return AnyExecutor::Direct(Direct::default());
        }
        AnyExecutor::Steps(kept.steps.begin(plan))
    }

    /// Does all work that is ready; returns whether there was any.
    #[inline]
    pub fn advance(
        &mut self,
        operation: &PreparedOperation,
        context: &mut Context,
        kept: &mut Kept,
    ) -> Result<bool> {
        match self {
            AnyExecutor::Tiny(tiny) => tiny.advance(operation, context),
            AnyExecutor::Direct(direct) => direct.advance(operation, context),
            AnyExecutor::Steps(steps) => steps.advance(operation, context, &mut kept.steps),
            AnyExecutor::LateRing(ring) => ring.advance(operation, context, kept.late_merge()),
            AnyExecutor::Gated(gated) => gated.advance(operation, context),
        }
    }

    /// Keeps the state that the next call of the same kind can reuse.
    pub fn keep(self, kept: &mut Kept) {
        match self {
            AnyExecutor::Steps(steps) => kept.steps.keep(steps),
            AnyExecutor::LateRing(ring) => {
                if let Some(state) = &mut kept.late_merge {
                    state.keep(ring);
                }
            }
            AnyExecutor::Tiny(_) | AnyExecutor::Direct(_) | AnyExecutor::Gated(_) => {}
        }
    }

    /// Returns the interface of the executor.
    pub fn get(&self) -> &dyn Executor {
        match self {
            AnyExecutor::Tiny(tiny) => tiny,
            AnyExecutor::Direct(direct) => direct,
            AnyExecutor::Steps(steps) => steps,
            AnyExecutor::LateRing(ring) => ring.as_ref(),
            AnyExecutor::Gated(gated) => gated,
        }
    }

    /// Returns the interface of the executor, to change its progress.
    pub fn get_mut(&mut self) -> &mut dyn Executor {
        match self {
            AnyExecutor::Tiny(tiny) => tiny,
            AnyExecutor::Direct(direct) => direct,
            AnyExecutor::Steps(steps) => steps,
            AnyExecutor::LateRing(ring) => ring.as_mut(),
            AnyExecutor::Gated(gated) => gated,
        }
    }
}
