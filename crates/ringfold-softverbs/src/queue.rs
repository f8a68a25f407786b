//! Completion queues and their channels.

use std::collections::VecDeque;

use crate::layout::Wc;

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub wc: Wc,
    /// How many places in its pair's send queue are free once this is polled.
    pub frees: usize,
}

/// A completion queue.
#[derive(Debug)]
pub struct Queue {
    entries: VecDeque<Entry>,
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
            room,
            is_overrun: false,
            channel,
            address,
            is_armed: false,
        }
    }

    pub fn push(&mut self, entry: Entry) {
        if self.entries.len() == self.room {
            eprintln!(
                "softverbs: a completion queue of {} entries is full",
                self.room
            );
            self.is_overrun = true;
            return;
        }
        self.entries.push_back(entry);
        if std::mem::take(&mut self.is_armed) && self.channel >= 0 {
            let event = self.address.to_ne_bytes();
            // SAFETY: the channel's own descriptor, and eight bytes. A full pipe has events enough.
            unsafe { libc::write(self.channel, event.as_ptr().cast(), event.len()) };
        }
    }

    /// The oldest entry; an error once one was lost.
    pub fn poll(&mut self) -> Result<Option<Entry>, ()> {
        match self.is_overrun {
            true => Err(()),
            false => Ok(self.entries.pop_front()),
        }
    }

    pub fn arm(&mut self) {
        self.is_armed = true;
    }
}
