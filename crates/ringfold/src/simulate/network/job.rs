//! Jobs of processors, and the state that the ranks of a machine share.

use std::collections::VecDeque;

use super::message::Receive;
use crate::transport::{Sink, Ticket};

/// State that the ranks of a machine share.
pub(in crate::simulate) struct MachineState {
    /// Waiting jobs, oldest first.
    pub queue: VecDeque<u32>,
    pub cores_free: usize,
    /// Ranks that poll on a core, the earliest first; empty unless ranks outnumber cores.
    pub polling: VecDeque<u32>,
    /// Time until which the machine's memory is busy.
    pub memory_until_ps: u64,
}

impl MachineState {
    pub fn new(cores: Option<usize>) -> MachineState {
        MachineState {
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

/// The action after a job.
pub(in crate::simulate) enum Then {
    /// A message is offered to its receiver.
    Offer(u32),
    /// A message is delivered to its receive.
    Deliver(u32, Receive),
    /// A message is reduced into its destination.
    Fold(u32, Receive),
    /// The engine is notified.
    Report(Ticket),
    /// A rank has combined its share of a slice in slots; true if that releases its device.
    Combined(bool),
}

impl Then {
    /// Whether the job delivers a message that is to be reduced.
    pub fn combines(&self) -> bool {
        matches!(self, Then::Deliver(_, receive) if matches!(receive.sink, Sink::Reduce { .. }))
    }
}

/// A unit of work for a processor.
pub(in crate::simulate) struct ProcessorJob {
    pub rank: u32,
    pub kind: JobKind,
    pub duration_ps: u64,
    /// Additional duration of a slow job.
    pub slow_ps: u64,
    /// Bytes that the job moves through the machine's memory.
    pub bytes: u64,
    pub slice: u32,
    pub peer: Option<u32>,
    pub begin_ps: u64,
    /// End of the chain of parts that led to the job.
    pub part: u32,
    pub then: Then,
}

impl ProcessorJob {
    pub fn new(rank: u32, kind: JobKind, duration_ps: u64, part: u32, then: Then) -> ProcessorJob {
        ProcessorJob {
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
