//! What a rank does in one step, and on which chunks.

#![forbid(unsafe_code)]

use crate::types::{Access, Assignment};

/// The buffers a step may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// What the caller gave to read.
    Input,
    /// What the caller gave to fill.
    Output,
    /// The engine's own memory, undefined at the start, cut like the one of the others that has
    /// more chunks.
    Scratch,
}

/// `len` consecutive chunks of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Which buffer.
    pub buffer: Buffer,
    /// The first chunk.
    pub first: u32,
    /// How many chunks; never 0, except in a publication that says only that a phase is reached.
    pub len: u32,
}

/// `len` chunks of the input.
#[inline]
pub(crate) fn input(first: u32, len: u32) -> Span {
    let buffer = Buffer::Input;
    Span { buffer, first, len }
}

/// `len` chunks of the output.
#[inline]
pub(crate) fn output(first: u32, len: u32) -> Span {
    let buffer = Buffer::Output;
    Span { buffer, first, len }
}

/// `len` chunks of the engine's own memory.
#[inline]
pub(crate) fn scratch(first: u32, len: u32) -> Span {
    let buffer = Buffer::Scratch;
    Span { buffer, first, len }
}

/// The ranks that an `Await` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peers {
    /// All ranks but this one.
    Others,
    /// One rank.
    One(u32),
}

/// Ranks at equal distances: `first`, `first + step` and so on, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Members {
    /// The lowest of them.
    pub first: u32,
    /// From one to the next.
    pub step: u32,
    /// How many.
    pub count: u32,
}

impl Members {
    /// All ranks of a world.
    pub fn all(world_size: u32) -> Members {
        Members {
            first: 0,
            step: 1,
            count: world_size,
        }
    }

    /// One rank.
    pub fn one(rank: u32) -> Members {
        Members {
            first: rank,
            step: 1,
            count: 1,
        }
    }

    /// Their ranks, ascending.
    pub fn ranks(self) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |number| self.first + number * self.step)
    }

    /// All but `rank`, which is one of them, starting with the next.
    pub(crate) fn others(self, rank: u32) -> impl Iterator<Item = u32> {
        let own = (rank - self.first) / self.step;
        (1..self.count).map(move |by| self.first + (own + by) % self.count * self.step)
    }
}

/// Work on what all ranks have published or exposed: `from` of each of `sources`, combined in rank
/// order, goes to `into` of each of `targets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    /// Staged: from and into the places where the ranks published these chunks. Registered: from
    /// their inputs into their outputs, where these lie.
    pub access: Access,
    /// Owner: this rank does all of it. Dynamic: block by block, each by the rank that claims it.
    /// Then every rank offers itself; the blocks are done when `Collect` is over, and others access
    /// their memory until then.
    pub assignment: Assignment,
    /// The ranks whose chunks are read.
    pub sources: Members,
    /// What is read of each of them.
    pub from: Span,
    /// The ranks that get the result.
    pub targets: Members,
    /// Where each of them gets it.
    pub into: Span,
}

/// One thing that a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends the span to the peer. May complete later.
    Send { peer: u32, span: Span },
    /// Fills the span with the peer's next message. May complete later.
    Recv { peer: u32, span: Span },
    /// `into` = the peer's next message combined with `with`; `with` may equal `into`. May complete
    /// later.
    RecvReduce { peer: u32, with: Span, into: Span },
    /// `into` = `from`. Nothing if both are the same memory.
    Copy { from: Span, into: Span },
    /// `into` = `with` combined with `from`; `with` may equal `into`.
    Reduce { with: Span, from: Span, into: Span },
    /// Makes the span visible to the ranks of this host, at the place of its chunks, and says that
    /// `phase` is reached, and with it all phases before: the phases of a rank's publications
    /// strictly rise. Published chunks stay readable until every rank has finished the slice.
    /// `assignment` is that of the work on them: where any rank may do it, the last one to publish
    /// finds all others there, and no peer is woken.
    Publish {
        span: Span,
        phase: u8,
        assignment: Assignment,
    },
    /// Waits until the peers have reached `phase`.
    Await { peers: Peers, phase: u8 },
    /// `into` = chunks `first..first + into.len` as `peer` published them (chunk numbers of the
    /// peer's span).
    CopyFrom { peer: u32, first: u32, into: Span },
    /// `into` = the chunks of `among`, this rank among them, combined in rank order: the peers' as
    /// published under `own`'s chunk numbers, this rank's from `own` itself.
    ReduceFrom {
        among: Members,
        own: Span,
        into: Span,
    },
    /// Puts the span where each peer published the same chunks, which this rank alone has read, and
    /// says that `phase` is reached, as `Publish` does.
    GiveBack { span: Span, phase: u8 },
    /// `into` = the same chunks of what this rank published, as `peer` gave them back.
    TakeBack { peer: u32, into: Span },
    /// Says where this rank's input and output lie, and that `phase` is reached, as `Publish` does:
    /// peers may read the one and read or write the other in place, until this rank has heard from
    /// them that they are done.
    Expose { phase: u8, assignment: Assignment },
    /// Combines what all ranks have published or exposed.
    Combine(Combine),
    /// Waits until every block is done of the dynamic `Combine` whose result are these chunks, and
    /// takes what is staged: `into` = the result. In registered buffers it is there already.
    Collect { access: Access, into: Span },
}

