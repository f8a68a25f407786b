//! State shared by all links over one device: its completion queue and the transport's memory
//! there.

use std::sync::{Arc, Weak};

use super::cells::Cells;
use super::memory::{HeldMemory, WINDOW_BYTES, Window};
use super::options::RdmaOptions;
use super::packet::{CONTROL_BYTES_MAX, PACKET_BYTES_MAX};
use crate::error::{Error, Result};
use crate::memory::{Owned, Region};
use crate::transport::Term;
use crate::verbs::{CompletionQueue, Domain, MemoryAccess, Piece, WorkCompletion};

/// Number of cells for each link's packets in transit. Most packets are inline in the request.
const PACKETS_OUT: usize = 8;

/// Number of failed registrations of calls' memory that ends the attempts.
const REFUSALS_MAX: u32 = 4;

/// A port of this rank.
#[derive(Clone, Debug)]
pub struct RailPort {
    pub domain: Arc<Domain>,
    pub port: u8,
}

/// A device's part of the transport.
pub struct Rail {
    pub port: RailPort,
    pub queue: CompletionQueue,
    /// Received packets, and sent packets that do not fit into a request.
    pub packets: Cells,
    /// Parts of outgoing messages.
    pub out_pieces: Cells,
    /// Parts of incoming messages.
    pub in_pieces: Cells,
    /// Callers' memory that requests name directly, the latest last.
    held: Vec<Weak<HeldMemory>>,
    /// Number of failed registrations of calls' memory.
    refusals: u32,
    /// Memory in which a packet is assembled.
    pub scratch: Owned,
    /// Completed requests that are not handled yet.
    pub ended: Vec<WorkCompletion>,
    register_bytes_min: usize,
}

impl Rail {
    /// Creates the rail of `links` links, each with queues of these depths.
    pub fn new(
        port: RailPort,
        links: usize,
        (send_depth, receive_depth): (usize, usize),
        options: &RdmaOptions,
    ) -> Result<Rail> {
        let domain = &port.domain;
        let packets = links * (receive_depth + PACKETS_OUT);
        let (pieces, piece_bytes) = (options.pieces, options.piece_bytes);
        Ok(Rail {
            queue: CompletionQueue::new(domain, links * (send_depth + receive_depth))?,
            packets: Cells::new(domain, packets, PACKET_BYTES_MAX, MemoryAccess::Receive)?,
            out_pieces: Cells::new(domain, pieces, piece_bytes, MemoryAccess::Read)?,
            in_pieces: Cells::new(domain, pieces, piece_bytes, MemoryAccess::PeersWrite)?,
            held: Vec::new(),
            refusals: 0,
            scratch: Owned::zeroed(CONTROL_BYTES_MAX),
            ended: Vec::new(),
            register_bytes_min: options.register_bytes_min,
            port,
        })
    }

    /// Returns the window of held memory at the beginning of `part` for this access, and the number
    /// of bytes of `part` in the window. `None` if `part` must be copied.
    pub fn window(&mut self, part: Region, access: MemoryAccess) -> Option<(Arc<Window>, usize)> {
        let mut held = self.held.iter().rev().filter_map(Weak::upgrade);
        let held = held.find(|held| held.permits(part, access))?;
        match held.window(part) {
            Ok(window) => window,
            Err(error) => {
                self.note_refusal(&error);
                None
            }
        }
    }

    /// Lets requests name `memory` directly, until the result is dropped or everything ends. `None`
    /// if `memory` is copied nevertheless, or held already.
    pub fn hold(&mut self, memory: Region, term: Term) -> Option<Arc<HeldMemory>> {
        let domain = &self.port.domain;
        let access = match term {
            Term::Input => MemoryAccess::Read,
            Term::Output | Term::Long => MemoryAccess::PeersWrite,
        };
        let held = match term {
            Term::Long => match HeldMemory::whole(domain, memory) {
                Ok(held) => held,
                Err(error) => {
                    warn_of_copies(&error);
                    return None;
                }
            },
            _ if memory.bytes() < self.register_bytes_min => return None,
            _ if self.is_held(memory, access) => return None,
            _ => HeldMemory::new(
                domain,
                memory,
                access,
                WINDOW_BYTES.max(self.register_bytes_min),
            ),
        };
        let held = Arc::new(held);
        self.held.retain(|held| held.strong_count() > 0);
        self.held.push(Arc::downgrade(&held));
        Some(held)
    }

    fn is_held(&self, memory: Region, access: MemoryAccess) -> bool {
        let mut held = self.held.iter().filter_map(Weak::upgrade);
        held.any(|held| held.permits(memory, access))
    }

    /// Counts a failed registration; after some, as with a low limit of locked memory, calls copy.
    #[cold]
    fn note_refusal(&mut self, error: &Error) {
        warn_of_copies(error);
        self.refusals += 1;
        if self.refusals == REFUSALS_MAX {
            self.register_bytes_min = usize::MAX;
        }
    }

    /// Ends all registrations of callers' memory.
    pub fn end_held(&mut self) {
        for held in self.held.drain(..).filter_map(|held| held.upgrade()) {
            held.end();
        }
    }

    /// Returns the scratch's first `bytes`, for an inline request.
    pub fn scratch_piece(&self, bytes: usize) -> Piece {
        Piece {
            region: self.scratch.region().part(0..bytes),
            lkey: 0,
        }
    }
}

/// Logs why memory is copied instead of registered.
#[cold]
fn warn_of_copies(error: &Error) {
    log::warn!(
        target: "ringfold::transport",
        "cannot register memory of messages, which are copied instead: {error}"
    );
}
