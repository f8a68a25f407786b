//! Queue pairs: what is posted, and their states.

use std::collections::VecDeque;
use std::time::Instant;

/// `IBV_QPS_RESET` and so on.
pub const RESET: u32 = 0;
pub const INIT: u32 = 1;
pub const READY_TO_RECEIVE: u32 = 2;
pub const READY_TO_SEND: u32 = 3;
pub const ERROR: u32 = 6;

/// Memory that a request names.
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
    /// What was copied when it was posted.
    pub inline: Option<Vec<u8>>,
    /// Big endian, as it is handed on.
    pub imm: u32,
    pub remote_address: u64,
    pub rkey: u32,
    /// When the device comes to it at the earliest.
    pub due: Instant,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub id: u64,
    pub piece: Option<Piece>,
}

/// Where a pair's packets go.
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
    /// The handles of its completion queues.
    pub queues: [u32; 2],
    pub state: u32,
    pub peer: Peer,
    /// `IBV_MTU_256` is 1, and so on.
    pub mtu: u32,
    pub rights: u32,
    pub sends: VecDeque<Request>,
    pub receives: VecDeque<Receive>,
    pub send_room: usize,
    pub receive_room: usize,
    pub inline_bytes: usize,
    /// Places of the send queue that are taken: until a completion is polled.
    pub send_used: usize,
    /// Requests that have ended since the last that was signaled.
    pub unsignaled: usize,
    /// Whether its first request is on the way to another process.
    pub is_awaiting: bool,
}

impl Pair {
    /// Whether a change from one state to another is permitted, with the members that `what` says.
    pub fn permits(&self, to: u32, what: u32) -> bool {
        /// STATE, and what each change needs.
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

    /// From when on its first request can be done.
    pub fn due(&self) -> Option<Instant> {
        let is_idle = self.state == READY_TO_SEND && !self.is_awaiting;
        self.sends.front().filter(|_| is_idle).map(|send| send.due)
    }
}
