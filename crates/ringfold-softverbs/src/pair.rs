//! Queue pairs: their posted requests and states.

use std::collections::VecDeque;
use std::time::Instant;

/// `IBV_QPS_RESET` and so on.
pub const RESET: u32 = 0;
pub const INIT: u32 = 1;
pub const READY_TO_RECEIVE: u32 = 2;
pub const READY_TO_SEND: u32 = 3;
pub const ERROR: u32 = 6;

/// `IBV_WR_RDMA_WRITE` and `IBV_WR_SEND`.
pub const WRITE: u32 = 0;
pub const SEND: u32 = 2;

/// Memory range of a request.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub address: u64,
    pub bytes: usize,
    pub lkey: u32,
}

/// A request of the send queue.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: u64,
    pub opcode: u32,
    pub is_signaled: bool,
    pub pieces: Vec<Piece>,
    /// Payload copied when the request was posted.
    pub inline: Option<Vec<u8>>,
    /// Immediate data, big endian, passed on unchanged.
    pub imm: u32,
    pub remote_address: u64,
    pub rkey: u32,
    /// Earliest time at which the device executes the request.
    pub due: Instant,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub id: u64,
    pub piece: Option<Piece>,
}

/// Address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub process: u32,
    pub pair: u32,
}

/// A queue pair.
#[derive(Debug)]
pub struct Pair {
    pub device: usize,
    pub domain: usize,
    /// Handles of the send and the receive completion queue.
    pub queues: [u32; 2],
    pub state: u32,
    pub peer: Peer,
    /// The `IBV_MTU_*` number (1 for 256 bytes).
    pub mtu: u32,
    pub rights: u32,
    pub sends: VecDeque<Request>,
    pub receives: VecDeque<Receive>,
    pub send_room: usize,
    pub receive_room: usize,
    pub inline_bytes: usize,
    /// Entries of the send queue in use, until a completion is polled.
    pub send_used: usize,
    /// Requests completed since the last signaled one.
    pub unsignaled: usize,
    /// Whether the first request is in transit to another process.
    pub is_awaiting: bool,
}

impl Pair {
    /// Whether a change to state `to` with the attribute mask `what` is permitted.
    pub fn permits(&self, to: u32, what: u32) -> bool {
        /// `IBV_QP_STATE`, and the attributes that each change needs.
        const INIT_MASK: u32 = 1 | 1 << 3 | 1 << 4 | 1 << 5;
        const RECEIVE_MASK: u32 = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
        const SEND_MASK: u32 = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
        match (self.state, to) {
            (_, ERROR) => true,
            (RESET, INIT) => what == INIT_MASK,
            (INIT, READY_TO_RECEIVE) => what == RECEIVE_MASK,
            (READY_TO_RECEIVE, READY_TO_SEND) => what == SEND_MASK,
            _ => false,
        }
    }

    /// Returns the earliest time of the first request, or `None` while none can be executed.
    pub fn due(&self) -> Option<Instant> {
        let is_idle = self.state == READY_TO_SEND && !self.is_awaiting;
        self.sends.front().filter(|_| is_idle).map(|send| send.due)
    }
}
