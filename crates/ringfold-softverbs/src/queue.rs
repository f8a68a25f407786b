//! Completion queues.
//!
//! What has ended is held before it can be polled: the requests of one side of a queue pair show in
//! their order, those of different pairs and sides in any. What ended a pair shows before what was
//! flushed for that.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::fabric::{FLUSHED, SUCCESS};
use crate::layout::Wc;
use crate::settings::Lateness;

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub wc: Wc,
    /// How many places in its pair's send queue are free once this is polled.
    pub frees: usize,
    /// Whether it is of the receives.
    pub is_receive: bool,
}

impl Entry {
    /// Within which entries have an order.
    fn side(&self) -> (u32, bool) {
        (self.wc.qp_num, self.is_receive)
    }

    /// Whether it ended a pair: what is flushed then shows later.
    fn is_cause(&self) -> bool {
        ![SUCCESS, FLUSHED].contains(&self.wc.status)
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Queue {
    /// What can be polled.
    entries: VecDeque<Entry>,
    /// What has ended, and from when on it may show.
    held: BTreeMap<(u32, bool), VecDeque<(Instant, Entry)>>,
    room: usize,
    /// Whether an entry was lost.
    is_overrun: bool,
    /// The end of the channel's pipe where events are written.
    channel: i32,
    /// The queue's own address, which is what an event says.
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

    /// Takes in what has ended, to show from `due` on; false if there is no room.
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

    /// An entry was lost: nothing more comes from this queue.
    pub fn overrun(&mut self) {
        self.is_overrun = true;
    }

    /// Shows what may show `now`.
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

    /// Sides of pairs of which something may show `now`.
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

    /// When something shows next for which there is an event.
    pub fn next(&self) -> Option<Instant> {
        let heads = self.held.values().filter_map(VecDeque::front);
        heads.map(|(due, _)| *due).min().filter(|_| self.is_armed)
    }

    /// The oldest entries, `count` at most; an error once one was lost. If these are fewer than
    /// asked for, then the rest has not come yet.
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

    /// Where its events are written.
    pub fn channel(&self) -> i32 {
        self.channel
    }

    pub fn arm(&mut self) {
        self.is_armed = true;
    }
}
