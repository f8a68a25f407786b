//! A call as the engine takes it on, and as it gives it back.

use std::time::Duration;

use super::geometry::Blocks;
use crate::memory::Region;
use crate::schedule::{Medium, Weights};
use crate::types::{Algorithm, Collective, DType, Op, Protocol};

/// What stands for the peer of a `Recv` that takes a message from any of them.
pub const ANY_SOURCE: usize = usize::MAX;

/// One call, checked and decided: what the engine needs to run it.
#[derive(Clone, Debug)]
pub struct Job {
    /// What to do.
    pub collective: Collective,
    /// How.
    pub algorithm: Algorithm,
    /// Over messages or published memory.
    pub medium: Medium,
    /// How its bytes travel.
    pub protocol: Protocol,
    /// The elements' type.
    pub dtype: DType,
    /// How they are combined.
    pub op: Op,
    /// The root, or the peer of a message; [`ANY_SOURCE`] for a receive from whoever sends.
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
    /// Whether input and output are (partly) the same memory, as the collective's in-place form has it.
    pub in_place: bool,
    /// Elements of one slice of the vector or of a block.
    pub slice_elements: u64,
    /// Independent pipelines.
    pub channels: u32,
    /// How long it may take.
    pub timeout: Duration,
    /// How to work in all ranks' buffers, if it turns out that all are registered; `None` to not ask: the same on all ranks.
    pub tries: Option<Algorithm>,
    /// Whether results that lie apart from their inputs are stored past the caches.
    pub streams: bool,
    /// Whether the library calls this to register memory, and not the user.
    pub registers: bool,
    /// How much each rank owns, if not all the same: of an all-reduce by `direct` over messages.
    pub weights: Option<Weights>,
}

/// A submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(pub(super) usize);

/// A job that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub id: JobId,
    /// Who sent, where the job was a receive.
    pub source: Option<usize>,
}
