//! How ranks open a lane together: what one of them cannot have, none has.
//!
//! Each makes what it can by itself, twice, and then [`agree`](super::agree)s: the device, before
//! there is memory; and with the memory all else, up to the lane's thread.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::agree::{Agreed, Made, Offer};
use super::config::LaneConfig;
use super::decide::{Decisions, measured};
use super::guard::Guard;
use super::host_path::HostPath;
use super::issue::Issuer;
use super::one_shot::OneShot;
use super::one_shot::area::Area;
use super::one_shot::limits::bytes_max;
use super::path::{Path, StreamPath, WaitPath};
use super::staging::{ALIGN_BYTES, Bank, Layout, Peers, Staging, memory_node};
use super::words::Word;
use super::worker::Worker;
use crate::communicator::Communicator;
use crate::device::{Current, Device, Driver};
use crate::error::{Error, Result};
use crate::memory::Registered;
use crate::threads;
use crate::topology::binding::bind_thread;
use crate::topology::cores::{self, Node};
use crate::wait::wait_until;

/// How ranks of one host are connected that share memory.
const SHARED_MEMORY: &str = "shm";

/// How long a stream's first operation may take.
const PROBE_WAIT: Duration = Duration::from_secs(10);

/// What a lane is made of.
pub struct Opened {
    pub device: Arc<Device>,
    pub staging: Arc<Staging>,
    pub issuer: Issuer,
    pub path: WaitPath,
    pub worker: Arc<Worker>,
    pub thread: JoinHandle<()>,
}

/// What a rank makes of its part by itself, with the memory.
struct Part {
    staging: Arc<Staging>,
    peers: Option<Peers>,
    one_shot: Option<OneShot>,
    path: Path,
}

/// The same when the thread has its path.
struct Started {
    staging: Arc<Staging>,
    peers: Option<Peers>,
    one_shot: Option<OneShot>,
    path: WaitPath,
    thread: JoinHandle<()>,
}

impl Part {
    /// Starts the thread of `worker` on the cores of `node`, if it is given and this rank may use
    /// any. The helper threads that it starts stay there, too.
    fn start(self, worker: &Arc<Worker>, node: Option<Node>) -> Result<Started> {
        let Part {
            staging,
            peers,
            one_shot,
            path,
        } = self;
        let (runs, kind) = (worker.clone(), path.kind());
        let thread = threads::start("ringfold-lane", move || {
            bind_to(node);
            runs.run(path);
        })?;
        Ok(Started {
            staging,
            peers,
            one_shot,
            path: kind,
            thread,
        })
    }
}

/// Narrows the affinity of this thread, the lane's, to the cores of `node`.
fn bind_to(node: Option<Node>) {
    let may_use = cores::affinity();
    let mut near = node.map(|node| node.cores).unwrap_or_default();
    near.retain(|core| may_use.contains(core));
    if near.is_empty() || near == may_use {
        return;
    }
    if let Err(error) = bind_thread(&near) {
        log::debug!(target: "ringfold::device", "the lane's thread may run on any core: {error}");
    }
}

/// What has come about on all ranks, and `started`, if all have started; else the thread has ended.
fn agree_on_start(
    worker: &Worker,
    made: Made,
    started: Result<Started>,
) -> Result<(Made, Started)> {
    let outcome = started.as_ref().map(|_| ()).map_err(Error::clone);
    let agreed = made.agree(worker.communicator(), outcome);
    match (agreed, started) {
        (Ok((of_all, ())), Ok(started)) => Ok((of_all, started)),
        (Ok(_), Err(error)) => Err(error),
        (Err(error), started) => {
            worker.finish();
            if let Ok(started) = started {
                // The thread's panics are shown where they are.
                let _ = started.thread.join();
            }
            Err(error)
        }
    }
}

