//! The cached plans, and the memory that the last calls by steps leave for the next.

use std::sync::Arc;

use super::exposed::Exposed;
use super::progress::ChannelProgress;
use crate::engine::plan::ExecutionPlan;
use crate::engine::tiny::inline::Inline;
use crate::error::Result;
use crate::memory::Region;
use crate::schedule::Spec;

/// Maximum number of cached plans; the oldest is dropped first. A program has few kinds of calls.
const PLANS_MAX: usize = 256;

/// The state that calls by steps keep for later ones, to avoid allocations.
#[derive(Debug)]
pub struct StepsKept {
    plans: Vec<CachedPlan>,
    /// Payloads received in the heads of slots.
    pub(super) inline: Inline,
    /// The locations of each rank's registered buffers.
    pub(super) exposed: Vec<Exposed>,
    /// The parts of the targets that a piece of a push stores.
    pub(super) targets: Vec<Region>,
    /// Scratch of the reduction loops of a push.
    pub(super) parts: Vec<Region>,
}

/// The key of a plan: all that the plan depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanKey {
    /// The specification of the schedule.
    pub spec: Spec,
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// Number of independent pipelines.
    pub channels: u32,
    /// Maximum number of slices in flight.
    pub slices_in_flight: u32,
}

#[derive(Debug)]
struct CachedPlan {
    key: PlanKey,
    plan: Arc<ExecutionPlan>,
    /// The bookkeeping of the plan's last call.
    spare: Option<Vec<ChannelProgress>>,
}

impl StepsKept {
    /// Creates the initial state among `world_size` ranks.
    pub fn new(world_size: usize) -> StepsKept {
        StepsKept {
            plans: Vec::new(),
            inline: Inline::new(world_size),
            exposed: Vec::new(),
            targets: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Returns the plan of `key`; `announce` is called if the plan is made now.
    pub fn plan(&mut self, key: PlanKey, announce: impl FnOnce()) -> Result<Arc<ExecutionPlan>> {
        if let Some(entry) = self.plans.iter().find(|entry| entry.key == key) {
            return Ok(entry.plan.clone());
        }
        let plan = Arc::new(ExecutionPlan::new(
            key.spec.clone(),
            key.in_place,
            key.channels,
            key.slices_in_flight,
        )?);
        announce();
        if self.plans.len() == PLANS_MAX {
            self.plans.remove(0);
        }
        self.plans.push(CachedPlan {
            key,
            plan: plan.clone(),
            spare: None,
        });
        Ok(plan)
    }

    /// Returns the bookkeeping for a call of `plan`.
    pub(super) fn progress(&mut self, plan: &Arc<ExecutionPlan>) -> Vec<ChannelProgress> {
        match self.entry(plan).and_then(|entry| entry.spare.take()) {
            Some(mut channels) => {
                channels.iter_mut().for_each(ChannelProgress::reset);
                channels
            }
            None => {
                let channels = plan.channels.iter();
                let new = |steps| ChannelProgress::new(steps, plan.slices_in_flight);
                channels.map(|channel| new(channel.steps.len())).collect()
            }
        }
    }

    /// Keeps the bookkeeping of a finished call of `plan`.
    pub(super) fn keep_progress(
        &mut self,
        plan: &Arc<ExecutionPlan>,
        channels: Vec<ChannelProgress>,
    ) {
        if let Some(entry) = self.entry(plan) {
            entry.spare = Some(channels);
        }
    }

    fn entry(&mut self, plan: &Arc<ExecutionPlan>) -> Option<&mut CachedPlan> {
        self.plans
            .iter_mut()
            .find(|entry| Arc::ptr_eq(&entry.plan, plan))
    }
}
