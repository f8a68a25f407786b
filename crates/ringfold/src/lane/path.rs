//! How a lane's thread and its device follow each other: two paths.

use std::sync::Arc;

use super::call::LaneCall;
use super::host_path::HostPath;
use super::staging::{Bank, Staging};
use super::words::Word;
use crate::error::Result;

/// What waits for the host's part of a slice before its result is copied to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPath {
    /// A stream: all copies are enqueued when the call is made.
    Stream,
    /// The lane's thread, which enqueues all copies, because streams cannot wait for words. To join
    /// a call blocks until they are enqueued.
    Host,
}

/// The thread's end of a path.
#[derive(Debug)]
pub enum Path {
    /// The device reads and writes words.
    Stream(StreamPath),
    Host(HostPath),
}

/// What the thread knows of direct slots.
#[derive(Debug)]
pub struct StreamPath {
    staging: Arc<Staging>,
    /// Slices below this number may be read by all ranks.
    met: u32,
    /// Slots of slices below this number may be filled again: all ranks have taken them.
    free: u32,
}

impl StreamPath {
    /// The path to the streams of `staging`.
    pub fn new(staging: Arc<Staging>) -> StreamPath {
        StreamPath {
            staging,
            met: 0,
            free: 0,
        }
    }

    /// Lets slots be filled again that all ranks have taken.
    fn give_back(&mut self) {
        let before = self.free;
        while self.free != self.met {
            let due = self.free.wrapping_add(1);
            if self.staging.readers(due).next().is_some() {
                break;
            }
            self.free = due;
        }
        if self.free != before {
            let words = self.staging.words(Bank::Direct);
            words.store(Word::Free, self.free);
        }
    }
}

impl Path {
    /// The staging memory that it leads through.
    pub fn staging(&self) -> &Staging {
        match self {
            Path::Stream(stream) => &stream.staging,
            Path::Host(host) => host.staging(),
        }
    }

    /// Which path it is.
    pub fn kind(&self) -> WaitPath {
        match self {
            Path::Stream(_) => WaitPath::Stream,
            Path::Host(_) => WaitPath::Host,
        }
    }

    /// Enqueues what can be brought while `call` is carried out: its slices, and those of the calls
    /// that `later` finds by the number of a slice.
    pub fn look(
        &mut self,
        call: &Arc<LaneCall>,
        later: impl Fn(u32) -> Option<Arc<LaneCall>>,
    ) -> Result<()> {
        match self {
            Path::Stream(stream) => {
                stream.give_back();
                Ok(())
            }
            Path::Host(host) => host.bring_ahead(call, later),
        }
    }

    /// Whether `slice` of `call` stands in its slot.
    pub fn has_arrived(&self, call: &LaneCall, slice: u32) -> Result<bool> {
        let number = call.number(slice);
        match self {
            Path::Stream(StreamPath { staging, .. }) => {
                let due = number.wrapping_add(1);
                Ok(staging.words(call.bank).has_reached(Word::Arrived, due))
            }
            Path::Host(host) => host.has_arrived(number),
        }
    }

    /// Whether the place of the result of `slice` is free: what it held has been taken. Direct
    /// slices have none.
    pub fn is_place_free(&self, call: &LaneCall, slice: u32) -> Result<bool> {
        let number = call.number(slice);
        match self {
            Path::Stream(_) if call.bank == Bank::Direct => Ok(true),
            Path::Stream(StreamPath { staging, .. }) => {
                let due = number.wrapping_add(1).wrapping_sub(staging.depth());
                Ok(staging.words(call.bank).has_reached(Word::Taken, due))
            }
            Path::Host(host) => host.is_place_free(number),
        }
    }

    /// The ranks whose devices have still to read what the slot of `slice` held, if it is a direct
    /// one.
    pub fn readers(&self, call: &LaneCall, slice: u32) -> Vec<usize> {
        match self {
            Path::Stream(StreamPath { staging, .. }) if call.bank == Bank::Direct => {
                let due = call.number(slice).wrapping_add(1);
                staging.readers(due.wrapping_sub(staging.depth())).collect()
            }
            _ => vec![],
        }
    }

    /// Has the device take `slice` of `call`, and lets its slot be filled again.
    pub fn go_on(&mut self, call: &LaneCall, slice: u32) -> Result<()> {
        match self {
            Path::Stream(stream) => {
                let due = call.number(slice).wrapping_add(1);
                let words = stream.staging.words(call.bank);
                words.store(Word::Released, due);
                match call.bank {
                    Bank::Host => words.store(Word::Free, due),
                    Bank::Direct => stream.met = due,
                }
                stream.give_back();
                Ok(())
            }
            Path::Host(host) => host.take(call, slice),
        }
    }

    /// Whether the results of all slices of the host's bank before `number` have been taken, which
    /// have been released.
    pub fn is_taken(&self, number: u32) -> Result<bool> {
        match self {
            Path::Stream(StreamPath { staging, .. }) => {
                let words = staging.words(Bank::Host);
                Ok(words.has_reached(Word::Taken, number))
            }
            Path::Host(host) => host.is_taken(),
        }
    }

    /// Has the device take all slices of `call` from `first` on, and lets their slots be filled
    /// again. After a fault: who has read a slot is no longer recorded, and all ranks know that
    /// what they read may be wrong.
    pub fn let_go(&mut self, call: &LaneCall, first: u32) -> Result<()> {
        match self {
            Path::Stream(stream) => {
                let (words, end) = (stream.staging.words(call.bank), call.end());
                words.store(Word::Released, end);
                words.store(Word::Free, end);
                if call.bank == Bank::Direct {
                    (stream.met, stream.free) = (end, end);
                }
                Ok(())
            }
            Path::Host(host) => {
                let taken = (first..call.slices).map(|slice| host.take(call, slice));
                // All of them, also behind one that is refused.
                taken.fold(Ok(()), Result::and)
            }
        }
    }

    /// Marks the end of `call`, of which all slices go on.
    pub fn end(&mut self, call: &LaneCall) -> Result<()> {
        match self {
            Path::Stream(_) => Ok(()),
            Path::Host(host) => host.end(call),
        }
    }
}
