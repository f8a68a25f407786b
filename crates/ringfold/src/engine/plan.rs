//! A plan: a schedule made ready to run, and kept for the next call of the same kind.
//!
//! All that depends on the schedule alone is computed once: the start of each round, the steps that
//! each step waits for, and the number of each message on its stream.

use std::collections::HashMap;

use crate::error::Result;
use crate::schedule::{Access, Action, AwaitedPeers, Schedule, Spec, Step, dependence};
use crate::types::{Collective, Method};

/// Returns the maximum number of slices of a call in flight, which bounds its scratch memory and
/// its posted messages.
///
/// A call whose data a device moves may have fewer. Over messages, more slices keep a link busy
/// while some wait for their partner. Through published memory, more slices only leave the cache.
pub const fn slices_in_flight(access: Access) -> u32 {
    match access {
        Access::Messages => 8,
        _ => 4,
    }
}

/// A schedule ready to run.
#[derive(Debug)]
pub struct ExecutionPlan {
    /// The schedule; its steps are in `channels`, and only there.
    pub schedule: Schedule,
    /// The steps of each channel.
    pub channels: Vec<ChannelPlan>,
    /// Maximum number of slices in flight.
    pub slices_in_flight: u32,
    /// Whether this rank publishes anything, so that others can see which call it is in.
    pub is_heard: bool,
    /// Whether this rank waits for every other rank, and so sees which call each is in.
    pub hears_all: bool,
    /// Ticks between the starts of consecutive slices: `slices_in_flight * skew >= rounds`, so a
    /// slice ends before the one that takes its place begins.
    pub skew: u32,
}

/// The steps of one channel.
#[derive(Debug)]
pub struct ChannelPlan {
    /// The steps, in the order of issue.
    pub steps: Vec<PlannedStep>,
    /// The dependencies of all steps, see [`ChannelPlan::after`].
    waits: Vec<u32>,
    /// The start of each round in `steps`; one entry more than rounds.
    pub round_starts: Vec<u32>,
}

/// A step with the data that the engine needs to issue it.
#[derive(Debug)]
pub struct PlannedStep {
    /// The action.
    pub action: Action,
    /// The range of this step's dependencies in the channel's `waits`.
    waits: (u32, u32),
    /// The number of this message among those of the slice on its stream, in its direction.
    pub message: u32,
}

impl ExecutionPlan {
    /// Makes the plan of `spec`; `in_place` if input and output are (partly) the same memory.
    pub fn new(
        spec: Spec,
        in_place: bool,
        channels: u32,
        slices_in_flight: u32,
    ) -> Result<ExecutionPlan> {
        let (rank, world_size) = (spec.rank, spec.world_size);
        let mut schedule = Schedule::new(spec)?;
        if channels > 1 {
            schedule = schedule.striped(channels);
        }
        let dependencies = dependence::dependencies(&schedule, in_place);
        let rounds = schedule.rounds;
        let planned = schedule.channels.iter().zip(dependencies);
        let channels = planned
            .map(|(steps, after)| ChannelPlan::new(steps, after, rounds))
            .collect();
        let skew = rounds.div_ceil(slices_in_flight).max(1);
        let actions = || schedule.channels.iter().flatten().map(|step| step.action);
        let awaited = |other: u32| {
            let is_awaited = |action| match action {
                Action::Await {
                    peers: AwaitedPeers::Others,
                    ..
                } => true,
                Action::Await {
                    peers: AwaitedPeers::One(peer),
                    ..
                } => peer == other,
                _ => false,
            };
            other == rank || actions().any(is_awaited)
        };
        let mut plan = ExecutionPlan {
            slices_in_flight,
            is_heard: actions().any(|action| {
                matches!(
                    action,
                    Action::Publish { .. } | Action::GiveBack { .. } | Action::Expose { .. }
                )
            }),
            hears_all: (0..world_size).all(awaited),
            skew,
            channels,
            schedule,
        };
        plan.schedule.channels = Vec::new();
        Ok(plan)
    }

    /// Whether the ranks access each other's registered buffers.
    pub fn is_registered(&self) -> bool {
        self.schedule.spec.access == Access::Registered
    }

    /// Whether `engine::direct` can run the plan: the `direct` all-reduce over published memory.
    pub fn has_direct_loop(&self) -> bool {
        let spec = &self.schedule.spec;
        (spec.collective, spec.method(), spec.access)
            == (Collective::AllReduce, Method::Direct, Access::Staged)
            && self.channels.len() == 1
            && spec.world_size > 1
    }
}

impl ChannelPlan {
    fn new(steps: &[Step], after: Vec<Vec<u32>>, rounds: u32) -> ChannelPlan {
        let mut messages: HashMap<(bool, u32), u32> = HashMap::new();
        let mut number = |action: &Action| {
            let Some(peer) = action.message_peer() else {
                return 0;
            };
            let is_sent = action.sender().is_none();
            let next = messages.entry((is_sent, peer)).or_default();
            *next += 1;
            *next - 1
        };
        let round_starts = (0..=rounds)
            .map(|round| steps.partition_point(|step| step.round < round) as u32)
            .collect();
        let mut waits = Vec::with_capacity(after.iter().map(Vec::len).sum());
        let mut list = |after: &[u32]| {
            let begin = waits.len() as u32;
            waits.extend(after);
            (begin, waits.len() as u32)
        };
        let steps = steps
            .iter()
            .zip(&after)
            .map(|(step, after)| PlannedStep {
                action: step.action,
                waits: list(after),
                message: number(&step.action),
            })
            .collect();
        ChannelPlan {
            steps,
            waits,
            round_starts,
        }
    }

    /// Returns the earlier steps of this channel that must be complete before `step`.
    pub fn after(&self, step: &PlannedStep) -> &[u32] {
        let (begin, end) = step.waits;
        &self.waits[begin as usize..end as usize]
    }
}
