//! How generators write down a schedule: one call a step, in the order of issue.
//!
//! The builder keeps the current round, so that generators cannot write rounds out of order, and
//! finds out by itself whether `Scratch` is used.

#![forbid(unsafe_code)]

use super::action::{Action, Buffer, Combine, Members, Peers, Span, Step};
pub(super) use super::action::{input, output, scratch};
use super::spec::{Cut, Schedule, Spec};

impl Spec {
    /// The rank `by` places after this one, around the ring.
    pub(super) fn after(&self, by: u32) -> u32 {
        // Without a division where there is no need for one: long rings are written step by step
        // while they are simulated.
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

    /// The rank `by` places before this one, around the ring.
    pub(super) fn before(&self, by: u32) -> u32 {
        match by <= self.world_size {
            true => self.after(self.world_size - by),
            false => self.after(self.world_size - by % self.world_size),
        }
    }

    /// All other ranks, the next one first: starting everywhere else, so that no rank is
    /// everybody's first.
    pub(super) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let Spec {
            rank, world_size, ..
        } = *self;
        (1..world_size).map(move |by| (rank + by) % world_size)
    }

    pub(super) fn is_root(&self) -> bool {
        self.rank == self.root
    }

    /// Where this rank puts what only the root's caller gets.
    pub(super) fn result(&self) -> fn(u32, u32) -> Span {
        if self.is_root() { output } else { scratch }
    }

    /// This rank's place when the root is counted as 0.
    pub(super) fn relative(&self) -> u32 {
        (self.rank + self.world_size - self.root) % self.world_size
    }

    /// The rank at a place counted from the root.
    pub(super) fn absolute(&self, relative: u32) -> u32 {
        (relative + self.root) % self.world_size
    }
}

/// A schedule being written.
pub(super) struct Builder {
    schedule: Schedule,
    steps: Vec<Step>,
    round: u32,
}

impl Builder {
    /// An empty schedule in round 0.
    pub(super) fn new(spec: &Spec, input: Cut, output: Cut) -> Builder {
        Builder {
            schedule: Schedule {
                spec: spec.clone(),
                input,
                output,
                scratch: false,
                apart: false,
                needs_one_slice: false,
                rounds: 0,
                channels: Vec::new(),
            },
            steps: Vec::new(),
            round: 0,
        }
    }

    /// The same cut for both buffers.
    pub(super) fn vector(spec: &Spec, chunks: u32) -> Builder {
        Builder::new(spec, Cut::Vector(chunks), Cut::Vector(chunks))
    }

    /// Blocks of ranks, so many of input and output.
    pub(super) fn blocks(spec: &Spec, input: u32, output: u32) -> Builder {
        Builder::new(spec, Cut::Blocks(input), Cut::Blocks(output))
    }

    /// Messages may hold several blocks.
    pub(super) fn in_one_slice(mut self) -> Builder {
        self.schedule.needs_one_slice = true;
        self
    }

    /// What follows takes place in `round`.
    pub(super) fn round(&mut self, round: u32) {
        assert!(round >= self.round, "rounds ascend");
        self.round = round;
    }

    /// Adds any action.
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

    /// Sends to each of `peers` what `span` says.
    pub(super) fn send_each(
        &mut self,
        peers: impl Iterator<Item = u32>,
        span: impl Fn(u32) -> Span,
    ) {
        peers.for_each(|peer| self.send(peer, span(peer)));
    }

    /// Receives from each of `peers` what `span` says.
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

    pub(super) fn wait_for(&mut self, peers: Peers, phase: u8) {
        self.push(Action::Await { peers, phase });
    }

    /// Copies what `peer` has published in `phase`: its chunks from `first` on.
    pub(super) fn fetch(&mut self, peer: u32, phase: u8, first: u32, into: Span) {
        self.wait_for(Peers::One(peer), phase);
        self.push(Action::CopyFrom { peer, first, into });
    }

    /// Reduces what all ranks have published.
    pub(super) fn reduce_from(&mut self, own: Span, into: Span) {
        let among = Members::all(self.schedule.spec.world_size);
        self.reduce_among(among, own, into);
    }

    pub(super) fn reduce_among(&mut self, among: Members, own: Span, into: Span) {
        self.push(Action::ReduceFrom { among, own, into });
    }

    /// Chunks of the output are published in places of their own.
    pub(super) fn apart(&mut self) {
        self.schedule.apart = true;
    }

    pub(super) fn expose(&mut self, phase: u8) {
        let assignment = self.schedule.spec.assignment;
        self.push(Action::Expose { phase, assignment });
    }

    /// Combines what all have published or exposed, as the spec's access and assignment have it.
    pub(super) fn combine(
        &mut self,
        (sources, from): (Members, Span),
        (targets, into): (Members, Span),
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

    /// Forgets the steps, and goes on with those of `round`.
    pub(super) fn restart(&mut self, round: u32) {
        self.steps.clear();
        self.round = round;
    }

    /// What was written since.
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The schedule, on one channel, with the number of rounds that all ranks agree on.
    pub(super) fn finish(mut self, rounds: u32) -> Schedule {
        assert!(self.round < rounds, "the last round is counted");
        self.schedule.rounds = rounds;
        self.schedule.scratch = self
            .steps
            .iter()
            .flat_map(|step| step.action.spans())
            .any(|span| span.buffer == Buffer::Scratch);
        self.schedule.channels = vec![self.steps];
        self.schedule
    }
}

/// An algorithm for two ranks and more whose steps in a round follow from the round. So its
/// schedules can be generated one round at a time, see [`rounds`](super::rounds).
pub(super) struct ByRound {
    /// The cut of input and output for this many ranks.
    pub cuts: fn(u32) -> (Cut, Cut),
    /// The number of rounds for this many ranks.
    pub rounds: fn(u32) -> u32,
    /// Writes the steps of a rank in a round.
    pub write: fn(&mut Builder, &Spec, u32),
}

impl ByRound {
    /// All rounds.
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
