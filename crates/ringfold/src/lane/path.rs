//! How a lane's thread and its device follow each other: two paths.

use std::sync::Arc;

use super::call::LaneCall;
use super::host_path::HostPath;
use super::staging::Staging;
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
    Stream(Arc<Staging>),
    Host(HostPath),
}

impl Path {
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
            Path::Stream(_) => Ok(()),
            Path::Host(host) => host.bring_ahead(call, later),
        }
    }

    /// Whether slice `number` stands in its slot.
    pub fn has_arrived(&self, number: u32) -> Result<bool> {
        match self {
            Path::Stream(staging) => {
                let due = number.wrapping_add(1);
                Ok(staging.words().has_reached(Word::Arrived, due))
            }
            Path::Host(host) => host.has_arrived(number),
        }
    }

    /// Whether the place of the result of slice `number` is free: what it held has been taken.
    pub fn is_place_free(&self, number: u32) -> Result<bool> {
        match self {
            Path::Stream(staging) => {
                let due = number.wrapping_add(1).wrapping_sub(staging.depth());
                Ok(staging.words().has_reached(Word::Taken, due))
            }
            Path::Host(host) => host.is_place_free(number),
        }
    }

    /// Has the device take `slice` of `call`, and lets its slot be filled again.
    pub fn go_on(&mut self, call: &LaneCall, slice: u32) -> Result<()> {
        match self {
            Path::Stream(staging) => {
                let due = call.number(slice).wrapping_add(1);
                let words = staging.words();
                words.store(Word::Released, due);
                words.store(Word::Free, due);
                Ok(())
            }
            Path::Host(host) => host.take(call, slice),
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
