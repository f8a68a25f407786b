//! A call as it is submitted to the engine, and as the engine returns it.

use std::time::Duration;

use super::geometry::BlockLayout;
use crate::call::{Asked, Call, Qualifier, Way};
use crate::memory::Region;
use crate::schedule::Weights;
use crate::types::{Collective, DType, Op};

/// Maximum number of collectives queued in an engine: their numbers are part of tickets.
pub const COLLECTIVES_MAX: usize = 4096;

/// Maximum number of messages in an engine: a program that exceeds this bound never waits for its
/// messages.
pub const MESSAGES_MAX: usize = 1 << 20;

/// The peer of a `Recv` from any source.
pub const ANY_SOURCE: usize = usize::MAX;

/// A call, checked and decided, with all that the engine needs to run it.
#[derive(Clone, Debug)]
pub struct Job {
    /// The collective.
    pub collective: Collective,
    /// The way the call is carried out.
    pub way: Way,
    /// The elements' type.
    pub dtype: DType,
    /// The operation that combines elements.
    pub op: Op,
    /// The root, or the peer of a message; [`ANY_SOURCE`] for a receive from any source.
    pub root: usize,
    /// The tag of a message.
    pub tag: u32,
    /// The count that the call states to the peers.
    pub count: u64,
    /// The input buffer.
    pub input: Region,
    /// The output buffer.
    pub output: Region,
    /// A vector's count, or the blocks of `input`.
    pub input_blocks: BlockLayout,
    /// A vector's count, or the blocks of `output`.
    pub output_blocks: BlockLayout,
    /// Whether input and output are (partly) the same memory, as in the collective's in-place form.
    pub in_place: bool,
    /// Maximum duration of the call.
    pub timeout: Duration,
    /// Whether the library, not the user, makes this call, to register memory.
    pub registers: bool,
    /// The element count of a reduction by `op`, done by devices, of which the call moves a part.
    pub share: Option<u32>,
    /// For a slice of a longer call, the digest of that call's counts, which ranks compare.
    pub whole: Option<u32>,
    /// For a barrier, the call that ranks compare in its place.
    pub asked: Option<Asked>,
    /// The ownership weights, if not all equal, of an all-reduce by `direct` over messages.
    pub weights: Option<Weights>,
}

impl Job {
    /// Returns the call that a rank announces for this job, but for the sequence.
    #[inline]
    pub(super) fn announced(&self, qualifier: Qualifier, count: u64, lists: u32) -> Call {
        let call = Call {
            collective: self.collective,
            dtype: self.dtype,
            op: match self.collective.reduces() {
                true => self.op.wire(),
                false => 0,
            },
            algorithm: self.way.algorithm,
            access: self.way.access,
            assignment: self.way.assignment,
            is_inline: self.way.is_inline,
            qualifier,
            count,
            lists,
            sequence: 0,
            cut: self.way.cut(),
        };
        match self.asked {
            None => call,
            Some(asked) => call.in_place_of(asked),
        }
    }

    /// Returns the qualifier of a part of a reduction, if the job is one.
    #[inline]
    pub(super) fn share(&self) -> Qualifier {
        match self.share {
            Some(elements) => Qualifier::share(self.op.wire(), elements),
            None => Qualifier::None,
        }
    }
}

/// The identity of a submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(usize);

impl JobId {
    /// Returns the identity of the collective at this place.
    pub(super) fn collective(place: usize) -> JobId {
        JobId(place << 1)
    }

    /// Returns the identity of the message at this place.
    pub(super) fn message(place: usize) -> JobId {
        JobId(place << 1 | 1)
    }

    /// Returns the place of the job among those of its kind.
    pub(super) fn place(self) -> usize {
        self.0 >> 1
    }

    /// Returns the number of the job, which is reused after the job is done and taken.
    pub fn number(self) -> usize {
        self.0
    }
}

/// A job that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The job.
    pub id: JobId,
    /// The sender, if the job was a receive.
    pub source: Option<usize>,
}
