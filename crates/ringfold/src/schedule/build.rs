//! The builder with which generators write a schedule: one call per step, in the order of issue.
//!
//! The builder keeps the current round, so that generators cannot write rounds out of order, and
//! determines whether `Scratch` is used.

#![forbid(unsafe_code)]

use super::action::{Action, AwaitedPeers, Buffer, Combine, RankRange, Span, Step};
pub(super) use super::action::{input, leaves, output, scratch};
use super::spec::{BufferCut, Schedule, Spec};

impl Spec {
    /// Returns the rank `by` places after this one, around the ring.
    pub(super) fn after(&self, by: u32) -> u32 {
        // Divides only if necessary: long rings are written step by step while they are simulated.
        let by = match by < self.world_size {
            true => by,
            false => by % self.world_size,
        };
        let place = self.rank + by;
        match place < self.world_size {
            true => place,
            false => place - self.world_size,
        }
    }

    /// Returns the rank `by` places before this one, around the ring.
    pub(super) fn before(&self, by: u32) -> u32 {
        match by <= self.world_size {
            true => self.after(self.world_size - by),
            false => self.after(self.world_size - by % self.world_size),
        }
    }

    /// Returns all other ranks, the next one first, so that no rank is first for all others.
    pub(super) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let Spec {
            rank, world_size, ..
        } = *self;
        (1..world_size).map(move |by| (rank + by) % world_size)
    }

    /// Returns all other ranks, ascending.
    pub(super) fn peers(&self) -> Vec<u32> {
        let ranks = 0..self.world_size;
        ranks.filter(|rank| *rank != self.rank).collect()
    }

    pub(super) fn is_root(&self) -> bool {
        self.rank == self.root
    }

    /// Returns this rank's buffer for a result that only the root's caller receives.
    pub(super) fn result(&self) -> fn(u32, u32) -> Span {
        if self.is_root() { output } else { scratch }
    }

    /// Returns this rank's distance from the root around the ring.
    pub(super) fn relative(&self) -> u32 {
        (self.rank + self.world_size - self.root) % self.world_size
    }

    /// Returns the rank at a distance from the root.
    pub(super) fn absolute(&self, relative: u32) -> u32 {
        (relative + self.root) % self.world_size
    }
}

/// A schedule under construction.
pub(super) struct Builder {
    schedule: Schedule,
    steps: Vec<Step>,
    round: u32,
}

impl Builder {
    /// Creates an empty schedule in round 0.
    pub(super) fn new(spec: &Spec, input: BufferCut, output: BufferCut) -> Builder {
        Builder {
            schedule: Schedule {
                spec: spec.clone(),
                input,
                output,
                scratch: false,
                leaves: 0,
                needs_one_slice: false,
                rounds: 0,
                channels: Vec::new(),
            },
            steps: Vec::new(),
            round: 0,
        }
    }

    /// Creates a schedule with both buffers cut into `chunks` chunks.
    pub(super) fn vector(spec: &Spec, chunks: u32) -> Builder {
        Builder::new(spec, BufferCut::Vector(chunks), BufferCut::Vector(chunks))
    }

    /// Creates a schedule with `input` and `output` blocks of ranks.
    pub(super) fn blocks(spec: &Spec, input: u32, output: u32) -> Builder {
        Builder::new(spec, BufferCut::Blocks(input), BufferCut::Blocks(output))
    }

    /// Returns the request for the schedule.
    pub(super) fn spec(&self) -> &Spec {
        &self.schedule.spec
    }

    /// Returns the number of places for copies that are taken.
    pub(super) fn leaves_taken(&self) -> u32 {
        self.schedule.leaves
    }

    /// Allows messages of several blocks.
    pub(super) fn in_one_slice(mut self) -> Builder {
        self.schedule.needs_one_slice = true;
        self
    }

    /// Starts `round`, which contains the following steps.
    pub(super) fn round(&mut self, round: u32) {
        assert!(round >= self.round, "rounds ascend");
        self.round = round;
    }

    /// Adds `action` in the current round.
    pub(super) fn push(&mut self, action: Action) {
        self.steps.push(Step {
            round: self.round,
            action,
        });
    }

    pub(super) fn send(&mut self, peer: u32, span: Span) {
        self.push(Action::Send { peer, span });
    }

    pub(super) fn recv(&mut self, peer: u32, span: Span) {
        self.push(Action::Recv { peer, span });
    }

    pub(super) fn recv_reduce(&mut self, peer: u32, with: Span, into: Span) {
        self.push(Action::RecvReduce { peer, with, into });
    }

