//! Deadlines of messages, peers that have left, and the error texts for both.

use std::time::Duration;

use super::{KEPT_BYTES_MAX, Mailbox, PendingMessage};
use crate::error::{Error, Ranks, Result, Site};
use crate::transport::{Header, Time};

/// Length of `undated` up to which messages that have ended are not dropped from it.
const UNDATED_MIN: usize = 64;

impl Mailbox {
    /// Records that a message has no deadline yet.
    pub(super) fn expect_deadline(&mut self, number: usize) {
        self.undated.push(number);
        // If messages end without any wait, the numbers of ended messages pile up.
        if self.undated.len() > UNDATED_MIN.max(2 * self.messages.len()) {
            self.undated.clear();
            let messages = self.messages.iter().enumerate();
            let is_undated = |message: &PendingMessage| message.deadline.is_none();
            let undated = messages.filter(|(_, each)| each.as_ref().is_some_and(is_undated));
            self.undated.extend(undated.map(|(number, _)| number));
        }
    }

    /// Sets the deadlines of messages that have none yet; returns `Timeout` if one has passed.
    pub fn check_deadlines(&mut self, now: Time) -> Result<()> {
        while let Some(number) = self.undated.pop() {
            let Some(message) = &mut self.messages[number] else {
                continue;
            };
            let deadline = *message.deadline.get_or_insert(now.after(message.timeout));
            self.next_deadline = self.next_deadline.into_iter().chain([deadline]).min();
        }
        if self.next_deadline.is_none_or(|next| now < next) {
            return Ok(());
        }
        let dated = self.messages.iter().enumerate();
        let dated =
            dated.filter_map(|(number, message)| Some((message.as_ref()?.deadline?, number)));
        match dated.min() {
            Some((deadline, number)) if now >= deadline => {
                Err(self.timeout(number, self.message(number).timeout))
            }
            next => {
                self.next_deadline = next.map(|(deadline, _)| deadline);
                Ok(())
            }
        }
    }

    /// Returns the ranks that some message waits for.
    pub fn waiting_for(&self) -> Vec<usize> {
        let messages = self.messages.iter().flatten();
        messages
            .flat_map(|message| self.peers_of(message))
            .collect()
    }

    /// Returns a rank that `is_gone` and without which some message cannot be sent or received. A
    /// receive from any source misses the others only if the program `waits`, because otherwise
    /// this rank may still send to itself.
    pub fn missed(&self, waits: bool, is_gone: &mut dyn FnMut(usize) -> bool) -> Option<usize> {
        let mut messages = self.messages.iter().flatten();
        // A message to this rank itself ends without the others, and more may be sent then.
        let is_own =
            |message: &PendingMessage| !message.is_receive() && message.peer == Some(self.rank);
        let waits = waits && !messages.clone().any(is_own);
        messages.find_map(|message| {
            let peers = self.peers_of(message);
            let may_miss = message.peer.is_some() || waits;
            let mut is_gone = |peer: &usize| self.peers[*peer].has_ended || is_gone(*peer);
            (may_miss && peers.iter().all(&mut is_gone)).then(|| peers[0])
        })
    }

    /// Whether some peer's messages have ended.
    pub fn has_any_peer_ended(&self) -> bool {
        self.peers.iter().any(|peer| peer.has_ended)
    }

    /// Describes the progress of a message, if one is under way.
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

    /// Records that `peer` has left and all its messages are taken; fails if a receive waits for
    /// `peer`. Receives from any source are left to [`Mailbox::missed`].
    pub(super) fn has_ended(&mut self, peer: usize, reason: &str) -> Result<bool> {
        self.peers[peer].has_ended = true;
        let is_missed = |number: &&usize| self.message(**number).peer == Some(peer);
        let Some(number) = self.waiting.iter().find(is_missed) else {
            return Ok(false);
        };
        let error = Error::peer_failed(peer, reason);
        Err(error.at(self.site(*number)))
    }

    /// Records that a message stays in its stream, because too much is kept.
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

    /// Returns the other end of a message, or all possible ones: for a receive from any source the
    /// other ranks, and only without any this rank itself.
    fn peers_of(&self, message: &PendingMessage) -> Vec<usize> {
        match message.peer {
            Some(peer) => vec![peer],
            None if self.peers.len() == 1 => vec![self.rank],
            None => (0..self.peers.len())
                .filter(|peer| *peer != self.rank)
                .collect(),
        }
    }
}

fn no_room(peer: usize, Header { call, bytes, .. }: &Header) -> String {
    let (_, tag) = call.qualifier.encode();
    format!(
        "blocked by rank {peer}'s {call} ({bytes} bytes) ahead in the stream; at most \
         {KEPT_BYTES_MAX} bytes of messages are kept for later receives: post the receive with tag \
         {tag} before waiting for this one"
    )
}
