//! What all links over one device share: its completion queue and the transport's memory there.

use std::sync::{Arc, Weak};

use super::memory::{Cells, Keys, Known};
use super::options::RdmaOptions;
use super::packet::{CONTROL_BYTES_MAX, PACKET_BYTES_MAX};
use crate::error::Result;
use crate::memory::{Owned, Region};
use crate::verbs::{Access, Completion, CompletionQueue, Domain, Piece, Registered};

/// Packets of each link that may be under way from a cell. Most go with the request itself.
const PACKETS_OUT: usize = 8;

/// A port of this rank's.
#[derive(Clone, Debug)]
pub struct RailPort {
    pub domain: Arc<Domain>,
    pub port: u8,
}

/// A device's part of the transport.
pub struct Rail {
    pub port: RailPort,
    pub queue: CompletionQueue,
    /// Packets that come, and those that go and do not fit into a request.
    pub packets: Cells,
    /// Parts of messages that go.
    pub out_pieces: Cells,
    /// Parts of messages that come.
    pub in_pieces: Cells,
    /// What is registered for longer than a message.
    pub known: Vec<Weak<Known>>,
    /// Where a packet is put together.
    pub scratch: Owned,
    /// Requests that have ended and are not handled yet.
    pub ended: Vec<Completion>,
    pub register_bytes_min: usize,
}

impl Rail {
    /// That of `links` links, each of so many requests.
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
            packets: Cells::new(domain, packets, PACKET_BYTES_MAX, Access::Receive)?,
            out_pieces: Cells::new(domain, pieces, piece_bytes, Access::Read)?,
            in_pieces: Cells::new(domain, pieces, piece_bytes, Access::PeersWrite)?,
            known: Vec::new(),
            scratch: Owned::zeroed(CONTROL_BYTES_MAX),
            ended: Vec::new(),
            register_bytes_min: options.register_bytes_min,
            port,
        })
    }

    /// The keys of the registration that `part` lies in, if one lasts.
    pub fn known(&self, part: Region) -> Option<Keys> {
        let mut known = self.known.iter().filter_map(Weak::upgrade);
        known.find_map(|known| known.keys(part))
    }

    /// Registers memory until the result is dropped, or everything ends.
    pub fn hold(&mut self, memory: Region) -> Result<Arc<Known>> {
        let registered = self.port.domain.register(memory, Access::PeersWrite)?;
        let known = Arc::new(Known::new(registered));
        self.known.retain(|known| known.strong_count() > 0);
        self.known.push(Arc::downgrade(&known));
        Ok(known)
    }

    /// Ends what is registered for longer than a message.
    pub fn end_known(&mut self) {
        for known in self.known.drain(..).filter_map(|known| known.upgrade()) {
            known.end();
        }
    }

    /// Registers memory for one message, if that is quicker than to copy it.
    pub fn register(&self, part: Region, access: Access) -> Result<Option<Registered>> {
        let is_worth_it = part.bytes() >= self.register_bytes_min;
        is_worth_it
            .then(|| self.port.domain.register(part, access))
            .transpose()
    }

    /// What was written to the scratch, for a request that takes it along.
    pub fn scratch_piece(&self, bytes: usize) -> Piece {
        Piece {
            region: self.scratch.region().part(0..bytes),
            lkey: 0,
        }
    }
}