/// Makes the staging memory and what uses it. Collective; an error is one on all ranks.
///
/// The lane has a [`Device`] of its own, without streams of others: its memory is unpinned when the
/// streams of its device are idle. What this rank has and another has not stays until the lane
/// ends, unused: to give it back, the driver may wait for the calls of a rank that is ahead by
/// then.
pub fn open(
    communicator: Communicator,
    driver: &'static Driver,
    ordinal: usize,
    config: LaneConfig,
) -> Result<Opened> {
    let begun = begin(&communicator, driver, ordinal, config);
    let offer = Offer {
        config,
        has_guard: begun.as_ref().is_ok_and(|(_, guard)| guard.is_some()),
        uuid: begun
            .as_ref()
            .map_or([0; 16], |(device, _)| device.attributes().uuid),
        constants: measured(&communicator),
        threads: communicator.threads_of_step(),
    };
    let (agreed, (device, guard)) = offer.agree(&communicator, begun)?;
    // It was checked with as many slots as there may be.
    let (layout, bytes) = layout(config, agreed.has_direct)?;
    let one_shot = area(&communicator, config, &agreed, layout.slot_bytes);
    let layout = Layout { one_shot, ..layout };
    let bytes = bytes + one_shot.map_or(0, Area::bytes);
    let node = memory_node(device.attributes());
    let number = node.as_ref().map(|node| node.number);
    let memory = communicator.alloc_on_node(bytes, number)?;
    let part = part(&communicator, &device, memory, layout);
    let made = Made {
        is_direct: part.as_ref().is_ok_and(|part| part.peers.is_some()),
        has_one_shot: part.as_ref().is_ok_and(|part| part.one_shot.is_some()),
    };
    let worker = Arc::new(Worker::new(communicator));
    let started = part.and_then(|part| part.start(&worker, node));
    let (of_all, started) = agree_on_start(&worker, made, started)?;
    let Started {
        staging,
        peers,
        one_shot,
        path,
        thread,
    } = started;
    if let Some(peers) = peers {
        staging.keep(peers, of_all.is_direct);
    }
    let has_one_shot = of_all.is_direct && of_all.has_one_shot;
    let is_one_shot_asked = config.one_shot == Some(true);
    let decisions = Decisions::new(
        worker.communicator(),
        &agreed,
        &staging,
        config.slice_bytes,
        has_one_shot.then_some(is_one_shot_asked),
    );
    let issuer = Issuer::new(&device, staging.clone(), decisions, guard, one_shot);
    Ok(Opened {
        issuer,
        device,
        staging,
        path,
        worker,
        thread,
    })
}

/// The device, and what ends direct calls if it may have them.
fn begin(
    communicator: &Communicator,
    driver: &'static Driver,
    ordinal: usize,
    config: LaneConfig,
) -> Result<(Arc<Device>, Option<Guard>)> {
    layout(config, true)?;
    let device = Device::open(driver, ordinal)?;
    let shares_memory = communicator.transport() == SHARED_MEMORY;
    let guard = (config.direct && shares_memory).then(|| guard(&device));
    Ok((device, guard.transpose()?.flatten()))
}

/// Where one-shot kernels meet, if they may: all ranks are on one host, each with a device of its
/// own. Assumed constants are no reason to take a program's device for other work: rank 0 knows
/// measured ones, or the program asks for it. Kernels combine in an order of their own.
fn area(
    communicator: &Communicator,
    config: LaneConfig,
    agreed: &Agreed,
    slot_bytes: usize,
) -> Option<Area> {
    let is_wanted = config.one_shot.unwrap_or(agreed.constants.is_some());
    let may_meet = agreed.has_direct && agreed.are_apart && communicator.hosts() == 1;
    let bytes = bytes_max(communicator.world_size(), slot_bytes);
    let is_free = !communicator.policy.is_reproducible;
    (is_wanted && may_meet && is_free && bytes > 0).then(|| Area::new(bytes))
}

