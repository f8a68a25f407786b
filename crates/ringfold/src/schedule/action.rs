//! The steps of a rank: actions, and the chunks that the actions use.

#![forbid(unsafe_code)]

use crate::types::{Access, Assignment};

/// The buffers that a step may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// The caller's buffer to read from.
    Input,
    /// The caller's buffer to fill.
    Output,
    /// The engine's own memory, undefined at the start. Cut like the input or the output, whichever
    /// has more chunks.
    Scratch,
    /// The engine's own memory for other ranks' copies of one chunk, undefined at the start. Each
    /// place is as long as the longest chunk of the input.
    Leaves,
}

/// `len` consecutive chunks of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The buffer of the chunks.
    pub buffer: Buffer,
    /// Number of the first chunk.
    pub first: u32,
    /// Number of chunks; 0 only in a publication that just announces a phase.
    pub len: u32,
}

/// Returns a span of `len` chunks of the input.
#[inline]
pub(crate) fn input(first: u32, len: u32) -> Span {
    let buffer = Buffer::Input;
    Span { buffer, first, len }
}

/// Returns a span of `len` chunks of the output.
#[inline]
pub(crate) fn output(first: u32, len: u32) -> Span {
    let buffer = Buffer::Output;
    Span { buffer, first, len }
}

/// Returns a span of `len` chunks of the engine's own memory.
#[inline]
pub(crate) fn scratch(first: u32, len: u32) -> Span {
    let buffer = Buffer::Scratch;
    Span { buffer, first, len }
}

/// Returns a span of `len` places for copies of a chunk.
#[inline]
pub(crate) fn leaves(first: u32, len: u32) -> Span {
    let buffer = Buffer::Leaves;
    Span { buffer, first, len }
}

/// The ranks that an `Await` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AwaitedPeers {
    /// All ranks but this one.
    Others,
    /// One rank.
    One(u32),
}

/// Consecutive ranks: `first`, `first + 1` and so on, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankRange {
    /// The lowest rank.
    pub first: u32,
    /// Number of ranks.
    pub count: u32,
}

impl RankRange {
    /// Returns all ranks of a world.
    pub fn all(world_size: u32) -> RankRange {
        RankRange {
            first: 0,
            count: world_size,
        }
    }

    /// Returns one rank.
    pub fn one(rank: u32) -> RankRange {
        RankRange {
            first: rank,
            count: 1,
        }
    }

    /// Returns the ranks' blocks in a buffer that has one block for each rank.
    pub(crate) fn of(self, buffer: fn(u32, u32) -> Span) -> Span {
        buffer(self.first, self.count)
    }

    /// Returns the members' ranks, ascending.
    pub fn ranks(self) -> impl Iterator<Item = u32> {
        self.first..self.first + self.count
    }
}

/// Work on data that all ranks have published or exposed: `from` of each of `sources`, combined in
/// the order of the canonical tree, is stored to `into` of each of `targets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    /// Staged: from and into the places where the ranks published these chunks. Registered: from
    /// the ranks' own inputs directly into their outputs.
    pub access: Access,
    /// Owner: this rank does all the work. Dynamic: the rank that claims a block does that block,
    /// and every rank offers itself by this step. The blocks are done when `Collect` completes;
    /// until then, other ranks access this rank's memory.
    pub assignment: Assignment,
    /// The ranks whose chunks are read.
    pub sources: RankRange,
    /// The chunks that are read of each source.
    pub from: Span,
    /// The ranks that receive the result.
    pub targets: RankRange,
    /// The chunks of each target that hold the result.
    pub into: Span,
}

/// One action of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends the span to the peer. May complete later.
    Send { peer: u32, span: Span },
    /// Fills the span with the peer's next message. May complete later.
    Recv { peer: u32, span: Span },
    /// `into` = the peer's next message combined with `with`; `with` may equal `into`. May complete
    /// later.
    RecvReduce { peer: u32, with: Span, into: Span },
    /// Keeps the peer's next message, the peer's copy of `like`, in the places of `into`. May
    /// complete later.
    RecvLeaf { peer: u32, like: Span, into: Span },
    /// `into` = `own` and all copies of it in `leaves`, combined in the order of the canonical
    /// tree ([`Order`](super::Order)); `own` is number `at` among them.
    Fold {
        leaves: Span,
        own: Span,
        at: u32,
        into: Span,
    },
    /// `into` = `from`. Does nothing if both are the same memory.
    Copy { from: Span, into: Span },
    /// `into` = `with` combined with `from`; `with` may equal `into`.
    Reduce { with: Span, from: Span, into: Span },
    /// Makes the span visible to the ranks of this host, at the place of its chunks, and announces
    /// that `phase` and all earlier phases are reached: the phases of a rank's publications
    /// strictly rise. Published chunks stay readable until every rank has finished the slice.
    /// `assignment` is that of the work on the chunks: if any rank may do the work, the last one to
    /// publish finds all others ready, and no peer is woken.
    Publish {
        span: Span,
        phase: u8,
        assignment: Assignment,
    },
    /// Waits until the peers have reached `phase`.
    Await { peers: AwaitedPeers, phase: u8 },
    /// `into` = chunks `first..first + into.len` as published by `peer` (chunk numbers of the
    /// peer's span).
    CopyFrom { peer: u32, first: u32, into: Span },
    /// `into` = the chunks of all ranks, combined as a tree: the peers' as published under `own`'s
    /// chunk numbers, this rank's from `own` itself.
    ReduceFrom { own: Span, into: Span },
    /// Stores the span over the same published chunks of each peer, which this rank alone has read,
    /// and announces that `phase` is reached, as `Publish` does.
    GiveBack { span: Span, phase: u8 },
    /// `into` = the same chunks of this rank's publication, as stored there by `peer`'s `GiveBack`.
    TakeBack { peer: u32, into: Span },
    /// Announces the addresses of this rank's input and output, and that `phase` is reached, as
    /// `Publish` does. Peers may read the input and read or write the output in place, until they
    /// have told this rank that they are done.
    Expose { phase: u8, assignment: Assignment },
    /// Combines data that all ranks have published or exposed.
    Combine(Combine),
    /// Waits until every block of the dynamic `Combine` with these result chunks is done. A staged
    /// result is then copied: `into` = the result. A registered one is already in the output.
    Collect { access: Access, into: Span },
}