/// An action and its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The round, counted from 0; equal for a send and its receive.
    pub round: u32,
    /// What is done.
    pub action: Action,
}

impl Action {
    /// This rank's memory that is read, besides messages and what is published, and what is
    /// written. Of registered buffers it is this rank's own, if at all.
    fn memory(&mut self) -> ([Option<&mut Span>; 2], Option<&mut Span>) {
        match self {
            Action::Send { span, .. }
            | Action::Publish { span, .. }
            | Action::GiveBack { span, .. } => ([Some(span), None], None),
            Action::RecvReduce { with, into, .. } => ([Some(with), None], Some(into)),
            Action::Copy { from, into } => ([Some(from), None], Some(into)),
            Action::Reduce { with, from, into } => ([Some(with), Some(from)], Some(into)),
            Action::ReduceFrom { own, into, .. } => ([Some(own), None], Some(into)),
            Action::Combine(Combine {
                access: Access::Registered,
                from,
                into,
                ..
            }) => ([Some(from), None], Some(into)),
            Action::Recv { span: into, .. }
            | Action::CopyFrom { into, .. }
            | Action::TakeBack { into, .. }
            | Action::Collect {
                access: Access::Staged,
                into,
            } => ([None, None], Some(into)),
            Action::Await { .. }
            | Action::Expose { .. }
            | Action::Combine(_)
            | Action::Collect { .. } => ([None, None], None),
        }
    }

    /// What is read, besides messages and published memory.
    pub fn reads(mut self) -> [Option<Span>; 2] {
        self.memory().0.map(|span| span.copied())
    }

    /// What is written.
    pub fn writes(mut self) -> Option<Span> {
        self.memory().1.copied()
    }

    /// The same action on other spans. Of published memory, which has no span, the place is left.
    pub(super) fn with_spans(mut self, other: impl Fn(Span) -> Span) -> Action {
        let ([first, second], written) = self.memory();
        for span in [first, second, written].into_iter().flatten() {
            *span = other(*span);
        }
        self
    }

    /// The same message where its peer's number means one of `ranks`.
    pub(super) fn among(mut self, ranks: &[u32]) -> Action {
        if let Action::Send { peer, .. }
        | Action::Recv { peer, .. }
        | Action::RecvReduce { peer, .. } = &mut self
        {
            *peer = ranks[*peer as usize];
        }
        self
    }

    /// All spans that the action names.
    pub fn spans(self) -> impl Iterator<Item = Span> {
        let [first, second] = self.reads();
        [first, second, self.writes()].into_iter().flatten()
    }

    /// Whether the step sends or receives.
    pub fn is_message(&self) -> bool {
        matches!(
            self,
            Action::Send { .. } | Action::Recv { .. } | Action::RecvReduce { .. }
        )
    }

    /// Whether the step may complete after it was issued: messages, and what is computed beside
    /// them, which a device or virtual time may take a while for.
    pub fn is_asynchronous(&self, access: Access) -> bool {
        let computes = matches!(self, Action::Copy { .. } | Action::Reduce { .. });
        self.is_message() || (computes && access == Access::Messages)
    }
}
