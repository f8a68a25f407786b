//! Grants, which long messages over RDMA wait for: the receiver announces a destination once its
//! receive is posted. Grants cost no processor time, and messages of a stream keep their order.

use super::event::ScheduledEvent;
use super::message::StreamKey;
use super::record::PathKind;
use super::world::World;
use crate::simulate::model::Sending;

impl World {
    /// Whether long messages between these ranks need grants.
    pub fn has_grants(&self, from: u32, to: u32) -> bool {
        let network = &self.scenario.network;
        let (links, _) = network.links_between(from as usize, to as usize);
        links.grants.is_some()
    }

    /// Handles a newly posted receive: requests its message in a rendezvous, or starts its grant.
    pub fn expect(&mut self, to: u32, source: StreamKey) {
        match self.scenario.network.sending {
            Sending::Rendezvous => self.ask(to, source),
            Sending::Eager if self.has_grants(source.0, to) => self.write_granted(source.0),
            Sending::Eager => {}
        }
    }

    /// Makes a message wait for its grant, if it needs one.
    pub fn offer_for_grant(&mut self, number: u32) {
        let message = self.messages.see(number);
        let (to, source) = (message.to, (message.from, message.channel));
        self.incoming(to, source).offered.push_back(number);
        let ungranted = &mut self.ranks[source.0 as usize].ungranted;
        if !ungranted.contains(&(to, source.1)) {
            ungranted.push((to, source.1));
        }
        self.write_granted(source.0);
    }

    /// Launches a rank's messages that have their grant or need none: stream by stream, in the
    /// order in which the streams began to wait.
    pub fn write_granted(&mut self, from: u32) {
        let mut ungranted = std::mem::take(&mut self.ranks[from as usize].ungranted);
        ungranted.retain(|(to, channel)| self.is_left(*to, (from, *channel)));
        self.ranks[from as usize].ungranted = ungranted;
    }

    /// Launches a stream's messages up to the first that lacks its grant; returns whether one does.
    fn is_left(&mut self, to: u32, source: StreamKey) -> bool {
        while let Some(&number) = self.incoming(to, source).offered.front() {
            if !self.has_grant(number, to, source) {
                return true;
            }
            let is_last = self.messages.see(number).is_last();
            let incoming = self.incoming(to, source);
            incoming.offered.pop_front();
            incoming.accepted += usize::from(is_last);
            self.launch(number);
        }
        false
    }

    /// Whether the first message of a stream has its grant, or needs none. If the grant is on its
    /// way, the sender checks again when the grant arrives.
    fn has_grant(&mut self, number: u32, to: u32, source: StreamKey) -> bool {
        let message = self.messages.see(number);
        let (bytes, part) = (message.header.bytes, message.part);
        let Some(grant_ps) = self.links(message).grant_ps(bytes.into()) else {
            return true;
        };
        let incoming = self.incoming(to, source);
        let Some(receive) = incoming.receives.get(incoming.accepted) else {
            return false;
        };
        let (granted_ps, behind) = (receive.posted_ps + grant_ps, receive.part);
        if granted_ps > self.now {
            self.schedule(granted_ps, ScheduledEvent::Granted(source.0));
            return false;
        }
        // A message that was ready before its grant waited for the grant.
        if self.record.end_ps(part) < granted_ps {
            let ends = (to, Some(source.0));
            let part = self.record.extend(behind, PathKind::Wire, ends, granted_ps);
            self.messages.at(number).part = part;
        }
        true
    }
}