/// This rank's part, with its `memory`. It may do without what reaches peers.
fn part(
    communicator: &Communicator,
    device: &Arc<Device>,
    memory: Registered,
    layout: Layout,
) -> Result<Part> {
    let current = device.enter()?;
    let staging = Arc::new(Staging::new(memory, &current, layout)?);
    let path = match has_memory_operations(device, &current, &staging)? {
        true => Path::Stream(StreamPath::new(staging.clone())),
        false => Path::Host(HostPath::new(device, staging.clone())?),
    };
    let may_reach = layout.has_direct && path.kind() == WaitPath::Stream;
    let peers = may_reach.then(|| reach_peers(communicator, &staging, &current));
    let peers = peers.flatten();
    let ranks = [communicator.rank(), communicator.world_size()];
    let area = layout.one_shot.filter(|_| peers.is_some());
    let one_shot = area.map(|area| OneShot::new(&current, area, ranks, layout.slot_bytes));
    if let Some(Err(error)) = &one_shot {
        log::info!(target: "ringfold::device", "devices do not meet in kernels: {error}");
    }
    Ok(Part {
        staging,
        peers,
        one_shot: one_shot.and_then(Result::ok),
        path,
    })
}

/// Whether the device's streams have memory operations: a driver may have the functions, and refuse
/// them.
pub fn has_memory_operations(
    device: &Device,
    current: &Current<'_>,
    staging: &Staging,
) -> Result<bool> {
    if !device.attributes().has_memory_operations {
        return Ok(false);
    }
    // What it holds already.
    match current.write(&staging.out, staging.word(Bank::Host, Word::Arrived), 0) {
        Err(Error::Unsupported(_)) => return Ok(false),
        written => written?,
    }
    // Memory can be unpinned only when the stream is idle, also after an error.
    let mut refusal = None;
    let is_idle = || {
        current.is_idle(&staging.out).unwrap_or_else(|error| {
            // After a second one nothing runs any more.
            refusal.replace(error).is_some()
        })
    };
    if !wait_until(is_idle, PROBE_WAIT) {
        let text = "a device that does not carry out stream memory operations";
        return Err(Error::Unsupported(text.into()));
    }
    refusal.map_or(Ok(true), Err)
}

/// What ends direct calls, if the device can have them.
fn guard(device: &Arc<Device>) -> Result<Option<Guard>> {
    if !device.attributes().has_memory_operations {
        return Ok(None);
    }
    let guard = Guard::new(&device.enter()?);
    if let Err(error) = &guard {
        log::info!(
            target: "ringfold::device",
            "the device does not read the slots of other ranks, which takes a kernel: {error}"
        );
    }
    Ok(guard.ok())
}

/// The staging memory of all ranks, if this rank's device can reach it. It may do without.
fn reach_peers(
    communicator: &Communicator,
    staging: &Staging,
    current: &Current<'_>,
) -> Option<Peers> {
    Peers::new(communicator, staging, current).unwrap_or_else(|error| {
        log::info!(
            target: "ringfold::device",
            "the device does not reach the slots of other ranks: {error}"
        );
        None
    })
}

/// How the staging memory is divided, slots being whole pages, and its bytes.
fn layout(config: LaneConfig, has_direct: bool) -> Result<(Layout, usize)> {
    if config.slice_bytes == Some(0) {
        let text = "a lane with slices of 0 bytes: give at least 1";
        return Err(Error::InvalidArgument(text.into()));
    }
    if config.slot_bytes == 0 || !config.depth.is_power_of_two() {
        return Err(Error::InvalidArgument(format!(
            "a lane with {} slots of {} bytes: it takes 1, 2, 4, … slots of at least one byte",
            config.depth, config.slot_bytes
        )));
    }
    let slot_bytes = config.slot_bytes.checked_next_multiple_of(ALIGN_BYTES);
    let layout = |slot_bytes| {
        let depth = config.depth;
        let layout = Layout {
            slot_bytes,
            depth,
            has_direct,
            one_shot: None,
        };
        layout.bytes().map(|bytes| (layout, bytes))
    };
    slot_bytes.and_then(layout).ok_or_else(|| {
        let text = "a lane with slots of more bytes than there are addresses";
        Error::InvalidArgument(text.into())
    })
}
