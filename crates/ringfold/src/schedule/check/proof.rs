//! The result of a proof: counts, or a violation.

#![forbid(unsafe_code)]

use std::fmt;

use crate::error::Error;
use crate::schedule::action::{Action, RankRange};
use crate::schedule::spec::Schedule;
use crate::types::Access;

/// The counts of a successful proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Number of rounds.
    pub rounds: u32,
    /// Length of the longest chain of dependent messages and publications.
    pub hops: u32,
    /// Each rank's work, for one slice.
    pub ranks: Vec<WorkCounts>,
}

/// The work of one rank in one slice, counted in chunks, not bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounts {
    /// Number of steps of all kinds.
    pub steps: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Chunks in the messages sent.
    pub chunks_sent: u64,
    /// Chunks in the messages received.
    pub chunks_received: u64,
    /// Pairs of chunks combined.
    pub chunks_reduced: u64,
    /// Chunks copied within this rank's memory.
    pub chunks_copied: u64,
    /// Chunks published.
    pub chunks_published: u64,
    /// Chunks read from the peers' published or exposed memory.
    pub chunks_fetched: u64,
    /// Chunks stored into the peers' exposed memory.
    pub chunks_stored: u64,
}

/// An error in a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rank, channel and step number of the error, if it belongs to a step.
    pub at: Option<(u32, u32, u32)>,
    /// Description of the error.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((rank, channel, step)) = self.at {
            write!(f, "rank {rank}, channel {channel}, step {step}: ")?;
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for Violation {}

impl Violation {
    /// Creates a violation that belongs to no step.
    pub(super) fn of_all(what: String) -> Violation {
        Violation { at: None, what }
    }
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Error {
        Error::InvalidArgument(format!("invalid schedule: {violation}"))
    }
}

/// The number of slices executed, and how many rounds apart they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// Number of slices.
    pub count: u32,
    /// Number of rounds between the starts of two slices; at least 1.
    pub distance: u32,
}

impl Slices {
    /// A single slice.
    pub const ONE: Slices = Slices {
        count: 1,
        distance: 1,
    };
}

impl WorkCounts {
    /// Counts a rank's work. Work that any rank may do is counted as if this rank did all of it.
    pub(super) fn of(schedule: &Schedule) -> WorkCounts {
        let mut work = WorkCounts::default();
        for step in schedule.channels.iter().flatten() {
            work.steps += 1;
            work.add(schedule, step.action);
        }
        work
    }

    fn add(&mut self, schedule: &Schedule, action: Action) {
        let chunks = action.writes().or(action.reads()[0]);
        let len = chunks.map_or(0, |span| u64::from(span.len));
        let peers = u64::from(schedule.spec.world_size - 1);
        match action {
            Action::Send { .. } => {
                self.messages_sent += 1;
                self.chunks_sent += len;
            }
            Action::Recv { .. } => {
                self.messages_received += 1;
                self.chunks_received += len;
            }
            Action::RecvReduce { .. } => {
                self.messages_received += 1;
                self.chunks_received += len;
                self.chunks_reduced += len;
            }
            Action::RecvLeaf { .. } => {
                self.messages_received += 1;
                self.chunks_received += len;
            }
            Action::Fold { leaves, .. } => self.chunks_reduced += u64::from(leaves.len),
            Action::Copy { .. } => self.chunks_copied += len,
            Action::Reduce { .. } => self.chunks_reduced += len,
            Action::Publish { .. } => self.chunks_published += len,
            Action::GiveBack { .. } => self.chunks_published += peers * len,
            Action::CopyFrom { .. } | Action::TakeBack { .. } | Action::Collect { .. } => {
                self.chunks_fetched += len;
            }
            Action::ReduceFrom { .. } => {
                self.chunks_fetched += peers * len;
                self.chunks_reduced += peers * len;
            }
            Action::Combine(combine) => {
                let len = u64::from(combine.into.len);
                let own = schedule.spec.rank;
                let others = |ranks: RankRange| ranks.ranks().filter(|rank| *rank != own).count();
                self.chunks_fetched += others(combine.sources) as u64 * len;
                self.chunks_reduced += u64::from(combine.sources.count - 1) * len;
                if combine.access == Access::Registered {
                    self.chunks_stored += others(combine.targets) as u64 * len;
                }
            }
            Action::Await { .. } | Action::Expose { .. } => {}
        }
    }
}
