//! Collectives on device memory, through the memory of the host.
//!
//! A [`Lane`] is the device side of a communicator: calls on device memory are enqueued behind the
//! operations of a stream and return at once. The data is cut into slices ([`cut`]), each of which
//! is copied into pinned memory ([`staging`]), handled by the host's collectives, and copied back,
//! while the next slice is on its way; the tuner says how long slices are ([`decide`]). So both
//! directions of the device's link, the CPUs and the network work at the same time, and everything
//! that host calls promise (algorithms, transports, exactness, errors) holds for devices, too, but
//! that no call bypasses a slow rank.
//!
//! Where all ranks are on one host, calls are *direct* ([`gate`]): each rank combines its share of
//! a slice in the slots of all ranks ([`sum`]), and each device copies from there. No CPU touches
//! data that only moves.
//!
//! Devices and CPUs meet in words in pinned memory ([`words`]), by stream memory operations: no
//! callback, no event that a thread polls, and no thread that waits in the driver. [`program`] is
//! the order of the driver calls, and why no order of theirs among ranks is a deadlock; [`issue`]
//! makes them; [`worker`] is the thread that does the host's part. Where streams have no memory
//! operations, that thread enqueues the copies, too ([`host_path`]).
//!
//! The pattern is that of stream-ordered communication with host transfers (Dryden et al.,
//! *Aluminum: An Asynchronous, GPU-Aware Communication Library*, 2018), in slices and with closed
//! order.

mod agree;
mod call;
mod config;
mod copies;
pub(crate) mod cut;
pub(crate) mod decide;
mod gate;
mod guard;
mod host_path;
mod issue;
pub mod measure;
pub(crate) mod one_shot;
mod open;
mod parts;
mod path;
pub(crate) mod program;
mod ptx;
mod request;
pub(crate) mod staging;
pub(crate) mod sum;
#[cfg(test)]
mod tests;
mod word;
mod words;
mod work;
mod worker;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub use config::LaneConfig;
pub use path::WaitPath;
pub use request::{DeviceBuffer, DeviceRequest};
pub use work::DeviceWork;

use call::{LaneCall, Marks, Terms, is_message};
use issue::Issuer;
use open::Opened;
use staging::{BANKS, Bank, Staging};
use worker::Worker;

use crate::communicator::Communicator;
use crate::control::Standing;
use crate::device::{Device, Driver, ProgramStream};
use crate::error::{Error, Result};
use crate::sync::lock;
use crate::wait::wait_until;

