//! How ranks make a lane together: what one of them cannot have, none has.

use std::sync::Arc;

use super::issue::Issuer;
use super::staging::{ALIGN_BYTES, Staging};
use crate::communicator::Communicator;
use crate::device::{Device, Driver};
use crate::error::{Error, Result};

/// The numbers of a rank's record: whether it can go on, and its configuration.
const RECORD_WORDS: usize = 3;

/// The size of slots where nothing else is said, and how many there are.
const SLOT_BYTES: usize = 1 << 20;
const DEPTH: u32 = 4;

/// How a lane's staging memory is divided; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// The most bytes of a slice; rounded up to whole pages.
    pub slot_bytes: usize,
    /// Slices that may be under way at the same time, a power of two. The staging memory has two
    /// slots for each.
    pub depth: u32,
}

impl Default for LaneConfig {
    fn default() -> LaneConfig {
        LaneConfig {
            slot_bytes: SLOT_BYTES,
            depth: DEPTH,
        }
    }
}

/// What a lane is made of.
pub struct Opened {
    pub device: Arc<Device>,
    pub staging: Arc<Staging>,
    pub issuer: Issuer,
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
    let ready = slot_bytes(config).and_then(|slot_bytes| {
        let device = Device::open(driver, ordinal)?;
        Ok((slot_bytes, device))
    });
    let (slot_bytes, device) = agree(communicator, config, ready)?;
    let bytes = Staging::bytes(slot_bytes, config.depth).expect("checked");
    let memory = communicator.alloc(bytes)?;
    let made = device.enter().and_then(|current| {
        let staging = Arc::new(Staging::new(memory, &current, slot_bytes, config.depth)?);
        let issuer = Issuer::new(&device, staging.clone())?;
        Ok((staging, issuer))
    });
    let (staging, issuer) = agree(communicator, config, made)?;
    Ok(Opened {
        device,
        staging,
        issuer,
    })
}

/// The bytes of a slot, in whole pages.
fn slot_bytes(config: LaneConfig) -> Result<usize> {
    if config.slot_bytes == 0 || !config.depth.is_power_of_two() {
        return Err(Error::InvalidArgument(format!(
            "a lane with {} slots of {} bytes: it takes 1, 2, 4, … slots of at least one byte",
            config.depth, config.slot_bytes
        )));
    }
    let slot_bytes = config.slot_bytes.checked_next_multiple_of(ALIGN_BYTES);
    let slot_bytes = slot_bytes.filter(|slot| Staging::bytes(*slot, config.depth).is_some());
    slot_bytes.ok_or_else(|| {
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
