//! Pinned host memory: which ranges are registered, and their addresses for the device.

use std::collections::BTreeMap;

use crate::call::{Answer, Refusal};

/// `CU_MEMHOSTREGISTER_DEVICEMAP`: the device has an address for the memory.
const DEVICE_MAP: u32 = 2;
/// The distance of the device's addresses from the host's, so that neither is taken for the other.
const DEVICE_VIEW: usize = 1 << 60;

/// The registered ranges, by address.
#[derive(Debug, Default)]
pub struct Pinned(BTreeMap<usize, Range>);

/// A registered range.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub bytes: usize,
    /// In whose context.
    pub device: usize,
    /// Whether the device has an address for it.
    pub is_mapped: bool,
}

impl Pinned {
    /// How many ranges are registered.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Registers `bytes` bytes at `start` in the context of `device`.
    pub fn register(&mut self, device: usize, start: usize, bytes: usize, flags: u32) -> Answer {
        let end = start.checked_add(bytes).filter(|_| start > 0 && bytes > 0);
        let end = end.ok_or(Refusal::INVALID_VALUE)?;
        let before = self.0.range(..end).next_back();
        if before.is_some_and(|(other, range)| other + range.bytes > start) {
            return Err(Refusal::ALREADY_REGISTERED);
        }
        let is_mapped = flags & DEVICE_MAP != 0;
        let range = Range {
            bytes,
            device,
            is_mapped,
        };
        self.0.insert(start, range);
        Ok(())
    }

    /// The range that begins at `start`.
    pub fn at(&self, start: usize) -> Answer<Range> {
        self.0.get(&start).copied().ok_or(Refusal::NOT_REGISTERED)
    }

    /// Forgets the range that begins at `start`.
    pub fn unregister(&mut self, start: usize) {
        self.0.remove(&start);
    }

    /// The range, with its start, that has `bytes` bytes at `address`.
    pub fn with(&self, address: usize, bytes: usize) -> Option<(usize, Range)> {
        let (start, range) = self.0.range(..=address).next_back()?;
        (address + bytes <= start + range.bytes).then_some((*start, *range))
    }
}

/// The device's address for the host's.
pub fn device_view(host: usize) -> usize {
    host + DEVICE_VIEW
}

/// The host's address for the device's, if it is one of pinned memory.
pub fn host_view(device: usize) -> Option<usize> {
    device.checked_sub(DEVICE_VIEW)
}
