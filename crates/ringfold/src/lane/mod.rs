//! Collectives on device memory, through the memory of the host.
//!
//! A [`Lane`] is the device side of a communicator: calls on device memory are enqueued behind the
//! operations of a stream and return at once. The data is cut into slices ([`cut`]), each of which
//! is copied into pinned memory ([`staging`]), handled by the host's collectives, and copied back,
//! while the next slice is on its way. So both directions of the device's link, the CPUs and the
//! network work at the same time, and everything that host calls promise (algorithms, transports,
//! exactness, errors) holds for devices, too.
//!
//! Devices and CPUs meet in words in pinned memory ([`words`]), by stream memory operations: no
//! callback, no event that a thread polls, and no thread that waits in the driver. [`program`] is
//! the order of the driver calls, and why no order of theirs among ranks is a deadlock; [`issue`]
//! makes them; [`worker`] is the thread that does the host's part.
//!
//! The pattern is that of stream-ordered communication with host transfers (Dryden et al.,
//! *Aluminum: An Asynchronous, GPU-Aware Communication Library*, 2018), in slices and with closed
//! order.

mod call;
mod cut;
mod issue;
mod open;
mod program;
mod request;
mod staging;
#[cfg(test)]
mod tests;
mod words;
mod worker;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub use open::LaneConfig;
pub use request::{DeviceBuffer, DeviceRequest};

use call::LaneCall;
use issue::Issuer;
use open::Opened;
use staging::Staging;
use words::Word;
use worker::Worker;

use crate::communicator::Communicator;
use crate::device::{Device, Driver, Event, ProgramStream};
use crate::error::{Error, Result};
use crate::sync::lock;
use crate::threads;

/// How long a device may take for the copies of calls that are done on the host.
const DRAIN_WAIT: Duration = Duration::from_secs(30);

