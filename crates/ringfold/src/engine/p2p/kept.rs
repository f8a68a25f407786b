//! Messages that arrived before their receives, in memory of the library.
//!
//! Messages are kept oldest first. The last one of a peer may still be arriving, and may already
//! have a receive. The total is bounded before memory is allocated: the length in a peer's header
//! is a claim.

use std::collections::VecDeque;

use crate::call::Qualifier;
use crate::memory::{Owned, Region};
use crate::transport::Header;

/// Maximum bytes of kept messages: enough for a program that receives a few large messages out of
/// order, and little beside the memory of a training job.
pub const KEPT_BYTES_MAX: usize = 256 << 20;

/// Bytes that each kept message counts beside its payload.
const OVERHEAD_BYTES: usize = 256;
const _: () = assert!(size_of::<UnexpectedMessage>() <= OVERHEAD_BYTES);

/// The messages that are kept.
#[derive(Default)]
pub struct UnexpectedMessages {
    messages: VecDeque<UnexpectedMessage>,
    bytes: usize,
}

struct UnexpectedMessage {
    peer: usize,
    header: Header,
    memory: Owned,
    is_whole: bool,
    /// The receive that gets the message once it is whole.
    taker: Option<usize>,
}

impl UnexpectedMessages {
    /// Allocates memory for the message with this header, which becomes the peer's newest; `None`
    /// if too much is kept already.
    pub fn make_room(&mut self, peer: usize, header: &Header) -> Option<Region> {
        let bytes = header.bytes as usize;
        if bytes + OVERHEAD_BYTES > KEPT_BYTES_MAX - self.bytes {
            return None;
        }
        self.bytes += bytes + OVERHEAD_BYTES;
        let memory = Owned::zeroed(bytes);
        let region = memory.region();
        self.messages.push_back(UnexpectedMessage {
            peer,
            header: *header,
            memory,
            is_whole: false,
            taker: None,
        });
        Some(region)
    }

    /// Finds the oldest message that has no taker and that a receive `matches` by peer and tag.
    pub fn find(&self, matches: impl Fn(usize, Qualifier) -> bool) -> Option<(usize, Header)> {
        let is_free = |message: &&UnexpectedMessage| message.taker.is_none();
        let mut free = self.messages.iter().filter(is_free);
        free.find(|message| matches(message.peer, message.header.call.qualifier))
            .map(|message| (message.peer, message.header))
    }

    /// Delivers the message that `find` found to receive `taker`, whose memory is `into`: now, or
    /// once the message is whole. Returns whether it is delivered.
    pub fn hand_over(&mut self, peer: usize, header: &Header, into: Region, taker: usize) -> bool {
        let is_it = |message: &UnexpectedMessage| message.peer == peer && message.header == *header;
        let place = self.messages.iter().position(is_it);
        let place = place.expect("a message that was found");
        self.messages[place].taker = Some(taker);
        self.deliver(place, into)
    }

    /// Marks the arriving message of `peer` as whole, delivers it to its receive, if there is one,
    /// and returns that receive; `region` returns the memory of a receive.
    pub fn arrived(
        &mut self,
        peer: usize,
        region: impl Fn(usize) -> Option<Region>,
    ) -> Option<usize> {
        let is_it = |message: &UnexpectedMessage| message.peer == peer && !message.is_whole;
        let place = self.messages.iter().rposition(is_it)?;
        self.messages[place].is_whole = true;
        let taker = self.messages[place].taker?;
        self.deliver(place, region(taker)?);
        Some(taker)
    }

    fn deliver(&mut self, place: usize, into: Region) -> bool {
        if !self.messages[place].is_whole {
            return false;
        }
        if let Some(message) = self.messages.remove(place) {
            into.copy_from(message.memory.region());
            self.bytes -= message.memory.region().bytes() + OVERHEAD_BYTES;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Call;
    use crate::types::{Access, Algorithm, Assignment, Collective, DType};

    #[test]
    fn messages_without_payload_are_bounded_in_number() {
        let call = Call {
            collective: Collective::Send,
            dtype: DType::U8,
            op: 0,
            algorithm: Algorithm::OneShot,
            access: Access::Messages,
            assignment: Assignment::Owner,
            is_inline: false,
            qualifier: Qualifier::Tag(1),
            count: 0,
            lists: 0,
            sequence: 1,
            cut: 0,
        };
        let header = Header {
            call,
            slice: 0,
            index: 0,
            bytes: 0,
        };
        let mut kept = UnexpectedMessages::default();
        let most = KEPT_BYTES_MAX / OVERHEAD_BYTES;
        for _ in 0..most {
            kept.make_room(0, &header).expect("room");
            kept.arrived(0, |_| None);
        }
        assert!(kept.make_room(0, &header).is_none());
        kept.hand_over(0, &header, Region::EMPTY, 0);
        assert!(kept.make_room(0, &header).is_some());
    }
}
