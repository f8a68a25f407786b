//! The cached plans, and the bookkeeping that their last calls leave for the next.

use std::sync::Arc;

use super::plan::ExecutionPlan;
use super::steps::ChannelProgress;
use crate::error::Result;
use crate::schedule::Spec;

/// Maximum number of cached plans; the oldest is dropped first. A program has few kinds of calls.
const PLANS_MAX: usize = 256;

/// The plans of a rank.
#[derive(Debug, Default)]
pub struct Plans(Vec<CachedPlan>);

/// The key of a plan: all that the plan depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanKey {
    /// The specification of the schedule.
    pub spec: Spec,
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// Number of independent pipelines.
    pub channels: u32,
}

#[derive(Debug)]
struct CachedPlan {
    key: PlanKey,
    plan: Arc<ExecutionPlan>,
    /// The bookkeeping of the plan's last call.
    spare: Option<Vec<ChannelProgress>>,
}

impl Plans {
    /// Returns the plan of `key`; `announce` is called if the plan is made now.
    pub fn get(&mut self, key: PlanKey, announce: impl FnOnce()) -> Result<Arc<ExecutionPlan>> {
        if let Some(entry) = self.0.iter().find(|entry| entry.key == key) {
            return Ok(entry.plan.clone());
        }
        let plan = Arc::new(ExecutionPlan::new(
            key.spec.clone(),
            key.in_place,
            key.channels,
        )?);
        announce();
        if self.0.len() == PLANS_MAX {
            self.0.remove(0);
        }
        self.0.push(CachedPlan {
            key,
            plan: plan.clone(),
            spare: None,
        });
        Ok(plan)
    }

    /// Returns the bookkeeping for a call of `plan`.
    pub fn progress(&mut self, plan: &Arc<ExecutionPlan>) -> Vec<ChannelProgress> {
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
    pub fn keep(&mut self, plan: &Arc<ExecutionPlan>, channels: Vec<ChannelProgress>) {
        if let Some(entry) = self.entry(plan) {
            entry.spare = Some(channels);
        }
    }

    fn entry(&mut self, plan: &Arc<ExecutionPlan>) -> Option<&mut CachedPlan> {
        self.0
            .iter_mut()
            .find(|entry| Arc::ptr_eq(&entry.plan, plan))
    }
}