/// The device side of a communicator: collectives on memory of one device of this process.
///
/// All ranks make the same calls in the same order, as on the host; the two orders are independent.
/// Calls may come from any thread. Each is carried out in the order of its stream: it reads what
/// the stream's earlier operations wrote, and later operations of a stream that
/// [`joins`](DeviceWork::join) it see its result.
///
/// After an error nothing waits for ever: streams go on, what the calls under way have not done yet
/// is filled with bytes of ones (not a number), and every later call fails with the error.
pub struct Lane {
    worker: Arc<Worker>,
    issuer: Mutex<Issuer>,
    staging: Arc<Staging>,
    device: Arc<Device>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Lane {
    /// A lane of `communicator`, which is used for nothing else then, to device `ordinal` of
    /// `driver`. Collective: all ranks make it at the same place in their order of calls, with the
    /// same `config`. Ranks may share a device. Blocks until all have their staging memory.
    ///
    /// # Errors
    /// What keeps a rank from having its part: one on every rank.
    pub fn new(
        communicator: Communicator,
        driver: &'static Driver,
        ordinal: usize,
        config: LaneConfig,
    ) -> Result<Lane> {
        let Opened {
            device,
            staging,
            issuer,
        } = open::open(&communicator, driver, ordinal, config)?;
        let worker = Arc::new(Worker::new(communicator, staging.clone()));
        let runs = worker.clone();
        let started = threads::start("ringfold-lane", move || runs.run());
        let agreed = open::agree(worker.communicator(), config, started);
        let thread = agreed.inspect_err(|_| worker.finish())?;
        Ok(Lane {
            worker,
            issuer: Mutex::new(issuer),
            staging,
            device,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.worker.communicator().rank()
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.worker.communicator().world_size()
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The driver's handle of the stream that stores results: what a framework enqueues there comes
    /// after the calls made so far. It must not make that stream wait.
    pub fn result_stream(&self) -> usize {
        self.staging.into.handle()
    }

    /// Whether this process was forked from the one that made the lane; it cannot be used here.
    pub fn is_forked(&self) -> bool {
        self.worker.communicator().is_forked()
    }

    /// The error that has ended this lane, if one has.
    pub fn fault(&self) -> Option<Error> {
        self.worker.fault()
    }

    /// Ends the lane on all ranks; streams go on.
    pub fn abort(&self, reason: &str) {
        let rank = self.rank();
        let reason = reason.to_owned();
        self.worker.fail(Error::Aborted { rank, reason });
    }

    /// Enqueues `request` behind what `stream` holds now, and returns without waiting for it.
    ///
    /// # Errors
    /// What is wrong with the request, or the error that has ended the lane; nothing is enqueued
    /// then. A refusal of the driver ends the lane on all ranks.
    ///
    /// # Safety
    /// The memory stays allocated until the work [is done](DeviceWork::is_done), after a refusal of
    /// the driver until the lane [is closed](Lane::close). What touches it on the device is ordered
    /// before the call in `stream`, or behind [`join`](DeviceWork::join).
    pub unsafe fn enqueue(
        &self,
        request: DeviceRequest,
        stream: ProgramStream,
    ) -> Result<DeviceWork> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.enqueue_group(vec![request], stream) }
    }

    /// Enqueues calls that are made together: their slices travel together, and messages among them
    /// do not wait for each other. All ranks make the same groups, but for messages.
    ///
    /// # Errors
    /// As for [`enqueue`](Lane::enqueue); none is enqueued then.
    ///
    /// # Safety
    /// As for `enqueue` of each.
    pub unsafe fn enqueue_group(
        &self,
        requests: Vec<DeviceRequest>,
        stream: ProgramStream,
    ) -> Result<DeviceWork> {
        self.worker.communicator().check_open()?;
        // One after the other: the order of calls is that of their driver calls.
        let mut issuer = lock(&self.issuer);
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        let begun = issuer.begin(stream);
        let begun = begun.map_err(|error| self.worker.fail_by_driver(error, issuer.takes()))?;
        let Some(joined) = begun else {
            let text = "a collective call while a graph is captured: make it outside of the graph";
            return Err(Error::Unsupported(text.into()));
        };
        let (rank, world_size) = (self.rank(), self.world_size());
        let (slot_bytes, first) = (self.staging.slot_bytes(), issuer.next);
        let call = LaneCall::new(requests, rank, world_size, slot_bytes, first)?;
        let end = first.wrapping_add(call.slices);
        let call = Arc::new(call);
        // The thread must know of it first: the driver may hold this one until slices are done.
        self.worker.give(call.clone())?;
        issuer.next = end;
        if let Err(error) = issuer.enqueue(&call, stream, &joined) {
            return Err(self.worker.fail_by_driver(error, issuer.takes()));
        }
        Ok(DeviceWork {
            end,
            joined,
            device: self.device.clone(),
            staging: self.staging.clone(),
            worker: self.worker.clone(),
        })
    }

    /// Waits until all calls are done, also on the device, and ends the lane in good order on this
    /// rank. Not collective; may be repeated. Calls that peers do not join end by their deadlines.
    pub fn close(&self) -> Result<()> {
        // Held to the end: another caller returns when the lane is closed, too.
        let mut running = lock(&self.thread);
        let Some(thread) = running.take() else {
            return Ok(());
        };
        self.worker.finish();
        // The thread holds no lock, and its panics are shown where they are.
        let _ = thread.join();
        let drained = self.drain();
        let closed = self.worker.communicator().close();
        drained.and(closed)
    }
}

impl Lane {
    /// Waits until the device has done all that was enqueued: nothing that it waits for is due any
    /// more.
    fn drain(&self) -> Result<()> {
        let issuer = lock(&self.issuer);
        let mut failure = None;
        let is_idle = || match issuer.is_idle() {
            Ok(is_idle) => is_idle,
            // After an error of the device nothing runs any more.
            Err(error) => {
                failure = Some(error);
                true
            }
        };
        if !worker::wait_until(is_idle, DRAIN_WAIT) {
            return Err(Error::System {
                what: format!("a device has not ended its copies for {DRAIN_WAIT:?}"),
                kind: std::io::ErrorKind::TimedOut,
            });
        }
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let thread = self.thread.get_mut();
        let thread = thread.unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.worker.communicator().is_forked() {
            // The thread, the streams and the memory are the parent's.
            std::mem::forget((thread.take(), self.staging.clone(), self.worker.clone()));
            return;
        }
        if thread.is_some() && !self.worker.is_idle() {
            self.abort("its lane was dropped while calls were under way");
        }
        if let Err(error) = self.close() {
            log::debug!(target: "ringfold::device", "a lane ended with: {error}");
        }
    }
}

/// A call on device memory under way.
#[derive(Debug)]
pub struct DeviceWork {
    /// The number behind its last slice.
    end: u32,
    joined: Event,
    device: Arc<Device>,
    staging: Arc<Staging>,
    worker: Arc<Worker>,
}

impl DeviceWork {
    /// Has `stream` go on only when the call is done. Does not block.
    ///
    /// # Errors
    /// The error that has ended the lane: the result is not a number then.
    pub fn join(&self, stream: ProgramStream) -> Result<()> {
        self.device.enter()?.join(&self.joined, stream)?;
        match self.worker.fault() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Whether the device has done all of it: its memory may be used for something else. True after
    /// a fault, too, when the device has gone past it.
    pub fn is_done(&self) -> bool {
        self.staging.words().has_reached(Word::Taken, self.end)
    }

    /// Blocks until it is done on the device, at most for `timeout`; whether it is.
    pub fn wait_on_host(&self, timeout: Duration) -> Result<bool> {
        let is_done = worker::wait_until(|| self.is_done(), timeout);
        match self.worker.fault() {
            Some(fault) => Err(fault),
            None => Ok(is_done),
        }
    }
}