pub use crate::tune::devices::choice::Carried;

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
    path: WaitPath,
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
        let opened = open::open(communicator, driver, ordinal, config)?;
        let Opened {
            device,
            staging,
            issuer,
            path,
            worker,
            thread,
        } = opened;
        log::info!(
            target: "ringfold::device",
            "a lane to device {ordinal} ({}): {}{}",
            device.attributes().name,
            match path {
                WaitPath::Stream => "streams wait for the host",
                WaitPath::Host => "without stream memory operations, so the host waits",
            },
            match staging.is_direct() {
                true => ", devices read the slots of all ranks",
                false => "",
            }
        );
        Ok(Lane {
            worker,
            issuer: Mutex::new(issuer),
            staging,
            device,
            path,
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

    /// What waits for the host's part of calls.
    pub fn wait_path(&self) -> WaitPath {
        self.path
    }

    /// Whether devices read the slots of all ranks: the same on all ranks. See
    /// [`LaneConfig::direct`].
    pub fn is_direct(&self) -> bool {
        self.staging.is_direct()
    }

    /// The driver's handle of the stream that stores results: what a framework enqueues there comes
    /// after the calls made so far; with [`WaitPath::Host`], after those that are joined. It must
    /// not make that stream wait.
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

    /// The progress of all ranks, as [`Communicator::standing`](crate::Communicator::standing)
    /// reports it, counted in calls of the engine: one for a device call that is no message.
    pub fn standing(&self, timeout: Duration) -> Result<Vec<Option<Standing>>> {
        self.worker.communicator().standing(timeout)
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

    /// Enqueues calls that are made together. All ranks make the same groups, but for messages.
    ///
    /// The collectives are carried out in this order, and then the messages. Four messages
    /// at a time do not wait for each other; of more, all ranks take up those of each pair in the
    /// same order. So groups of messages end whatever each rank's order is, unless a rank has
    /// enqueued the other end of one behind a call that needs a fifth.
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
        // Collectives first, which all ranks have; how these go may not depend on the messages.
        let (messages, collectives): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_message);
        let is_alone = collectives.len() == 1;
        let mut next = issuer.next;
        let mut calls = Vec::with_capacity(collectives.len() + 1);
        for request in collectives {
            let call = self.collective(&mut issuer, request, is_alone, next, stream)?;
            next[call.bank as usize] = call.end();
            calls.push(Arc::new(call));
        }
        if !messages.is_empty() {
            let (marks, terms) = self.terms(&mut issuer, next, stream)?;
            calls.push(Arc::new(LaneCall::messages(messages, terms, marks)?));
        }
        let index = self.issue(&mut issuer, &calls, stream)?;
        Ok(DeviceWork {
            calls,
            index,
            path: self.path,
            device: self.device.clone(),
            staging: self.staging.clone(),
            worker: self.worker.clone(),
        })
    }

    /// The collective `request`, whose slices begin with `next`. One kernel may do it if it is
    /// the only one of its group.
    fn collective(
        &self,
        issuer: &mut Issuer,
        request: DeviceRequest,
        is_alone: bool,
        next: [u32; BANKS],
        stream: ProgramStream,
    ) -> Result<LaneCall> {
        let (marks, terms) = self.terms(issuer, next, stream)?;
        if is_alone {
            let one_shot = issuer.one_shot(&request);
            let refused = |error| self.worker.fail_by_driver(error, issuer.takes());
            if let Some(made) = one_shot.map_err(refused)? {
                return LaneCall::by_one_kernel(made, terms, marks);
            }
        }
        let plan = issuer.plan(&request);
        let terms = Terms {
            overlaps: plan.overlaps,
            ..terms
        };
        LaneCall::collective(request, terms, marks, plan.slice_bytes as usize)
    }

    /// What the next call has, whose slices begin with `next`, and its events.
    fn terms(
        &self,
        issuer: &mut Issuer,
        next: [u32; BANKS],
        stream: ProgramStream,
    ) -> Result<(Marks, Terms)> {
        let begun = issuer.begin(stream);
        let refused = |error| self.worker.fail_by_driver(error, issuer.takes());
        let Some(marks) = begun.map_err(refused)? else {
            let text = "a collective call while a graph is captured: make it outside of the graph";
            return Err(Error::Unsupported(text.into()));
        };
        let terms = Terms {
            rank: self.rank(),
            world_size: self.world_size(),
            slot_bytes: self.staging.slot_bytes(),
            next,
            is_direct: self.is_direct(),
            helpers_max: issuer.helpers_max(),
            overlaps: true,
        };
        Ok((marks, terms))
    }

    /// Gives `calls` to the thread, and has their copies be enqueued. How many it has been given.
    fn issue(
        &self,
        issuer: &mut Issuer,
        calls: &[Arc<LaneCall>],
        stream: ProgramStream,
    ) -> Result<u64> {
        let refused = |error, takes| self.worker.fail_by_driver(error, takes);
        for call in calls {
            if self.path == WaitPath::Host {
                // The thread comes behind it.
                let forked = issuer.fork(call, stream);
                forked.map_err(|error| refused(error, issuer.takes()))?;
            }
            if call.one_shot().is_some() {
                self.worker.wait_for_room();
            }
        }
        // The thread must know of them first: the driver may hold this one until slices are done.
        let index = self.worker.give(calls)?;
        for call in calls {
            issuer.begin_call(call);
            if self.path == WaitPath::Stream {
                let enqueued = issuer.enqueue(call, stream);
                enqueued.map_err(|error| refused(error, issuer.takes()))?;
            }
        }
        Ok(index)
    }

    /// Waits until all calls are done, also on the device, and ends the lane in good order on this
    /// rank; its memory is unpinned then. Not collective; may be repeated. Calls that peers do not
    /// join end by their deadlines.
    pub fn close(&self) -> Result<()> {
        // Held to the end: another caller returns when the lane is closed, too.
        let mut running = lock(&self.thread);
        let Some(thread) = running.take() else {
            return Ok(());
        };
        self.worker.finish();
        // The thread holds no lock, and its panics are shown where they are.
        let _ = thread.join();
        self.wait_for_readers();
        let drained = self.drain();
        let drained = drained.and_then(|()| self.staging.unpin());
        let closed = self.worker.communicator().close();
        drained.and(closed)
    }
}

impl Lane {
    /// Waits until the devices of all ranks have read what they read of this rank's slots, which go
    /// when this returns. If one does not, all ranks know that what it reads may be wrong.
    fn wait_for_readers(&self) {
        if !self.is_direct() {
            return;
        }
        let due = lock(&self.issuer).next[Bank::Direct as usize];
        let is_over = || self.fault().is_some() || self.staging.readers(due).next().is_none();
        if !wait_until(is_over, DRAIN_WAIT) {
            let readers: Vec<usize> = self.staging.readers(due).collect();
            self.abort(&format!(
                "the devices of ranks {readers:?} have not read its slots for {DRAIN_WAIT:?}"
            ));
        }
        if self.fault().is_some() {
            self.staging.say_fault();
        }
    }

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
        if !wait_until(is_idle, DRAIN_WAIT) {
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
            let issuer = self.issuer.get_mut();
            issuer
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .forget();
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
