//! How ranks make a lane together: what one of them cannot have, none has.

use std::sync::Arc;
use std::time::Duration;

use super::fold::Folder;
use super::guard::Guard;
use super::host_path::HostPath;
use super::issue::Issuer;
use super::one_shot::area::Area;
use super::one_shot::{self, OneShot};
use super::path::{Path, StreamPath, WaitPath};
use super::staging::{ALIGN_BYTES, Bank, Layout, Peers, Staging, memory_node};
use super::words::Word;
use super::worker::wait_until;
use crate::communicator::Communicator;
use crate::device::{Current, Device, Driver};
use crate::error::{Error, Result};
use crate::types::named;

/// The numbers of a rank's record: whether it can go on, and its configuration.
const RECORD_WORDS: usize = 6;

/// How ranks of one host are connected that share memory.
const SHARED_MEMORY: &str = "shm";

/// The size of slots where nothing else is said, and how many there are.
const SLOT_BYTES: usize = 1 << 20;
const DEPTH: u32 = 4;

/// How long a stream's first operation may take.
const PROBE_WAIT: Duration = Duration::from_secs(10);

/// How a lane's staging memory is divided; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// The most bytes of a slice; rounded up to whole pages.
    pub slot_bytes: usize,
    /// Slices that may be under way at the same time, a power of two. The staging memory has two
    /// slots for each.
    pub depth: u32,
    /// What combines the elements of an all-reduce.
    pub reducer: Reducer,
    /// Whether devices read the slots of all ranks in calls that only move data, and in both halves
    /// of a slice that they combine, so that no CPU touches it. Takes effect where all ranks are on
    /// one host and share memory, streams wait for words, and drivers compile kernels. A rank has
    /// one more set of slots then, and pins the staging memory of all ranks.
    pub direct: bool,
    /// Whether devices that combine do small all-reduces by one kernel each. Takes effect where
    /// `direct` does and each rank has a device of its own.
    pub one_shot: bool,
}

named! {
    /// What combines the elements of an all-reduce. Whatever it says, the CPUs combine for a call
    /// that names its algorithm or is made in a group, and with `PremulSum`, of which each rank has
    /// its own factor.
    Reducer, "reducer" {
        /// The CPUs.
        Host, "host";
        /// The devices. An error where the driver does not compile kernels, or streams do not wait
        /// for words.
        Device, "device";
    }
}

impl Default for LaneConfig {
    fn default() -> LaneConfig {
        LaneConfig {
            slot_bytes: SLOT_BYTES,
            depth: DEPTH,
            reducer: Reducer::Host,
            direct: true,
            one_shot: true,
        }
    }
}

/// What a lane is made of.
pub struct Opened {
    pub device: Arc<Device>,
    pub staging: Arc<Staging>,
    pub issuer: Issuer,
    pub path: Path,
}

