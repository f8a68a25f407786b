//! Completion queues.
//!
//! Completions are held before they can be polled. Those of one side of a queue pair are released
//! in order, those of different pairs and sides in any order. The completion that ended a pair is
//! released before the flushed ones.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::layout::Wc;
use crate::settings::Lateness;

/// `IBV_WC_SUCCESS` and `IBV_WC_WR_FLUSH_ERR`.
pub const SUCCESS: u32 = 0;
pub const FLUSHED: u32 = 5;

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub wc: Wc,
    /// Entries of the pair's send queue that are free once this completion is polled.
    pub frees: usize,
    /// Whether the request is a receive.
    pub is_receive: bool,
}

impl Entry {
    /// Returns the pair and the side within which completions are ordered.
    fn side(&self) -> (u32, bool) {
        (self.wc.qp_num, self.is_receive)
    }

    /// Whether this completion ended a pair, and precedes the flushed ones.
    fn is_cause(&self) -> bool {
        ![SUCCESS, FLUSHED].contains(&self.wc.status)
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Queue {
    /// Completions that can be polled.
    entries: VecDeque<Entry>,
    /// Held completions, each with the earliest time of its release.
    held: BTreeMap<(u32, bool), VecDeque<(Instant, Entry)>>,
    room: usize,
    /// Whether a completion was lost.
    is_overrun: bool,
    /// Write end of the channel's pipe, for events.
    channel: i32,
    /// Address of the queue, which is the content of its events.
    address: usize,
    is_armed: bool,
}

impl Queue {
    pub fn new(room: usize, channel: i32, address: usize) -> Queue {
        Queue {
            entries: VecDeque::new(),
            held: BTreeMap::new(),
            room,
            is_overrun: false,
            channel,
            address,
            is_armed: false,
        }
    }

    /// Holds a completion until `due`; false if the queue is full.
    pub fn push(&mut self, entry: Entry, due: Instant) -> bool {
        let held: usize = self.held.values().map(VecDeque::len).sum();
        if self.entries.len() + held == self.room {
            eprintln!(
                "softverbs: a completion queue of {} entries is full",
                self.room
            );
            self.overrun();
            return false;
        }
        let side = self.held.entry(entry.side()).or_default();
        side.push_back((due, entry));
        true
    }

    /// Marks a completion as lost: later polls fail.
    pub fn overrun(&mut self) {
        self.is_overrun = true;
    }

    /// Makes the completions due by `now` pollable.
    pub fn release(&mut self, now: Instant, lateness: &mut Lateness) {
        loop {
            let due: Vec<(u32, bool)> = self.due(now).collect();
            let Some(side) = due.get(lateness.below(due.len())) else {
                return;
            };
            let Some(held) = self.held.get_mut(side) else {
                return;
            };
            self.entries
                .extend(held.pop_front().map(|(_, entry)| entry));
            if held.is_empty() {
                self.held.remove(side);
            }
            self.signal();
        }
    }

    /// Returns the sides whose oldest held completion may be released at `now`.
    fn due(&self, now: Instant) -> impl Iterator<Item = (u32, bool)> + '_ {
        let has_cause = |pair: u32| {
            let sides = [false, true].map(|is_receive| self.held.get(&(pair, is_receive)));
            let mut held = sides.into_iter().flatten().flatten();
            held.any(|(_, entry)| entry.is_cause())
        };
        let may_show = move |due: &Instant, entry: &Entry| {
            *due <= now && !(entry.wc.status == FLUSHED && has_cause(entry.wc.qp_num))
        };
        let is_due = move |held: &VecDeque<(Instant, Entry)>| {
            held.front()
                .is_some_and(|(due, entry)| may_show(due, entry))
        };
        let due = self.held.iter().filter(move |(_, held)| is_due(held));
        due.map(|(side, _)| *side)
    }

    fn signal(&mut self) {
        if std::mem::take(&mut self.is_armed) && self.channel >= 0 {
            let event = self.address.to_ne_bytes();
            // SAFETY: the channel's own descriptor, and eight bytes. A full pipe has events enough.
            unsafe { libc::write(self.channel, event.as_ptr().cast(), event.len()) };
        }
    }

    /// Returns when the next completion is due, if the queue is armed.
    pub fn next(&self) -> Option<Instant> {
        let heads = self.held.values().filter_map(VecDeque::front);
        heads.map(|(due, _)| *due).min().filter(|_| self.is_armed)
    }

    /// Returns the oldest completions, `count` at most, or an error once one was lost. If fewer are
    /// returned, the rest is held again, as if not yet arrived.
    pub fn poll(
        &mut self,
        count: usize,
        now: Instant,
        lateness: &mut Lateness,
    ) -> Result<Vec<Entry>, ()> {
        if self.is_overrun {
            return Err(());
        }
        self.release(now, lateness);
        let seen = lateness.share(count).min(self.entries.len());
        let polled = self.entries.drain(..seen).collect();
        if seen < count {
            for entry in self.entries.drain(..).rev() {
                let side = self.held.entry(entry.side()).or_default();
                side.push_front((now, entry));
            }
        }
        Ok(polled)
    }

    /// Returns the descriptor to which events are written.
    pub fn channel(&self) -> i32 {
        self.channel
    }

    pub fn arm(&mut self) {
        self.is_armed = true;
    }
}
