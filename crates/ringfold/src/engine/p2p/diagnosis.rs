//! What messages wait for: deadlines, ranks that are gone, and the texts for both.

use std::time::Duration;

use super::{KEPT_BYTES_MAX, KEPT_MESSAGES_MAX, Mailbox, Message};
use crate::error::{Error, Ranks, Result, Site};
use crate::transport::{Header, Time};

impl Mailbox {
    /// Sets the deadlines of messages that have none yet, and gives the error of one whose deadline
    /// has passed.
    pub fn check_deadlines(&mut self, now: Time) -> Result<()> {
        let mut late = None;
        for (number, message) in self.messages.iter_mut().enumerate() {
            let Some(message) = message else { continue };
            let deadline = message.deadline.get_or_insert(now.after(message.timeout));
            if now >= *deadline {
                late = Some((number, message.timeout));
            }
        }
        match late {
            Some((number, timeout)) => Err(self.timeout(number, timeout)),
            None => Ok(()),
        }
    }

    /// The ranks that some message waits for.
    pub fn waiting_for(&self) -> Vec<usize> {
        let messages = self.messages.iter().flatten();
        messages
            .flat_map(|message| self.peers_of(message))
            .collect()
    }

    /// A rank that is gone, as `is_gone` says, and without which some message cannot be sent or
    /// received.
    pub fn missed(&self, is_gone: &mut dyn FnMut(usize) -> bool) -> Option<usize> {
        self.messages.iter().flatten().find_map(|message| {
            let peers = self.peers_of(message);
            let all_gone = !peers.is_empty() && peers.iter().all(|peer| is_gone(*peer));
            all_gone.then(|| peers[0])
        })
    }

    /// Where some message stands, if one is under way.
    pub fn running_site(&self) -> Option<Site> {
        let first = self.waiting.front().copied();
        let any = || self.messages.iter().position(Option::is_some);
        first.or_else(any).map(|number| self.site(number))
    }

    pub(super) fn site(&self, number: usize) -> Site {
        let message = self.message(number);
        let peers = self.peers_of(message);
        let mut phase = match message.peer {
            Some(_) => format!("waiting for {}", Ranks(&peers)),
            None => format!("waiting for any of {}", Ranks(&peers)),
        };
        let held_back = |peer: &usize| Some((*peer, self.peers[*peer].held_back?));
        let is_waiting = self.waiting.contains(&number);
        if let Some((peer, header)) = peers.iter().find_map(held_back).filter(|_| is_waiting) {
            phase = format!("{phase}; {}", no_room(peer, &header));
        }
        Site {
            call: message.call,
            phase,
        }
    }

    /// `peer` has left, and all that it sent is taken.
    pub(super) fn has_ended(&mut self, peer: usize, reason: &str) -> Result<bool> {
        self.peers[peer].has_ended = true;
        let is_missed = |number: &&usize| {
            let mut peers = self.peers_of(self.message(**number)).into_iter();
            // A receive from any source waits as long as a rank is left that can send.
            peers.all(|source| self.peers[source].has_ended)
        };
        let Some(number) = self.waiting.iter().find(is_missed) else {
            return Ok(false);
        };
        let error = Error::peer_failed(peer, reason);
        Err(error.at(self.site(*number)))
    }

    /// Notes that a message is left where it is, because too much is kept.
    pub(super) fn hold_back(&mut self, peer: usize, header: &Header) {
        if self.peers[peer].held_back.replace(*header).is_none() {
            log::warn!(
                "a receive waits behind another message: {}",
                no_room(peer, header)
            );
        }
    }

    fn timeout(&self, number: usize, timeout: Duration) -> Error {
        Error::Timeout {
            waiting_for: self.peers_of(self.message(number)),
            after_ms: timeout.as_millis() as u64,
            site: Some(self.site(number)),
        }
    }

    /// The other end of a message, or all that may be it.
    fn peers_of(&self, message: &Message) -> Vec<usize> {
        match message.peer {
            Some(peer) => vec![peer],
            None => (0..self.peers.len())
                .filter(|peer| *peer != self.rank)
                .collect(),
        }
    }
}

fn no_room(peer: usize, Header { call, bytes, .. }: &Header) -> String {
    let (_, tag) = call.qualifier.encode();
    format!(
        "in front of what it asks for stands rank {peer}'s {call} ({bytes} bytes), and no more \
         than {KEPT_MESSAGES_MAX} messages of {KEPT_BYTES_MAX} bytes together are kept for \
         receives to come: post the receive with tag {tag} before this one is waited for"
    )
}
