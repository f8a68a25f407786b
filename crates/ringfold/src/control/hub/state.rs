//! What the server knows of a job.

use std::collections::HashMap;
use std::time::Instant;

use crate::control::claims::Claims;
use crate::control::fault::Fault;
use crate::control::frame::{Frame, Presence};
use crate::control::standing::Standing;
use crate::silence::Silence;

/// Communicators and exchanges that can be open at once; more is a protocol violation.
pub(super) const OPEN_MAX: usize = 1 << 16;

/// Refusals that are passed on to the waiting ranks as they come: any client can be refused.
pub(super) const REFUSALS_TOLD_MAX: u32 = 64;

/// One rank, as the server sees it.
#[derive(Clone, Debug)]
pub(super) enum Rank {
    Absent,
    Here(Presence),
    Departed,
    Failed(String),
}

/// The state of a job.
#[derive(Debug)]
pub struct Hub {
    pub(super) job: u64,
    pub(super) key: [u8; 32],
    pub(super) silence: Silence,
    pub(super) ranks: Vec<Rank>,
    /// Whether it is settled who is in the job: all ranks, or none because not all came.
    pub(super) is_complete: bool,
    /// Who came and was refused last, and why.
    pub(super) refused: Option<String>,
    /// How many refusals the ranks that wait were told.
    pub(super) refusals_told: u32,
    /// What ranks that come learn when the job was given up.
    pub(super) cancellation: Option<Frame>,
    pub(super) join_deadline: Instant,
    pub(super) groups: HashMap<u64, Group>,
    pub(super) gatherings: HashMap<Topic, Gathering>,
    pub(super) inquiries: u64,
    pub(super) out: Vec<(u32, Frame)>,
}

/// A rank said something that no honest rank says.
#[derive(Debug, PartialEq, Eq)]
pub struct ProtocolViolation(pub &'static str);

/// A communicator.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Vec<u32>,
    /// Members that have opened it.
    pub(super) opened: Vec<u32>,
    /// Members that have closed it in good order.
    pub(super) closed: Vec<u32>,
    pub(super) verdict: Option<Fault>,
    pub(super) inquiry: Option<Inquiry>,
    pub(super) surveys: Vec<Survey>,
    pub(super) claims: Claims,
}

#[derive(Debug)]
pub(super) struct Inquiry {
    pub(super) number: u64,
    pub(super) reporter: u32,
    pub(super) fault: Fault,
    pub(super) deadline: Instant,
    pub(super) answers: HashMap<u32, u64>,
}

/// A question that is being asked.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) number: u64,
    pub(super) asker: u32,
    /// The asker's number for the answer.
    pub(super) token: u64,
    pub(super) deadline: Instant,
    pub(super) answers: HashMap<u32, Standing>,
}

/// What an exchange is known by: its key and its members.
pub(super) type Topic = (String, Vec<u32>);

/// An exchange that is not complete.
#[derive(Debug)]
pub(super) struct Gathering {
    pub(super) deadline: Instant,
    /// Of those that came: the token and the blob, in the members' order.
    pub(super) parts: Vec<Option<(u64, Vec<u8>)>>,
}
