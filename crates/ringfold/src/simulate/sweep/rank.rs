//! What a sweep knows of a rank between two rounds.

use super::super::{Compute, Server, Slow};
use super::{SweptRank, unsupported};
use crate::error::Result;
use crate::random::SplitMix64;
use crate::schedule::{Action, Buffer, Span};
use crate::types::DType;

/// The end of a receive whose message was not looked at yet.
const UNKNOWN_PS: u64 = u64::MAX;

/// Something that a rank does to its memory until it is complete.
#[derive(Clone, Copy)]
struct Pending {
    done_ps: u64,
    first: u32,
    len: u32,
    /// Which receive of the round, where the end is not known.
    receive: u32,
    buffer: Buffer,
    writes: bool,
}

/// One side of a rank's connection to others.
#[derive(Clone, Copy, Default)]
pub(super) struct Port {
    pub sends_until_ps: u64,
    pub receives_until_ps: u64,
    /// When the last message came that it took.
    pub last_ps: u64,
    /// Who sent it.
    pub last_from: u32,
}

pub(super) struct Rank {
    /// When its last step was issued: steps are issued in order.
    pub now_ps: u64,
    pub ports: [Port; 2],
    pending: Vec<Pending>,
    server_until_ps: u64,
    /// When its server was last asked for something.
    asked_ps: u64,
    random: SplitMix64,
    reductions: u32,
    /// How many times as long a byte takes at its port.
    pub port_factor: f64,
    pub swept: SweptRank,
}

impl Rank {
    pub fn new(rank: usize, begin_ps: u64, seed: u64) -> Rank {
        Rank {
            now_ps: begin_ps,
            ports: [Port::default(); 2],
            pending: Vec::with_capacity(4),
            server_until_ps: 0,
            asked_ps: 0,
            random: SplitMix64::stream(seed, rank as u64),
            reductions: 0,
            port_factor: 1.0,
            swept: SweptRank {
                finished_ps: begin_ps,
                reduced_ps: None,
                sent_bytes: 0,
                sent_messages: 0,
            },
        }
    }

    /// When a step can be issued, which is when all before it that touch the same memory are complete; `None` while that is
    /// not known. The clock moves there.
    pub fn issue(&mut self, action: &Action) -> Option<u64> {
        let mut at_ps = self.now_ps;
        for (span, writes) in accesses(action) {
            for pending in &self.pending {
                let meets = pending.buffer == span.buffer
                    && pending.first < span.first + span.len
                    && span.first < pending.first + pending.len;
                if meets && (writes || pending.writes) {
                    if pending.done_ps == UNKNOWN_PS {
                        return None;
                    }
                    at_ps = at_ps.max(pending.done_ps);
                }
            }
        }
        self.now_ps = at_ps;
        self.swept.finished_ps = self.swept.finished_ps.max(at_ps);
        self.pending.retain(|pending| pending.done_ps > at_ps);
        Some(at_ps)
    }

    /// Notes a step that is complete at `done_ps`.
    pub fn completes(&mut self, action: &Action, done_ps: u64) {
        self.note(action, done_ps, 0);
        self.swept.finished_ps = self.swept.finished_ps.max(done_ps);
    }

    /// Notes receive `receive` of the round.
    pub fn expects(&mut self, action: &Action, receive: u32) {
        self.note(action, UNKNOWN_PS, receive);
    }

    fn note(&mut self, action: &Action, done_ps: u64, receive: u32) {
        if done_ps <= self.now_ps {
            return;
        }
        for (span, writes) in accesses(action) {
            self.pending.push(Pending {
                done_ps,
                first: span.first,
                len: span.len,
                receive,
                buffer: span.buffer,
                writes,
            });
        }
    }

    /// Says when a receive that was expected is complete.
    pub fn received(&mut self, receive: u32, done_ps: u64) {
        for pending in &mut self.pending {
            if pending.done_ps == UNKNOWN_PS && pending.receive == receive {
                pending.done_ps = done_ps;
            }
        }
        self.swept.finished_ps = self.swept.finished_ps.max(done_ps);
    }

    /// When a reduction is done that is asked for at `at_ps`.
    pub fn reduce(
        &mut self,
        rank: usize,
        at_ps: u64,
        bytes: u64,
        costs: &Costs<'_>,
    ) -> Result<u64> {
        self.reductions += 1;
        let mut duration_ps = costs.reduction_ps(bytes);
        for slow in &costs.slow {
            duration_ps += slow.delay_ps(rank, self.reductions, &mut self.random);
        }
        let done_ps = self.work(at_ps, duration_ps, costs.compute.server)?;
        self.swept.reduced_ps = self.swept.reduced_ps.max(Some(done_ps));
        Ok(done_ps)
    }

    /// When something is done that takes so long.
    pub fn work(&mut self, at_ps: u64, duration_ps: u64, server: Server) -> Result<u64> {
        if at_ps < self.asked_ps {
            return Err(unsupported("reductions in another order than the rounds'"));
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

/// What computing costs in a call.
pub(super) struct Costs<'a> {
    pub compute: &'a Compute,
    pub dtype: DType,
    pub slow: Vec<Slow>,
}

impl Costs<'_> {
    pub fn reduction_ps(&self, bytes: u64) -> u64 {
        self.compute.reduction_ps(self.dtype, bytes)
    }
}

/// What an action reads and writes of memory that is ever written: out of place the input is not.
fn accesses(action: &Action) -> impl Iterator<Item = (Span, bool)> {
    let reads = action.reads().into_iter().flatten();
    let reads = reads.filter(|span| span.buffer != Buffer::Input);
    let reads = reads.map(|span| (span, false));
    reads.chain(action.writes().map(|span| (span, true)))
}
