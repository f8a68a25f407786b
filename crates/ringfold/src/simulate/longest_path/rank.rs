//! The pass's state of a rank between two rounds.
//!
//! It is read once in every round, and in a large world from memory each time: rarely needed data
//! is stored elsewhere.

use super::pending::{PendingSteps, Touches, UNKNOWN_PS};
use super::source::Refusal;
use crate::random::SplitMix64;
use crate::simulate::network::model::{Compute, Server};
use crate::simulate::scenario::Scenario;
use crate::testing::delay_spec::Slow;

/// One rank's part in the longest path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOnPath {
    /// When its call returned.
    pub finished_ps: u64,
    /// When it had done its last reduction, if it had any.
    pub reduced_ps: Option<u64>,
    /// Payload that it sent.
    pub sent_bytes: u64,
    /// Messages that it sent.
    pub sent_messages: u64,
}

/// One side of a rank's connection to others.
#[derive(Clone, Copy, Default)]
pub(super) struct Port {
    pub sends_until_ps: u64,
    pub receives_until_ps: u64,
    /// When the last message came that it took.
    pub last_ps: u64,
    /// The sender.
    pub last_from: u32,
}

#[derive(Default)]
pub(super) struct Rank {
    /// When its last step was issued: steps are issued in order.
    now_ps: u64,
    /// To ranks of other hosts, or to all.
    pub port: Port,
    pending: PendingSteps,
    server_until_ps: u64,
    /// When its server was last asked for something.
    asked_ps: u64,
    reductions: u32,
    sent_messages: u32,
    sent_bytes: u64,
    finished_ps: u64,
    reduced_ps: u64,
}

impl Rank {
    pub fn new(begin_ps: u64) -> Rank {
        Rank {
            now_ps: begin_ps,
            finished_ps: begin_ps,
            ..Rank::default()
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

    /// When a step can be issued, which is when all before it that use the same memory are
    /// complete; `None` while that is unknown. The clock advances to that time.
    #[inline(always)]
    pub fn issue(&mut self, touches: &Touches) -> Option<u64> {
        let at_ps = self.pending.wait(touches, self.now_ps)?;
        self.now_ps = at_ps;
        Some(at_ps)
    }

    /// Notes a step that is complete at `done_ps`.
    #[inline(always)]
    pub fn completes(&mut self, touches: &Touches, done_ps: u64) {
        self.finished_ps = self.finished_ps.max(done_ps);
        if done_ps > self.now_ps {
            self.pending.note(touches, done_ps, 0);
        }
    }

    /// Notes receive `receive` of the round.
    #[inline(always)]
    pub fn expects(&mut self, touches: &Touches, receive: u32) {
        self.pending.note(touches, UNKNOWN_PS, receive);
    }

    /// Says when a receive that was expected is complete.
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

    /// The completion time of a reduction of this many bytes requested at `at_ps`.
    #[inline(always)]
    pub fn reduce(
        &mut self,
        rank: usize,
        at_ps: u64,
        bytes: u64,
        costs: &mut Costs<'_>,
    ) -> Result<u64, Refusal> {
        self.reductions += 1;
        let mut duration_ps = costs.compute.reduce_ps + costs.ps_per_byte * bytes;
        if !costs.slow.is_empty() {
            duration_ps += costs.delay_ps(rank, self.reductions);
        }
        let done_ps = self.work(at_ps, duration_ps, costs.compute.server)?;
        self.reduced_ps = self.reduced_ps.max(done_ps);
        Ok(done_ps)
    }

    /// When something is done that takes so long.
    #[inline(always)]
    pub fn work(&mut self, at_ps: u64, duration_ps: u64, server: Server) -> Result<u64, Refusal> {
        if at_ps < self.asked_ps {
            return Err("reductions in another order than the rounds'");
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

impl Port {
    /// When a message has entered, whose first byte arrives at `first_byte_ps`. First come, first
    /// served.
    #[inline(always)]
    pub fn enter(
        &mut self,
        from: u32,
        first_byte_ps: u64,
        receiving_ps: u64,
        gap_ps: u64,
    ) -> Result<u64, Refusal> {
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

/// What computing costs in a call.
pub(super) struct Costs<'a> {
    pub compute: &'a Compute,
    /// γ of the call's elements.
    ps_per_byte: u64,
    slow: Vec<Slow>,
    /// One for each rank, where slow reductions are drawn.
    random: Vec<SplitMix64>,
}

impl<'a> Costs<'a> {
    pub fn new(scenario: &'a Scenario) -> Costs<'a> {
        let compute = &scenario.compute;
        let slow: Vec<Slow> = scenario.slow().copied().collect();
        let streams = 0..scenario.ranks as u64 * u64::from(!slow.is_empty());
        Costs {
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
