//! What an operation waits for, in numbers and words: for errors, not on the data path.

use super::{Context, Operation};
use crate::error::{Ranks, Site};
use crate::schedule::{Action, Peers};

/// What a call is doing, in words: for whom it waits, and how far it has come.
pub fn phase(waiting_for: &[usize], slice: u32, slices: u32) -> String {
    match waiting_for {
        [] => format!("slice {slice} of {slices}"),
        ranks => format!("waiting for {}, slice {slice} of {slices}", Ranks(ranks)),
    }
}

impl Operation {
    /// The ranks that this operation waits for now.
    pub fn waiting_for(&self, context: &mut Context<'_>) -> Vec<usize> {
        let mut ranks = match &self.late_merge {
            Some(run) => run.waiting_for(),
            None => Vec::new(),
        };
        for channel in 0..self.channels.len() {
            self.pending_peers(channel, &mut ranks);
            ranks.extend(self.absent_peers(channel, context));
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Where the operation stands, in words.
    pub fn site(&self, context: &mut Context<'_>) -> Site {
        let ranks = self.waiting_for(context);
        let slice = self.channels.iter().map(|at| at.retired).min().unwrap_or(0);
        Site {
            call: self.call,
            phase: phase(&ranks, slice + 1, self.slices),
        }
    }

    fn pending_peers(&self, channel: usize, ranks: &mut Vec<usize>) {
        let steps = &self.plan.channels[channel].steps;
        for flight in &self.channels[channel].flights {
            for (index, step) in steps
                .iter()
                .enumerate()
                .filter(|(index, _)| flight.is_pending(*index as u32))
            {
                let _ = index;
                if let Action::Send { peer, .. }
                | Action::Recv { peer, .. }
                | Action::RecvReduce { peer, .. } = step.action
                {
                    ranks.push(peer as usize);
                }
            }
        }
    }

    /// The peers that the present `Await`, or the beginning of the next slice, waits for.
    fn absent_peers(&self, channel: usize, context: &mut Context<'_>) -> Vec<usize> {
        if let Some(at) = &self.straight {
            return self.straight_absent(at, context);
        }
        let at = &self.channels[channel];
        if !self.publishes()
            || at.slice >= self.slices
            || at.tick < at.slice as u64 * self.plan.skew as u64
        {
            return Vec::new();
        }
        let (rank, world_size) = (context.rank, context.world_size);
        let Some(windows) = context.windows.as_deref() else {
            return Vec::new();
        };
        let generation = self.first_generation + at.slice as u64;
        let round = (at.tick - at.slice as u64 * self.plan.skew as u64) as usize;
        let plan = &self.plan.channels[channel];
        let step = plan
            .round_starts
            .get(round)
            .and_then(|start| plan.steps.get((start + at.step) as usize));
        match step.map(|step| step.action) {
            _ if at.slice == at.started => windows.behind(generation),
            Some(Action::Await { peers, phase }) => {
                let due = |peer: &usize| match peers {
                    Peers::Others => *peer != rank,
                    Peers::One(one) => *peer == one as usize,
                };
                let absent = |peer: &usize| {
                    !windows
                        .has_reached(*peer, generation, phase, &self.call)
                        .unwrap_or(false)
                };
                (0..world_size)
                    .filter(due)
                    .filter(|peer| absent(peer))
                    .collect()
            }
            Some(Action::Collect { .. } | Action::AwaitServed { .. }) => {
                windows.claimants(generation)
            }
            _ => Vec::new(),
        }
    }
}
