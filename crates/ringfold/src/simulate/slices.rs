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
        is_refused || self.network.world().is_due(rank, member.host_calls)
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

    /// Does what follows a host call of a slice: the rank combines its share, or its device goes
    /// on.
    pub fn end_host_call(&mut self, rank: usize) {
        let call = self.members[rank].host_calls;
        self.members[rank].host_calls += 1;
        let Some(staged) = &self.members[rank].staged else {
            return;
        };
        let program = staged.program();
        let releases = program.releases_behind(call);
        let Some((slice, share)) = program.share_behind(call) else {
            if releases {
                self.network.world().release(rank);
            }
            return;
        };
        let slot = |rank: usize, slice| self.slot(rank, slice);
        staged.combine(slice, &share, &slot, self.scenario.ranks);
        let bytes = share.at.len() as u64;
        let mut world = self.network.world();
        world.combine_share(rank as u32, (slice, bytes), releases);
    }
}
