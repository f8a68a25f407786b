//! What processors do, and what the ranks of a machine share of them.

use std::collections::VecDeque;

use super::message::Receive;
use crate::transport::{Sink, Ticket};

/// What the ranks of a machine share.
pub(in crate::simulate) struct Machine {
    /// Jobs that wait, oldest first.
    pub queue: VecDeque<u32>,
    pub cores_free: usize,
    /// Ranks that poll on a core, the one that began first in front: where ranks outnumber cores.
    pub polling: VecDeque<u32>,
    /// Until when its memory is taken.
    pub memory_until_ps: u64,
}

impl Machine {
    pub fn new(cores: Option<usize>) -> Machine {
        Machine {
            queue: VecDeque::new(),
            cores_free: cores.unwrap_or(usize::MAX),
            polling: VecDeque::new(),
            memory_until_ps: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulate) enum JobKind {
    Overhead,
    Reduce,
    Copy,
}

/// What follows a job.
pub(in crate::simulate) enum Then {
    /// A message is offered to its receiver.
    Offer(u32),
    /// A message is taken in.
    Deliver(u32, Receive),
    /// A message was combined.
    Fold(u32, Receive),
    /// The engine is notified.
    Report(Ticket),
}

impl Then {
    /// Whether a message that was taken in is to be combined.
    pub fn combines(&self) -> bool {
        matches!(self, Then::Deliver(_, receive) if matches!(receive.sink, Sink::Reduce { .. }))
    }
}

/// Something that a processor does.
pub(in crate::simulate) struct Job {
    pub rank: u32,
    pub kind: JobKind,
    pub duration_ps: u64,
    /// How much longer it takes because it is slow.
    pub slow_ps: u64,
    /// Bytes that pass the machine's memory.
    pub bytes: u64,
    pub slice: u32,
    pub peer: Option<u32>,
    pub begin_ps: u64,
    /// The end of the chain behind it.
    pub part: u32,
    pub then: Then,
}

impl Job {
    pub fn new(rank: u32, kind: JobKind, duration_ps: u64, part: u32, then: Then) -> Job {
        Job {
            rank,
            kind,
            duration_ps,
            slow_ps: 0,
            bytes: 0,
            slice: 0,
            peer: None,
            begin_ps: 0,
            part,
            then,
        }
    }
}
