//! The ranks' calls for slices of data on devices: when each is due, and what follows it.

use super::run::{Item, Simulation};
use crate::memory::Region;

impl Simulation {
    /// Moves the data of device copies that are done.
    pub fn move_copied(&mut self) {
        let copied = std::mem::take(&mut self.network.world().lanes.copied);
        for (rank, step) in copied {
            let member = &self.members[rank];
            if let (Some(staged), false) = (&member.staged, member.has_ended()) {
                let buffers = &member.buffers;
                let slot = |rank: usize, slice| self.slot(rank, slice);
                staged.copy(step, buffers.input(), buffers.output(), &slot);
            }
        }
    }

    /// The slot of a slice of `rank`, with devices.
    fn slot(&self, rank: usize, slice: u32) -> Option<Region> {
        let staged = self.members[rank].staged.as_ref();
        staged.map(|staged| staged.slot(slice))
    }

    /// Whether a rank's next call may be made: with devices, when the data of its slice is there.
    pub fn is_due(&self, rank: usize) -> bool {
        let member = &self.members[rank];
        let is_refused = member.refusal.is_some() && !member.jobs.is_empty();
        // The engine itself waits for what its device brings.
        let is_gated = member.jobs.front().is_some_and(|job| job.gate.is_some());
        is_refused || is_gated || self.network.world().is_due(rank, member.host_calls)
    }

    /// Has a rank make its next call of a slice, or end behind the last, when its device has done
    /// what comes before that.
    pub fn go_on_with_slices(&mut self, rank: usize) {
        if !self.is_due(rank) {
            return;
        }
        let member = &self.members[rank];
        match member.jobs.is_empty() {
            true => self.end(rank, Ok(())),
            false => self.plan(self.now, Item::Begin(rank)),
        }
    }

    /// Does what follows a call of the host's: after a barrier of a direct slice, the rank
    /// combines its share, or its device may take the slice.
    pub fn end_host_call(&mut self, rank: usize) {
        let member = &self.members[rank];
        let (Some(staged), call) = (&member.staged, member.host_calls) else {
            return;
        };
        let program = staged.program();
        if !program.is_direct() {
            self.members[rank].host_calls = program.host_calls();
            return;
        }
        let (releases, share) = (program.releases_behind(call), program.share_behind(call));
        let slot = |rank: usize, slice| self.slot(rank, slice);
        let share = share.map(|(slice, share)| {
            staged.combine(slice, &share, &slot, self.scenario.ranks);
            (slice, share.at.len() as u64)
        });
        self.members[rank].host_calls += 1;
        let mut world = self.network.world();
        match share {
            Some(share) => world.combine_share(rank as u32, share, releases),
            None if releases => world.release(rank),
            None => {}
        }
    }
}
