//! State of one rank between two rounds of the pass.
//!
//! The state is read once in every round, and in a large world from memory each time: rarely needed
//! data is stored elsewhere.

use super::pending::{PendingSteps, StepAccesses, UNKNOWN_PS};
use super::source::UnsupportedFeature;
use crate::random::SplitMix64;
use crate::simulate::model::{Compute, Server};
use crate::simulate::scenario::Scenario;
use crate::testing::delay_spec::Slow;

/// Result of one rank on the longest path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOnPath {
    /// Time at which the rank's call returned.
    pub finished_ps: u64,
    /// Completion time of the rank's last reduction, if it had any.
    pub reduced_ps: Option<u64>,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Number of messages sent.
    pub sent_messages: u64,
}

/// A rank's port, in both directions.
#[derive(Clone, Copy, Default)]
pub(super) struct PortTimes {
    pub sends_until_ps: u64,
    pub receives_until_ps: u64,
    /// Arrival time of the first byte of the last message received.
    pub last_ps: u64,
    /// Sender of the last message received.
    pub last_from: u32,
}

#[derive(Default)]
pub(super) struct RankTimes {
    /// Issue time of the last step: steps are issued in order.
    now_ps: u64,
    /// Port to ranks of other hosts, or to all ranks.
    pub port: PortTimes,
    pending: PendingSteps,
    server_until_ps: u64,
    /// Time of the last request to the server.
    asked_ps: u64,
    reductions: u32,
    sent_messages: u32,
    sent_bytes: u64,
    finished_ps: u64,
    reduced_ps: u64,
}

impl RankTimes {
    pub fn new(begin_ps: u64) -> RankTimes {
        RankTimes {
            now_ps: begin_ps,
            finished_ps: begin_ps,
            ..RankTimes::default()
        }
    }

    pub fn swept(&self) -> RankOnPath {
        RankOnPath {
            finished_ps: self.finished_ps.max(self.now_ps),
            reduced_ps: (self.reductions > 0).then_some(self.reduced_ps),
            sent_bytes: self.sent_bytes,
            sent_messages: self.sent_messages.into(),
        }
    }

    /// Returns when a step can be issued: once all earlier steps on the same memory are complete.
    /// Returns `None` while that time is unknown. Advances the clock to that time.
    #[inline(always)]
    pub fn issue(&mut self, touches: &StepAccesses) -> Option<u64> {
        let at_ps = self.pending.wait(touches, self.now_ps)?;
        self.now_ps = at_ps;
        Some(at_ps)
    }

    /// Records a step that is complete at `done_ps`.
    #[inline(always)]
    pub fn completes(&mut self, touches: &StepAccesses, done_ps: u64) {
        self.finished_ps = self.finished_ps.max(done_ps);
        if done_ps > self.now_ps {
            self.pending.note(touches, done_ps, 0);
        }
    }

    /// Records receive `receive` of the round, whose end is unknown.
    #[inline(always)]
    pub fn expects(&mut self, touches: &StepAccesses, receive: u32) {
        self.pending.note(touches, UNKNOWN_PS, receive);
    }

    /// Sets the completion time of an expected receive.
    #[inline(always)]
    pub fn received(&mut self, receive: u32, done_ps: u64) {
        self.pending.complete(receive, done_ps);
        self.finished_ps = self.finished_ps.max(done_ps);
    }

    #[inline(always)]
    pub fn counts_message(&mut self, bytes: u64) {
        self.sent_messages += 1;
        self.sent_bytes += bytes;
    }

    /// Returns the completion time of a reduction of `bytes` bytes requested at `at_ps`.
    #[inline(always)]
    pub fn reduce(
        &mut self,
        rank: usize,
        at_ps: u64,
        bytes: u64,
        costs: &mut ComputeCosts<'_>,
    ) -> Result<u64, UnsupportedFeature> {
        self.reductions += 1;
        let mut duration_ps = costs.compute.reduce_ps + costs.ps_per_byte * bytes;
        if !costs.slow.is_empty() {
            duration_ps += costs.delay_ps(rank, self.reductions);
        }
        let done_ps = self.work(at_ps, duration_ps, costs.compute.server)?;
        self.reduced_ps = self.reduced_ps.max(done_ps);
        Ok(done_ps)
    }

    /// Returns the completion time of work of `duration_ps` requested at `at_ps`.
    #[inline(always)]
    pub fn work(
        &mut self,
        at_ps: u64,
        duration_ps: u64,
        server: Server,
    ) -> Result<u64, UnsupportedFeature> {
        if at_ps < self.asked_ps {
            return Err("reductions out of round order");
        }
        self.asked_ps = at_ps;
        let begin_ps = match server {
            Server::Parallel => at_ps,
            Server::Serial => at_ps.max(self.server_until_ps),
        };
        self.server_until_ps = begin_ps + duration_ps;
        Ok(begin_ps + duration_ps)
    }
}

impl PortTimes {
    /// Returns when a message whose first byte arrives at `first_byte_ps` has entered: first come,
    /// first served.
    #[inline(always)]
    pub fn enter(
        &mut self,
        from: u32,
        first_byte_ps: u64,
        receiving_ps: u64,
        gap_ps: u64,
    ) -> Result<u64, UnsupportedFeature> {
        let takes_ps = receiving_ps + gap_ps;
        let is_tie = first_byte_ps == self.last_ps
            && from != self.last_from
            && takes_ps > 0
            && self.last_ps > 0;
        if first_byte_ps < self.last_ps || is_tie {
            return Err("messages that contend for a port");
        }
        (self.last_ps, self.last_from) = (first_byte_ps, from);
        let begin_ps = first_byte_ps.max(self.receives_until_ps);
        self.receives_until_ps = begin_ps + takes_ps;
        Ok(begin_ps + receiving_ps)
    }
}

/// Cost of computing in a call.
pub(super) struct ComputeCosts<'a> {
    pub compute: &'a Compute,
    /// γ of the call's elements.
    ps_per_byte: u64,
    slow: Vec<Slow>,
    /// One generator per rank; empty if no reductions are slow.
    random: Vec<SplitMix64>,
}

impl<'a> ComputeCosts<'a> {
    pub fn new(scenario: &'a Scenario) -> ComputeCosts<'a> {
        let compute = &scenario.compute;
        let slow: Vec<Slow> = scenario.slow().copied().collect();
        let streams = 0..scenario.ranks as u64 * u64::from(!slow.is_empty());
        ComputeCosts {
            compute,
            ps_per_byte: compute.reduction_ps(scenario.dtype, 1) - compute.reduce_ps,
            slow,
            random: streams
                .map(|rank| SplitMix64::stream(scenario.seed, rank))
                .collect(),
        }
    }

    fn delay_ps(&mut self, rank: usize, reduction: u32) -> u64 {
        let random = &mut self.random[rank];
        let slow = self.slow.iter();
        slow.map(|slow| slow.delay_ps(rank, reduction, random))
            .sum()
    }
}
