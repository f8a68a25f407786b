//! How a lane's thread and its device follow each other: two paths.

use std::sync::Arc;

use super::call::LaneCall;
use super::gate::DirectSlots;
use super::host_path::HostPath;
use super::staging::{Bank, Staging};
use super::words::{Word, is_reached};
use crate::error::{Error, Result};

/// What waits for the host's part of a slice before its result is copied to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPath {
    /// A stream: all copies are enqueued when the call is made.
    Stream,
    /// The lane's thread, which enqueues all copies, because streams cannot wait for words. To join
    /// a call blocks until they are enqueued.
    Host,
}

/// The error of the lane of `rank` whose device's driver refused a call with `error`.
pub fn refusal(rank: usize, error: &Error) -> Error {
    let reason = format!("its device refused a call: {error}");
    Error::Aborted { rank, reason }
}

/// The thread's end of a path.
#[derive(Debug)]
pub enum Path {
    /// The device reads and writes words.
    Stream(StreamPath),
    Host(HostPath),
}

/// The words and slots through which streams and thread follow each other.
#[derive(Debug)]
pub struct StreamPath {
    staging: Arc<Staging>,
    /// Slots that the devices of all ranks read.
    pub direct: Arc<DirectSlots>,
}

impl StreamPath {
    /// The path to the streams of `staging`.
    pub fn new(staging: Arc<Staging>) -> StreamPath {
        StreamPath {
            direct: Arc::new(DirectSlots::new(staging.clone())),
            staging,
        }
    }
}

impl Path {
    /// The staging memory that it leads through.
    pub fn staging(&self) -> &Arc<Staging> {
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
    fn look(
        &mut self,
        call: &Arc<LaneCall>,
        later: impl Fn(u32) -> Option<Arc<LaneCall>>,
    ) -> Result<()> {
        match self {
            Path::Stream(stream) => {
                stream.direct.reuse();
                Ok(())
            }
            Path::Host(host) => host.bring_ahead(call, later),
        }
    }

    /// Whether `slice` of `call` stands in its slot, and the place of its result is free; `later`
    /// as for [`look`](Path::look).
    pub fn is_ready(
        &mut self,
        call: &Arc<LaneCall>,
        slice: u32,
        later: impl Fn(u32) -> Option<Arc<LaneCall>>,
    ) -> Result<bool> {
        self.look(call, later)?;
        Ok(self.has_arrived(call, slice)? && self.is_place_free(call, slice)?)
    }

    /// Whether `slice` of `call` stands in its slot.
    fn has_arrived(&self, call: &LaneCall, slice: u32) -> Result<bool> {
        let number = call.number(slice);
        match self {
            Path::Stream(StreamPath { staging, .. }) => {
                let due = number.wrapping_add(1);
                Ok(staging.words(call.bank).has_reached(Word::Arrived, due))
            }
            Path::Host(host) => host.has_arrived(number),
        }
    }

    /// Whether the place of the result of `slice` is free: what it held has been taken.
    fn is_place_free(&self, call: &LaneCall, slice: u32) -> Result<bool> {
        let number = call.number(slice);
        match self {
            Path::Stream(StreamPath { staging, .. }) => {
                let due = number.wrapping_add(1).wrapping_sub(staging.depth());
                Ok(staging.words(call.bank).has_reached(Word::Taken, due))
            }
            Path::Host(host) => host.is_place_free(number),
        }
    }

    /// Has the device take `slice` of `call`, and lets its slot be filled again.
    pub fn go_on(&mut self, call: &LaneCall, slice: u32) -> Result<()> {
        match self {
            Path::Stream(stream) => {
                let due = call.number(slice).wrapping_add(1);
                let words = stream.staging.words(call.bank);
                words.store(Word::Released, due);
                words.store(Word::Free, due);
                Ok(())
            }
            Path::Host(host) => host.take(call, slice),
        }
    }

    /// Whether the results of all slices of `bank` that have been released have been taken, of
    /// those before `end` which are enqueued, if it is known.
    pub fn is_taken(&self, bank: Bank, end: Option<u32>) -> Result<bool> {
        match self {
            Path::Stream(StreamPath { staging, .. }) => {
                let words = staging.words(bank);
                let released = words.load(Word::Released);
                let due = end.filter(|end| is_reached(released, *end));
                Ok(words.has_reached(Word::Taken, due.unwrap_or(released)))
            }
            Path::Host(host) => host.is_taken(),
        }
    }

    /// Has the device take all slices of `call` from `first` on, and lets their slots be filled
    /// again, after a fault.
    pub fn let_go(&mut self, call: &LaneCall, first: u32) -> Result<()> {
        match self {
            Path::Stream(stream) => {
                let (words, end) = (stream.staging.words(call.bank), call.end());
                if call.bank == Bank::Direct {
                    stream.direct.let_go(end);
                    return Ok(());
                }
                words.store(Word::Released, end);
                words.store(Word::Free, end);
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
