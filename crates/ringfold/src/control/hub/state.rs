//! The server's state of a job.

use std::collections::HashMap;
use std::time::Instant;

use crate::control::claims::Claims;
use crate::control::fault::Fault;
use crate::control::frame::{Frame, Presence};
use crate::control::standing::Standing;
use crate::silence::Silence;

/// Maximum number of open communicators, and of open exchanges; more is a protocol violation.
pub(super) const OPEN_MAX: usize = 1 << 16;

/// Maximum number of refusals passed on to waiting ranks immediately: any client can cause them.
pub(super) const REFUSALS_TOLD_MAX: u32 = 64;

/// One rank, as the server sees it.
#[derive(Clone, Debug)]
pub(super) enum RankStatus {
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
    pub(super) ranks: Vec<RankStatus>,
    /// Whether joining is over: all ranks are in the job, or none because not all joined.
    pub(super) is_complete: bool,
    /// The connection that was refused last, and the reason.
    pub(super) refused: Option<String>,
    /// Number of refusals that were passed on to the waiting ranks.
    pub(super) refusals_told: u32,
    /// Frame for ranks that connect after the job was cancelled.
    pub(super) cancellation: Option<Frame>,
    pub(super) join_deadline: Instant,
    pub(super) groups: HashMap<u64, CommunicatorRecord>,
    pub(super) gatherings: HashMap<Topic, Gathering>,
    pub(super) inquiries: u64,
    pub(super) out: Vec<(u32, Frame)>,
}

/// The error for a frame that no correct rank sends.
#[derive(Debug, PartialEq, Eq)]
pub struct ProtocolViolation(pub &'static str);

/// A communicator, as the server sees it.
#[derive(Debug)]
pub(super) struct CommunicatorRecord {
    pub(super) members: Vec<u32>,
    /// Members that have opened the communicator.
    pub(super) opened: Vec<u32>,
    /// Members that have closed the communicator cleanly.
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

/// A survey in progress.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) number: u64,
    pub(super) asker: u32,
    /// The asker's number for the answer.
    pub(super) token: u64,
    pub(super) deadline: Instant,
    pub(super) answers: HashMap<u32, Standing>,
}

/// Identity of an exchange: its key and its members.
pub(super) type Topic = (String, Vec<u32>);

/// An exchange that is not complete.
#[derive(Debug)]
pub(super) struct Gathering {
    pub(super) deadline: Instant,
    /// Token and blob of each member, in the members' order; `None` until they arrive.
    pub(super) parts: Vec<Option<(u64, Vec<u8>)>>,
}