    /// Exchanges copies of chunks with `peers`, ascending ranks with this one at place `at` among
    /// them: receives the copies of each of `chunks`, adds the steps of `send`, and combines all
    /// copies of a chunk, in the order of the ranks, into the span that `into` returns.
    pub(super) fn fold_among(
        &mut self,
        peers: &[u32],
        chunks: &[Span],
        send: impl FnOnce(&mut Builder),
        into: impl Fn(Span) -> Span,
    ) {
        let own = self.schedule.spec.rank;
        let at = peers.iter().filter(|peer| **peer < own).count() as u32;
        // A combination of two needs no place of its own, unless the result has another type.
        if let ([peer], false) = (peers, self.schedule.spec.is_wide) {
            for chunk in chunks {
                self.recv_reduce(*peer, *chunk, into(*chunk));
            }
            return send(self);
        }
        let mut next = self.schedule.leaves;
        let mut places = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let copies = leaves(next, peers.len() as u32 * chunk.len);
            next += copies.len;
            places.push(copies);
        }
        self.schedule.leaves = next;
        // The next peer first, so that no rank is first for all others.
        for number in (at as usize..peers.len()).chain(0..at as usize) {
            for (like, copies) in chunks.iter().zip(&places) {
                let into = leaves(copies.first + number as u32 * like.len, like.len);
                let (peer, like) = (peers[number], *like);
                self.push(Action::RecvLeaf { peer, like, into });
            }
        }
        send(self);
        for (own, leaves) in chunks.iter().copied().zip(places) {
            let into = into(own);
            self.push(Action::Fold {
                leaves,
                own,
                at,
                into,
            });
        }
    }

    /// Sends to each of `peers` the span that `span` returns.
    pub(super) fn send_each(
        &mut self,
        peers: impl Iterator<Item = u32>,
        span: impl Fn(u32) -> Span,
    ) {
        peers.for_each(|peer| self.send(peer, span(peer)));
    }

    /// Receives from each of `peers` the span that `span` returns.
    pub(super) fn recv_each(
        &mut self,
        peers: impl Iterator<Item = u32>,
        span: impl Fn(u32) -> Span,
    ) {
        peers.for_each(|peer| self.recv(peer, span(peer)));
    }

    pub(super) fn copy(&mut self, from: Span, into: Span) {
        self.push(Action::Copy { from, into });
    }

    pub(super) fn reduce(&mut self, with: Span, from: Span, into: Span) {
        self.push(Action::Reduce { with, from, into });
    }

    pub(super) fn publish(&mut self, span: Span, phase: u8) {
        let assignment = self.schedule.spec.assignment;
        self.push(Action::Publish {
            span,
            phase,
            assignment,
        });
    }

    pub(super) fn wait_for(&mut self, peers: AwaitedPeers, phase: u8) {
        self.push(Action::Await { peers, phase });
    }

    /// Waits for `phase` of `peer`, then copies the peer's published chunks from `first` on.
    pub(super) fn fetch(&mut self, peer: u32, phase: u8, first: u32, into: Span) {
        self.wait_for(AwaitedPeers::One(peer), phase);
        self.push(Action::CopyFrom { peer, first, into });
    }

    /// Reduces the chunks that all ranks have published.
    pub(super) fn reduce_from(&mut self, own: Span, into: Span) {
        self.push(Action::ReduceFrom { own, into });
    }

    pub(super) fn expose(&mut self, phase: u8) {
        let assignment = self.schedule.spec.assignment;
        self.push(Action::Expose { phase, assignment });
    }

    /// Combines published or exposed chunks, with the access and assignment of the spec.
    pub(super) fn combine(
        &mut self,
        (sources, from): (RankRange, Span),
        (targets, into): (RankRange, Span),
    ) {
        let Spec {
            access, assignment, ..
        } = self.schedule.spec;
        self.push(Action::Combine(Combine {
            access,
            assignment,
            sources,
            from,
            targets,
            into,
        }));
    }

    /// Waits for the blocks of a dynamic `combine`.
    pub(super) fn collect(&mut self, into: Span) {
        let access = self.schedule.spec.access;
        self.push(Action::Collect { access, into });
    }

    pub(super) fn give_back(&mut self, span: Span, phase: u8) {
        self.push(Action::GiveBack { span, phase });
    }

    pub(super) fn take_back(&mut self, peer: u32, into: Span) {
        self.push(Action::TakeBack { peer, into });
    }

    /// Discards the steps and continues with those of `round`.
    pub(super) fn restart(&mut self, round: u32) {
        self.steps.clear();
        self.round = round;
    }

    /// Returns the steps since the last restart.
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the schedule, on one channel, with `rounds` rounds, the same on all ranks.
    pub(super) fn finish(mut self, rounds: u32) -> Schedule {
        assert!(self.round < rounds, "the last round is counted");
        self.schedule.rounds = rounds;
        for span in self.steps.iter().flat_map(|step| step.action.spans()) {
            match span.buffer {
                Buffer::Scratch => self.schedule.scratch = true,
                Buffer::Leaves => {
                    self.schedule.leaves = self.schedule.leaves.max(span.first + span.len);
                }
                Buffer::Input | Buffer::Output => {}
            }
        }
        self.schedule.channels = vec![self.steps];
        self.schedule
    }
}

/// An algorithm for two or more ranks whose steps in a round depend only on the round, so its
/// schedules can be generated one round at a time; see [`rounds`](super::rounds).
pub(super) struct ByRound {
    /// The cuts of input and output, by the number of ranks.
    pub cuts: fn(u32) -> (BufferCut, BufferCut),
    /// The number of rounds, by the number of ranks.
    pub rounds: fn(u32) -> u32,
    /// Writes the steps of a rank in a round.
    pub write: fn(&mut Builder, &Spec, u32),
}

impl ByRound {
    /// Generates all rounds.
    pub fn whole(&self, spec: &Spec) -> Schedule {
        let (input, output) = (self.cuts)(spec.world_size);
        let rounds = (self.rounds)(spec.world_size);
        let mut build = Builder::new(spec, input, output);
        for round in 0..rounds {
            build.round(round);
            (self.write)(&mut build, spec, round);
        }
        build.finish(rounds)
    }
}
