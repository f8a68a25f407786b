//! Jobs: calls as they are submitted to the engine, and as the engine returns them.

use std::time::Duration;

use super::gate::Gate;
use super::geometry::BlockLayout;
use crate::call::{Call, Qualifier, Way};
use crate::memory::Region;
use crate::schedule::Weights;
use crate::types::{Collective, DType, Op};

/// Maximum number of collectives queued in an engine. Limited because a ticket contains the number
/// of its collective.
pub const COLLECTIVES_MAX: usize = 4096;

/// Maximum number of unfinished messages in an engine. Only a program that never waits for its
/// messages exceeds this limit.
pub const MESSAGES_MAX: usize = 1 << 20;

/// Value of [`Job::root`] for a `Recv` from any source.
pub const ANY_SOURCE: usize = usize::MAX;

/// A checked call, with its way and everything else that the engine needs to run the call.
#[derive(Clone, Debug)]
pub struct Job {
    /// The collective.
    pub collective: Collective,
    /// The decision on how to carry out the call.
    pub way: Way,
    /// The elements' type.
    pub dtype: DType,
    /// The operation that combines elements.
    pub op: Op,
    /// The root, or the peer of a message; [`ANY_SOURCE`] for a receive from any source.
    pub root: usize,
    /// The tag of a message.
    pub tag: u32,
    /// The element count that the call states to the peers.
    pub count: u64,
    /// The input buffer.
    pub input: Region,
    /// The output buffer.
    pub output: Region,
    /// Layout of `input`: the count of a vector, or the blocks.
    pub input_blocks: BlockLayout,
    /// Layout of `output`: the count of a vector, or the blocks.
    pub output_blocks: BlockLayout,
    /// Whether input and output share memory, fully or partly, as in the in-place form of the
    /// collective.
    pub in_place: bool,
    /// Maximum duration of the call.
    pub timeout: Duration,
    /// Whether this is a call by which the library registers memory, and not a user's call.
    pub registers: bool,
    /// For a slice of a longer call: the digest of that call's counts, which ranks compare.
    pub whole: Option<u32>,
    /// The devices that move the data of the call, if they do. Boxed: a job is copied, and small
    /// calls notice its length.
    pub gate: Option<Box<Gate>>,
    /// For an all-reduce by `direct` over messages: the ownership weights, if they are not all
    /// equal.
    pub weights: Option<Weights>,
}

impl Job {
    /// Returns the call that this rank announces to its peers for this job. The caller sets the
    /// sequence number.
    #[inline]
    pub(super) fn announced(&self, qualifier: Qualifier, count: u64, lists: u32) -> Call {
        Call {
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
        }
    }
}

/// The identity of a submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(usize);

impl JobId {
    /// Returns the identity of the collective at `place` in the engine.
    pub(super) fn collective(place: usize) -> JobId {
        JobId(place << 1)
    }

    /// Returns the identity of the message at `place` in the engine.
    pub(super) fn message(place: usize) -> JobId {
        JobId(place << 1 | 1)
    }

    /// Returns the place of the job among the collectives, or among the messages.
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
