//! Messages of this rank to itself, which no transport carries.
//!
//! A send finds a waiting receive, or the message is kept for one. Messages of one tag stay in
//! their order: while a send waits for room, later sends with its tag wait, too.

use super::Mailbox;
use crate::error::Result;
use crate::transport::Transport;

impl Mailbox {
    /// Delivers a message to this rank itself, or keeps it for a later receive.
    pub(super) fn send_to_self(
        &mut self,
        number: usize,
        transport: &mut dyn Transport,
    ) -> Result<()> {
        let (header, region) = {
            let message = self.message(number);
            (message.header(), message.region)
        };
        let tag = header.call.qualifier;
        if let Some(receive) = self.first_waiting(self.rank, tag) {
            self.deliver_to_self(number, receive)?;
            return self.stop_unneeded_listening(transport);
        }
        let mut before = self.to_self.iter();
        let is_next = !before.any(|each| self.message(*each).call.qualifier == tag);
        match is_next.then(|| self.kept.make_room(self.rank, &header)) {
            Some(Some(room)) => {
                room.copy_from(region);
                self.kept.arrived(self.rank, |_| None);
                self.finish(number);
            }
            _ => self.to_self.push_back(number),
        }
        Ok(())
    }

    /// Delivers to a receive the oldest matching message that this rank sends to itself, if one
    /// waits.
    pub(super) fn take_from_self(&mut self, receive: usize) -> Result<bool> {
        let message = self.message(receive);
        let matches = |send: &usize| {
            let tag = self.message(*send).call.qualifier;
            message.matches(self.rank, tag)
        };
        let Some(place) = self.to_self.iter().position(matches) else {
            return Ok(false);
        };
        let send = self.to_self.remove(place).expect("a place that was found");
        self.deliver_to_self(send, receive).map(|()| true)
    }

    fn deliver_to_self(&mut self, send: usize, receive: usize) -> Result<()> {
        let message = self.message(send);
        let (header, from) = (message.header(), message.region);
        self.compare(receive, self.rank, &header)?;
        self.message(receive).region.copy_from(from);
        self.finish(send);
        self.finish(receive);
        Ok(())
    }
}
