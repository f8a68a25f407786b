//! Memory accesses of a rank's incomplete steps, which later steps may have to wait for.

use crate::schedule::{Action, Buffer, Span};

/// Placeholder for an end time that is not yet known.
pub(super) const UNKNOWN_PS: u64 = u64::MAX;

/// Number of accesses stored inline with the rank; a ring never has more.
const NEAR: usize = 4;

/// Flag that distinguishes chunks of the output from those of scratch memory; out of place, the
/// input is never written.
const OUTPUT: u32 = 1 << 31;

/// Flag of the places of copies.
const LEAVES: u32 = 1 << 30;

/// Range of chunks that a step reads or writes; from 0 to 0 if there are none.
#[derive(Clone, Copy, Default)]
struct ChunkRange {
    begin: u32,
    end: u32,
}

/// The empty range.
const NONE: ChunkRange = ChunkRange { begin: 0, end: 0 };

impl ChunkRange {
    #[inline(always)]
    fn of(span: Span) -> ChunkRange {
        let mark = match span.buffer {
            Buffer::Input => return ChunkRange::default(),
            Buffer::Scratch => 0,
            Buffer::Output => OUTPUT,
            Buffer::Leaves => LEAVES,
        };
        let begin = span.first | mark;
        ChunkRange {
            begin,
            end: begin + span.len,
        }
    }

    #[inline(always)]
    fn meets(self, other: ChunkRange) -> bool {
        (self.begin < other.end) & (other.begin < self.end)
    }

    #[inline(always)]
    fn is_empty(self) -> bool {
        self.begin == self.end
    }
}

/// Chunks that a step accesses, except those of the input, which is never written.
#[derive(Clone, Copy)]
pub(super) struct StepAccesses {
    reads: [ChunkRange; 2],
    writes: ChunkRange,
}

impl StepAccesses {
    #[inline(always)]
    pub fn of(action: &Action) -> StepAccesses {
        let (reads, writes) = match *action {
            Action::Send { span, .. } => ([ChunkRange::of(span), NONE], NONE),
            Action::Recv { span: into, .. } | Action::RecvLeaf { into, .. } => {
                ([NONE; 2], ChunkRange::of(into))
            }
            Action::Fold {
                leaves, own, into, ..
            } => (
                [ChunkRange::of(leaves), ChunkRange::of(own)],
                ChunkRange::of(into),
            ),
            Action::RecvReduce { with, into, .. } => {
                ([ChunkRange::of(with), NONE], ChunkRange::of(into))
            }
            Action::Copy { from, into } => ([ChunkRange::of(from), NONE], ChunkRange::of(into)),
            Action::Reduce { with, from, into } => (
                [ChunkRange::of(with), ChunkRange::of(from)],
                ChunkRange::of(into),
            ),
            _ => ([NONE; 2], NONE),
        };
        StepAccesses { reads, writes }
    }

    /// Returns the accesses of a step that reads only.
    #[inline(always)]
    pub fn reading(span: Span) -> StepAccesses {
        StepAccesses {
            reads: [ChunkRange::of(span), NONE],
            writes: NONE,
        }
    }

    /// Returns the accesses of a step that writes only.
    #[inline(always)]
    pub fn writing(span: Span) -> StepAccesses {
        StepAccesses {
            reads: [NONE; 2],
            writes: ChunkRange::of(span),
        }
    }

    /// Whether the step must wait until `pending` is complete.
    #[inline(always)]
    fn meets(&self, pending: &PendingAccess) -> bool {
        let chunks = pending.chunks;
        let reads = self.reads[0].meets(chunks) | self.reads[1].meets(chunks);
        self.writes.meets(chunks) | (pending.writes & reads)
    }
}

/// An access that lasts until `done_ps`.
#[derive(Clone, Copy, Default)]
struct PendingAccess {
    done_ps: u64,
    chunks: ChunkRange,
    writes: bool,
    /// Number of the receive in its round, if the end is unknown.
    receive: u32,
}

/// Accesses of all incomplete steps of a rank.
#[derive(Default)]
pub(super) struct PendingSteps {
    near: [PendingAccess; NEAR],
    near_count: usize,
    rest: Vec<PendingAccess>,
}

impl PendingSteps {
    /// Returns when all dependences of a step are complete, at the earliest `from_ps`; `None` while
    /// that time is unknown. Drops the steps complete by then.
    #[inline(always)]
    pub fn wait(&mut self, touches: &StepAccesses, from_ps: u64) -> Option<u64> {
        let mut at_ps = from_ps;
        for pending in &self.near[..self.near_count] {
            if touches.meets(pending) {
                at_ps = at_ps.max(pending.done_ps);
            }
        }
        for pending in &self.rest {
            if touches.meets(pending) {
                at_ps = at_ps.max(pending.done_ps);
            }
        }
        if at_ps == UNKNOWN_PS {
            return None;
        }
        let mut number = 0;
        while number < self.near_count {
            if self.near[number].done_ps > at_ps {
                number += 1;
            } else {
                // The order of the entries does not matter.
                self.near_count -= 1;
                self.near[number] = self.near[self.near_count];
            }
        }
        if !self.rest.is_empty() {
            self.rest.retain(|pending| pending.done_ps > at_ps);
        }
        Some(at_ps)
    }

    /// Records a step's accesses until `done_ps`, or until `receive` of the round is complete.
    #[inline(always)]
    pub fn note(&mut self, touches: &StepAccesses, done_ps: u64, receive: u32) {
        for (chunks, writes) in [
            (touches.writes, true),
            (touches.reads[0], false),
            (touches.reads[1], false),
        ] {
            if chunks.is_empty() {
                continue;
            }
            let pending = PendingAccess {
                done_ps,
                chunks,
                writes,
                receive,
            };
            match self.near.get_mut(self.near_count) {
                Some(place) => {
                    *place = pending;
                    self.near_count += 1;
                }
                None => self.rest.push(pending),
            }
        }
    }

    /// Sets the completion time of a receive.
    #[inline(always)]
    pub fn complete(&mut self, receive: u32, done_ps: u64) {
        let near = &mut self.near[..self.near_count];
        for pending in near.iter_mut().chain(&mut self.rest) {
            if pending.done_ps == UNKNOWN_PS && pending.receive == receive {
                pending.done_ps = done_ps;
            }
        }
    }
}
