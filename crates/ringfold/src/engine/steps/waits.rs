//! The ranks that a schedule's steps wait for: for errors, not on the data path.

use super::Steps;
use crate::engine::context::Context;
use crate::engine::operation::PreparedOperation;
use crate::schedule::{Action, AwaitedPeers};

impl Steps {
    /// Returns the ranks that the call waits for now.
    pub(super) fn awaited(&self, operation: &PreparedOperation, context: &Context) -> Vec<usize> {
        let mut ranks = Vec::new();
        for channel in 0..self.channels.len() {
            self.pending_peers(channel, &mut ranks);
            ranks.extend(self.absent_peers(channel, operation, context));
        }
        ranks
    }

    fn pending_peers(&self, channel: usize, ranks: &mut Vec<usize>) {
        let steps = &self.plan.channels[channel].steps;
        for flight in &self.channels[channel].flights {
            for (index, step) in steps.iter().enumerate() {
                if let Some(peer) = step.action.message_peer()
                    && flight.is_pending(index as u32)
                {
                    ranks.push(peer as usize);
                }
            }
        }
    }

    /// Returns the peers that the current `Await` or `Collect`, or the next slice, waits for.
    fn absent_peers(
        &self,
        channel: usize,
        operation: &PreparedOperation,
        context: &Context,
    ) -> Vec<usize> {
        let at = &self.channels[channel];
        let begins_at = self.ticks(operation).begin(at.slice);
        if !operation.publishes || at.slice >= operation.slices || at.tick < begins_at {
            return Vec::new();
        }
        let (rank, world_size) = (context.rank, context.world_size);
        let Some(windows) = context.windows.as_ref() else {
            return Vec::new();
        };
        let generation = operation.generation(at.slice);
        let plan = &self.plan.channels[channel];
        let step = plan
            .round_starts
            .get((at.tick - begins_at) as usize)
            .and_then(|start| plan.steps.get((start + at.step) as usize));
        match step.map(|step| step.action) {
            _ if at.slice == at.started => windows.behind(generation),
            Some(Action::Await { peers, phase }) => {
                let is_due = |peer: &usize| match peers {
                    AwaitedPeers::Others => *peer != rank,
                    AwaitedPeers::One(one) => *peer == one as usize,
                };
                let is_absent = |peer: &usize| {
                    let reached = windows.has_reached(*peer, generation, phase, &operation.call);
                    !reached.unwrap_or(false)
                };
                (0..world_size)
                    .filter(is_due)
                    .filter(|peer| is_absent(peer))
                    .collect()
            }
            Some(Action::Collect { .. }) => windows.claimants(generation),
            _ => Vec::new(),
        }
    }
}