/// An action and its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Number of the round, from 0; equal for a send and its receive.
    pub round: u32,
    /// The action of the step.
    pub action: Action,
}

impl Action {
    /// Returns this rank's memory that the action reads, besides messages and published data, and
    /// the memory that it writes. Of registered buffers only this rank's own are included.
    fn memory(&mut self) -> ([Option<&mut Span>; 2], Option<&mut Span>) {
        match self {
            Action::Send { span, .. }
            | Action::Publish { span, .. }
            | Action::GiveBack { span, .. } => ([Some(span), None], None),
            Action::RecvReduce { with, into, .. } => ([Some(with), None], Some(into)),
            Action::Fold {
                leaves, own, into, ..
            } => ([Some(leaves), Some(own)], Some(into)),
            Action::Copy { from, into } => ([Some(from), None], Some(into)),
            Action::Reduce { with, from, into } => ([Some(with), Some(from)], Some(into)),
            Action::ReduceFrom { own, into } => ([Some(own), None], Some(into)),
            Action::Combine(Combine {
                access: Access::Registered,
                from,
                into,
                ..
            }) => ([Some(from), None], Some(into)),
            Action::Recv { span: into, .. }
            | Action::RecvLeaf { into, .. }
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

    /// Returns the spans that are read, besides messages and published memory.
    pub fn reads(mut self) -> [Option<Span>; 2] {
        self.memory().0.map(|span| span.copied())
    }

    /// Returns the span that is written.
    pub fn writes(mut self) -> Option<Span> {
        self.memory().1.copied()
    }

    /// Returns the same action on other spans. Places in published memory have no span and stay.
    pub(super) fn with_spans(mut self, other: impl Fn(Span) -> Span) -> Action {
        let ([first, second], written) = self.memory();
        for span in [first, second, written].into_iter().flatten() {
            *span = other(*span);
        }
        if let Action::RecvLeaf { like, .. } = &mut self {
            *like = other(*like);
        }
        self
    }

    /// Returns the same message with its peer number taken as an index into `ranks`.
    pub(crate) fn among(mut self, ranks: &[u32]) -> Action {
        if let Action::Send { peer, .. }
        | Action::Recv { peer, .. }
        | Action::RecvReduce { peer, .. }
        | Action::RecvLeaf { peer, .. } = &mut self
        {
            *peer = ranks[*peer as usize];
        }
        self
    }

    /// Returns the peer of a message.
    pub fn message_peer(&self) -> Option<u32> {
        match *self {
            Action::Send { peer, .. } => Some(peer),
            _ => self.sender(),
        }
    }

    /// Returns the peer of a message that is received.
    pub fn sender(&self) -> Option<u32> {
        match *self {
            Action::Recv { peer, .. }
            | Action::RecvReduce { peer, .. }
            | Action::RecvLeaf { peer, .. } => Some(peer),
            _ => None,
        }
    }

    /// Returns all spans that the action names.
    pub fn spans(self) -> impl Iterator<Item = Span> {
        let [first, second] = self.reads();
        [first, second, self.writes()].into_iter().flatten()
    }

    /// Whether the step sends or receives.
    pub fn is_message(&self) -> bool {
        self.message_peer().is_some()
    }

    /// Whether the step may complete after it was issued: a message or, in a schedule over
    /// messages, a copy or reduction, which may take time on a device or in virtual time.
    pub fn is_asynchronous(&self, access: Access) -> bool {
        let computes = matches!(
            self,
            Action::Copy { .. } | Action::Reduce { .. } | Action::Fold { .. }
        );
        self.is_message() || (computes && access == Access::Messages)
    }
}
