//! A call as the engine takes it on, and as it gives it back.

use std::time::Duration;

use super::geometry::Blocks;
use crate::call::{Asked, Qualifier, Way};
use crate::memory::Region;
use crate::schedule::Weights;
use crate::types::{Collective, DType, Op};

/// Collectives that an engine holds ready to run, at most: their numbers are part of tickets.
pub const COLLECTIVES_MAX: usize = 4096;

/// Messages that an engine holds, at most: a program beyond this bound waits for none of them.
pub const MESSAGES_MAX: usize = 1 << 20;

/// What stands for the peer of a `Recv` that takes a message from any of them.
pub const ANY_SOURCE: usize = usize::MAX;

/// One call, checked and decided: what the engine needs to run it.
#[derive(Clone, Debug)]
pub struct Job {
    /// What to do.
    pub collective: Collective,
    /// How.
    pub way: Way,
    /// The elements' type.
    pub dtype: DType,
    /// How they are combined.
    pub op: Op,
    /// The root, or the peer of a message; [`ANY_SOURCE`] for a receive from any source.
    pub root: usize,
    /// The tag of a message.
    pub tag: u32,
    /// The count as the call states it to the peers.
    pub count: u64,
    /// What is read.
    pub input: Region,
    /// What is filled.
    pub output: Region,
    /// A vector's count, or the blocks of `input`.
    pub input_blocks: Blocks,
    /// A vector's count, or the blocks of `output`.
    pub output_blocks: Blocks,
    /// Whether input and output are (partly) the same memory, as the collective's in-place form has
    /// it.
    pub in_place: bool,
    /// How long it may take.
    pub timeout: Duration,
    /// Whether the library calls this to register memory, and not the user.
    pub registers: bool,
    /// That it moves a part of a reduction by `op` of so many elements, which devices combine.
    pub share: Option<u32>,
    /// Of a slice of a longer call: the digest of its counts, which ranks compare.
    pub whole: Option<u32>,
    /// Of a barrier: the call that ranks compare in its place.
    pub asked: Option<Asked>,
    /// How much each rank owns, if not all the same: of an all-reduce by `direct` over messages.
    pub weights: Option<Weights>,
}

impl Job {
    /// That it is a part of a reduction, if it is.
    #[inline]
    pub(super) fn share(&self) -> Qualifier {
        match self.share {
            Some(elements) => Qualifier::share(self.op.wire(), elements),
            None => Qualifier::None,
        }
    }
}

/// A submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(usize);

impl JobId {
    /// The job of the collective at this place.
    pub(super) fn collective(place: usize) -> JobId {
        JobId(place << 1)
    }

    /// The job of the message at this place.
    pub(super) fn message(place: usize) -> JobId {
        JobId(place << 1 | 1)
    }

    /// The place of the job among those of its kind.
    pub(super) fn place(self) -> usize {
        self.0 >> 1
    }

    /// The number of the job, which is used again after the job is done and taken.
    pub fn number(self) -> usize {
        self.0
    }
}

/// A job that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub id: JobId,
    /// Who sent, where the job was a receive.
    pub source: Option<usize>,
}
