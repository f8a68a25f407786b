//! A call on device memory under way, as its caller sees it.

use std::sync::Arc;
use std::time::Duration;

use super::call::LaneCall;
use super::path::WaitPath;
use super::staging::Staging;
use super::words::Word;
use super::worker::Worker;
use crate::device::{Device, ProgramStream};
use crate::error::Result;
use crate::tune::devices::choice::Carried;
use crate::wait::wait_until;

/// A call on device memory under way.
#[derive(Debug)]
pub struct DeviceWork {
    /// The calls of this work: one, or those of a group.
    pub(super) calls: Vec<Arc<LaneCall>>,
    /// Number of calls that the lane's thread had been given, up to the last of these.
    pub(super) index: u64,
    pub(super) path: WaitPath,
    pub(super) device: Arc<Device>,
    pub(super) staging: Arc<Staging>,
    pub(super) worker: Arc<Worker>,
}

impl DeviceWork {
    /// The executor of the call, or of the first of a group.
    pub fn carried(&self) -> Carried {
        let first = self.calls.first();
        first.map_or(Carried::Host, |call| call.carried())
    }

    /// Makes `stream` wait for the result. With [`WaitPath::Host`], blocks until the host has done
    /// its part; otherwise does not block.
    ///
    /// # Errors
    /// The error that has ended the lane: the result is not a number then. A refusal of the driver
    /// ends the lane on all ranks.
    pub fn join(&self, stream: ProgramStream) -> Result<()> {
        while !self.can_join(Duration::MAX) {}
        let joined = self.device.enter().and_then(|current| {
            let mut calls = self.calls.iter();
            calls.try_for_each(|call| current.join(&call.marks.joined, stream))
        });
        joined.map_err(|error| self.worker.fail_by_join(error))?;
        match self.worker.fault() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Whether [`join`](DeviceWork::join) does not block. Waits for that, at most for `timeout`.
    pub fn can_join(&self, timeout: Duration) -> bool {
        match self.path {
            WaitPath::Stream => true,
            WaitPath::Host => self.worker.has_carried_out(self.index, timeout),
        }
    }

    /// Whether the device has completed all calls, so that their memory may be used for something
    /// else. True after a fault, too, once the device has gone past the calls.
    pub fn is_done(&self) -> bool {
        match self.path {
            WaitPath::Stream => self.calls.iter().all(|call| {
                let (words, end) = (self.staging.words(call.bank), call.end());
                // One kernel brings nothing, and nor does a call without slices, which may be
                // behind one. After a fault results are taken without waiting for what is brought.
                let brings = call.slices > 0 && call.one_shot().is_none();
                words.has_reached(Word::Taken, end)
                    && (!brings || words.has_reached(Word::Arrived, end))
            }),
            // After an error of the device nothing runs any more.
            WaitPath::Host => self.can_join(Duration::ZERO) && self.has_ended().unwrap_or(true),
        }
    }

    /// Whether the device has done what the thread has enqueued of it.
    fn has_ended(&self) -> Result<bool> {
        let current = self.device.enter()?;
        if self.worker.fault().is_some() {
            // Its end may not be marked.
            let Staging { out, into, .. } = &*self.staging;
            return Ok(current.is_idle(out)? && current.is_idle(into)?);
        }
        let mut calls = self.calls.iter();
        calls.try_fold(true, |all, call| {
            Ok(all && current.is_reached(&call.marks.joined)?)
        })
    }

    /// Blocks until it is done on the device, at most for `timeout`; whether it is.
    pub fn wait_on_host(&self, timeout: Duration) -> Result<bool> {
        let is_done = wait_until(|| self.is_done(), timeout);
        match self.worker.fault_after(&self.staging) {
            Some(fault) => Err(fault),
            None => Ok(is_done),
        }
    }
}
