//! The plans that were made, and what their last calls leave for the next.

use std::sync::Arc;

use super::plan::Plan;
use super::steps::ChannelProgress;
use crate::error::Result;
use crate::schedule::Spec;

/// Plans kept, at most; the oldest goes first. A program has few kinds of calls.
const PLANS_MAX: usize = 256;

/// The plans of a rank.
#[derive(Debug, Default)]
pub struct Plans(Vec<Entry>);

/// What a plan depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanKey {
    /// The schedule.
    pub spec: Spec,
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// Independent pipelines.
    pub channels: u32,
}

#[derive(Debug)]
struct Entry {
    key: PlanKey,
    plan: Arc<Plan>,
    /// The bookkeeping of the plan's last call.
    spare: Option<Vec<ChannelProgress>>,
}

impl Plans {
    /// The plan of `key`; `announce` is called when it is made.
    pub fn get(&mut self, key: PlanKey, announce: impl FnOnce()) -> Result<Arc<Plan>> {
        if let Some(entry) = self.0.iter().find(|entry| entry.key == key) {
            return Ok(entry.plan.clone());
        }
        let plan = Arc::new(Plan::new(key.spec.clone(), key.in_place, key.channels)?);
        announce();
        if self.0.len() == PLANS_MAX {
            self.0.remove(0);
        }
        self.0.push(Entry {
            key,
            plan: plan.clone(),
            spare: None,
        });
        Ok(plan)
    }

    /// Bookkeeping for a call that goes by `plan`.
    pub fn progress(&mut self, plan: &Arc<Plan>) -> Vec<ChannelProgress> {
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

    /// Keeps the bookkeeping of a call that went by `plan`.
    pub fn keep(&mut self, plan: &Arc<Plan>, channels: Vec<ChannelProgress>) {
        if let Some(entry) = self.entry(plan) {
            entry.spare = Some(channels);
        }
    }

    fn entry(&mut self, plan: &Arc<Plan>) -> Option<&mut Entry> {
        self.0
            .iter_mut()
            .find(|entry| Arc::ptr_eq(&entry.plan, plan))
    }
}