/// Makes the staging memory and what uses it. Collective; an error is one on all ranks, and the
/// communicator stays usable unless it is fatal.
///
/// The lane has a [`Device`] of its own, without streams of others: its memory is unpinned when the
/// streams of its device are idle.
pub fn open(
    communicator: &Communicator,
    driver: &'static Driver,
    ordinal: usize,
    config: LaneConfig,
) -> Result<Opened> {
    let ready = layout(config, true).and_then(|_| {
        let device = Device::open(driver, ordinal)?;
        let guard = match config.direct && communicator.transport() == SHARED_MEMORY {
            true => guard(&device)?,
            false => None,
        };
        Ok((device, guard))
    });
    let (device, guard) = agree(communicator, config, ready)?;
    let guard = guard.filter(|_| config.direct);
    let has_direct = all_have(communicator, guard.is_some())?;
    // It was checked with as many slots as there may be.
    let (layout, bytes) = layout(config, has_direct)?;
    let one_shot = match config.one_shot && has_direct && config.reducer != Reducer::Host {
        true => one_shot::area(communicator, &device, layout.slot_bytes)?,
        false => None,
    };
    let layout = Layout { one_shot, ..layout };
    let bytes = bytes + one_shot.map_or(0, Area::bytes);
    let node = memory_node(device.attributes());
    let memory = communicator.alloc_on_node(bytes, node)?;
    let made = device.enter().and_then(|current| {
        let staging = Arc::new(Staging::new(memory, &current, layout)?);
        let path = match has_memory_operations(&device, &current, &staging)? {
            true => Path::Stream(StreamPath::new(staging.clone())),
            false => Path::Host(HostPath::new(&device, staging.clone())?),
        };
        let folder = match (config.reducer, path.kind()) {
            (Reducer::Host, _) => None,
            (Reducer::Device, WaitPath::Stream) => Some(Folder::new(&current, &staging)?),
            (Reducer::Device, WaitPath::Host) => {
                let text = "a device without stream memory operations does not combine: choose \
                            the reducer `host`";
                return Err(Error::Unsupported(text.into()));
            }
        };
        let ranks = [communicator.rank(), communicator.world_size()];
        let area = one_shot.filter(|_| path.kind() == WaitPath::Stream);
        let one_shot = area.map(|area| OneShot::new(&current, area, ranks, layout.slot_bytes));
        let one_shot = one_shot.transpose()?;
        let issuer = Issuer::new(&device, staging.clone(), folder);
        let peers = match has_direct && path.kind() == WaitPath::Stream {
            true => reach_peers(communicator, &staging, &current),
            false => None,
        };
        Ok((staging, (issuer, one_shot), path, peers))
    });
    let (staging, (mut issuer, one_shot), path, peers) = agree(communicator, config, made)?;
    if all_have(communicator, peers.is_some())?
        && let (Some(peers), Some(guard)) = (peers, guard)
    {
        staging.reach(peers);
        issuer.guard(guard);
        issuer.meet_by(one_shot);
    }
    Ok(Opened {
        device,
        staging,
        issuer,
        path,
    })
}

/// Whether the device's streams have memory operations: a driver may have the functions, and refuse
/// them.
fn has_memory_operations(
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

/// Whether all ranks have it.
fn all_have(communicator: &Communicator, has_it: bool) -> Result<bool> {
    let mut all = vec![0; communicator.world_size()];
    communicator.all_gather(&[u8::from(has_it)], &mut all)?;
    Ok(all.iter().all(|each| *each == 1))
}

/// How the staging memory is divided, slots being whole pages, and its bytes.
fn layout(config: LaneConfig, has_direct: bool) -> Result<(Layout, usize)> {
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

/// `made`, if all ranks have made theirs, with the same configuration.
pub fn agree<T>(communicator: &Communicator, config: LaneConfig, made: Result<T>) -> Result<T> {
    let own = [
        u64::from(made.is_ok()),
        config.slot_bytes as u64,
        u64::from(config.depth),
        config.reducer as u64,
        u64::from(config.direct),
        u64::from(config.one_shot),
    ];
    let mut all = vec![0; RECORD_WORDS * communicator.world_size()];
    communicator.all_gather(&own, &mut all)?;
    let made = made?;
    for (rank, record) in all.chunks(RECORD_WORDS).enumerate() {
        if record[0] == 0 {
            return Err(Error::System {
                what: format!(
                    "rank {rank} could not have its lane, so no rank has; its own error says why"
                ),
                kind: std::io::ErrorKind::Other,
            });
        }
        for (name, word) in [("reducer", 3), ("direct", 4), ("one_shot", 5)] {
            if record[word] != own[word] {
                return Err(Error::InvalidArgument(format!(
                    "rank {rank}'s lane has another `{name}`: give all ranks the same"
                )));
            }
        }
        if record[1..] != own[1..] {
            return Err(Error::InvalidArgument(format!(
                "this rank's lane has {} slots of {} bytes, that of rank {rank} {} of {}: give \
                 all ranks the same",
                own[2], own[1], record[2], record[1]
            )));
        }
    }
    Ok(made)
}
