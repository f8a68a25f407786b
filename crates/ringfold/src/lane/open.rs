//! How ranks make a lane together: what one of them cannot have, none has.

use std::sync::Arc;
use std::time::Duration;

use super::config::LaneConfig;
use super::decide::{decide, may_combine};
use super::fold::Folder;
use super::guard::Guard;
use super::host_path::HostPath;
use super::issue::Issuer;
use super::one_shot::area::Area;
use super::one_shot::{self, OneShot};
use super::path::{Path, StreamPath, WaitPath};
use super::policy::Policy;
use super::staging::{ALIGN_BYTES, Bank, Layout, Peers, Staging, memory_node};
use super::words::Word;
use super::worker::wait_until;
use crate::communicator::Communicator;
use crate::config::Reducer;
use crate::device::{Current, Device, Driver};
use crate::env::Environment;
use crate::error::{Error, Result};

/// The numbers of a rank's record: whether it can go on, and its configuration.
const RECORD_WORDS: usize = 7;

/// How ranks of one host are connected that share memory.
const SHARED_MEMORY: &str = "shm";

/// How long a stream's first operation may take.
const PROBE_WAIT: Duration = Duration::from_secs(10);

/// What a lane is made of.
pub struct Opened {
    pub device: Arc<Device>,
    pub staging: Arc<Staging>,
    pub issuer: Issuer,
    pub path: Path,
    /// The configuration, with what the environment says.
    pub config: LaneConfig,
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
    let (config, known) = with_environment(communicator, config);
    let ready = known.and_then(|()| begin(communicator, driver, ordinal, config));
    let (device, guard) = agree(communicator, config, ready)?;
    let guard = guard.filter(|_| config.direct);
    let has_direct = all_have(communicator, guard.is_some())?;
    // It was checked with as many slots as there may be.
    let (layout, bytes) = layout(config, has_direct)?;
    let may_combine = may_combine(communicator, config.reducer)?;
    let is_one_shot = config.one_shot && has_direct && may_combine;
    let area = is_one_shot.then(|| one_shot::area(communicator, &device, layout.slot_bytes));
    let one_shot = area.transpose()?.flatten();
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
        let folder = match config.reducer {
            Reducer::Auto | Reducer::Host => None,
            Reducer::Device => Some(folder_for(&current, &staging, path.kind())?),
        };
        let may_reach = has_direct && path.kind() == WaitPath::Stream;
        let peers = may_reach.then(|| reach_peers(communicator, &staging, &current));
        Ok((staging, folder, path, peers.flatten()))
    });
    let (staging, folder, path, peers) = agree(communicator, config, made)?;
    let guard = guard.filter(|_| peers.is_some());
    let is_direct = all_have(communicator, guard.is_some())?;
    if let (true, Some(peers)) = (is_direct, peers) {
        staging.reach(peers);
    }
    let area = one_shot.filter(|_| is_direct);
    let mut policy = decide(communicator, &device, &staging, config, area.is_some())?;
    let made = || folder_for(&device.enter()?, &staging, path.kind());
    let folder = match config.reducer {
        Reducer::Auto => common_folder(communicator, made, &mut policy)?,
        Reducer::Host | Reducer::Device => folder,
    };
    let ranks = [communicator.rank(), communicator.world_size()];
    let made = |area| OneShot::new(&device.enter()?, area, ranks, layout.slot_bytes);
    let one_shot = common_one_shot(communicator, area, made, &mut policy)?;
    let mut issuer = Issuer::new(&device, staging.clone(), folder, policy);
    if let Some(guard) = guard.filter(|_| is_direct) {
        issuer.guard(guard);
        issuer.meet_by(one_shot);
    }
    Ok(Opened {
        issuer,
        device,
        staging,
        path,
        config,
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

/// The configuration with what the environment says of the reducer, if that can be read.
fn with_environment(communicator: &Communicator, config: LaneConfig) -> (LaneConfig, Result<()>) {
    // Kernels combine in an order of their own.
    if communicator.policy.is_reproducible {
        let (reducer, one_shot) = (Reducer::Host, false);
        return (
            LaneConfig {
                reducer,
                one_shot,
                ..config
            },
            Ok(()),
        );
    }
    let read = match config.reducer {
        Reducer::Auto => Environment::read(),
        Reducer::Host | Reducer::Device => return (config, Ok(())),
    };
    let named = read.as_ref().ok().and_then(|known| known.device_reducer);
    let reducer = named.unwrap_or_default();
    (LaneConfig { reducer, ..config }, read.map(|_| ()))
}

/// What the device combines with.
fn folder_for(current: &Current<'_>, staging: &Staging, kind: WaitPath) -> Result<Folder> {
    match kind {
        WaitPath::Stream => Folder::new(current, staging),
        WaitPath::Host => {
            let text = "a device without stream memory operations does not combine: choose the \
                        reducer `host`";
            Err(Error::Unsupported(text.into()))
        }
    }
}

/// What devices combine slices with, if all ranks have it, and `policy` wants it. Collective.
fn common_folder(
    communicator: &Communicator,
    made: impl FnOnce() -> Result<Folder>,
    policy: &mut Policy,
) -> Result<Option<Folder>> {
    if !policy.folds() {
        return Ok(None);
    }
    let folder = common(communicator, made(), "combine slices")?;
    if folder.is_none() {
        policy.without_folds();
    }
    Ok(folder)
}

/// With what kernels meet in `area`, if all ranks have it, and `policy` wants it. Collective.
fn common_one_shot(
    communicator: &Communicator,
    area: Option<Area>,
    made: impl FnOnce(Area) -> Result<OneShot>,
    policy: &mut Policy,
) -> Result<Option<OneShot>> {
    let one_shot = match area.filter(|_| policy.has_one_shot()) {
        Some(area) => common(communicator, made(area), "meet in kernels")?,
        None => None,
    };
    if one_shot.is_none() {
        policy.without_one_shot();
    }
    Ok(one_shot)
}

/// `made`, with which devices do `what`, if all ranks have theirs. They may do without. Collective.
fn common<T>(communicator: &Communicator, made: Result<T>, what: &str) -> Result<Option<T>> {
    if let Err(error) = &made {
        log::info!(target: "ringfold::device", "devices do not {what}: {error}");
    }
    let made = made.ok();
    let all_have = all_have(communicator, made.is_some())?;
    Ok(made.filter(|_| all_have))
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

/// Whether all ranks have it.
fn all_have(communicator: &Communicator, has_it: bool) -> Result<bool> {
    let mut all = vec![0; communicator.world_size()];
    communicator.all_gather(&[u8::from(has_it)], &mut all)?;
    Ok(all.iter().all(|each| *each == 1))
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

/// `made`, if all ranks have made theirs, with the same configuration.
pub fn agree<T>(communicator: &Communicator, config: LaneConfig, made: Result<T>) -> Result<T> {
    let own = [
        u64::from(made.is_ok()),
        config.slot_bytes as u64,
        u64::from(config.depth),
        config.reducer as u64,
        u64::from(config.direct),
        u64::from(config.one_shot),
        config.slice_bytes.map_or(0, |bytes| bytes as u64),
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
        for (name, word) in [
            ("reducer", 3),
            ("direct", 4),
            ("one_shot", 5),
            ("slice_bytes", 6),
        ] {
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
