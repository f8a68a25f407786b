//! A call under way: what the caller's thread and the lane's thread both know of it.

use super::cut::Cut;
use super::request::{DeviceBuffer, DeviceRequest};
use crate::communicator::Request;
use crate::error::{Error, Result};
use crate::memory::Region;

/// Where the parts of the calls of a group begin in a slot: multiples of this.
const SHARE_ALIGN_BYTES: usize = 64;

/// One call or several that are made together, numbered and cut into slices.
#[derive(Debug)]
pub struct LaneCall {
    /// The number of its first slice.
    pub first: u32,
    /// Its slices on this rank.
    pub slices: u32,
    parts: Vec<CallPart>,
    /// Bytes of a slot for each of the calls.
    share_bytes: usize,
}

/// One of the calls.
#[derive(Debug)]
pub struct CallPart {
    pub cut: Cut,
    pub input: DeviceBuffer,
    pub output: DeviceBuffer,
}

impl LaneCall {
    /// The calls `requests`, made together by `rank` of `world_size`, checked; their first slice is
    /// number `first`.
    pub fn new(
        requests: Vec<DeviceRequest>,
        rank: usize,
        world_size: usize,
        slot_bytes: usize,
        first: u32,
    ) -> Result<LaneCall> {
        let share_bytes = slot_bytes / requests.len().max(1) / SHARE_ALIGN_BYTES;
        let share_bytes = share_bytes * SHARE_ALIGN_BYTES;
        let part = |request: DeviceRequest| {
            let cut = Cut::new(&request, rank, world_size, share_bytes)?;
            request.check_overlap(cut.own_bytes(rank))?;
            Ok(CallPart {
                cut,
                input: request.input,
                output: request.output,
            })
        };
        let parts = requests.into_iter().map(part).collect::<Result<Vec<_>>>()?;
        if parts.len() > 1 && parts.iter().any(|part| !part.cut.is_agreed()) {
            let text = "an all_to_all with a count for each pair, made together with other calls";
            return Err(Error::Unsupported(text.into()));
        }
        let slices = parts.iter().map(|part| part.cut.slices()).max();
        Ok(LaneCall {
            first,
            slices: slices.unwrap_or(0),
            parts,
            share_bytes,
        })
    }

    /// The calls, each with its place in slots.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &CallPart)> {
        let place = |index: usize| index * self.share_bytes;
        let parts = self.parts.iter().enumerate();
        parts.map(move |(index, part)| (place(index), part))
    }

    /// Whether all ranks have as many slices.
    pub fn is_agreed(&self) -> bool {
        self.parts.iter().all(|part| part.cut.is_agreed())
    }

    /// What the host does for `slice`, from the slot to the result. Of several calls those that
    /// have such a slice.
    pub fn on_host(&self, slice: u32, slot: Region, result: Region) -> Vec<Request> {
        let is_there = |part: &CallPart| slice < part.cut.slices() || !part.cut.is_agreed();
        let parts = self.parts().filter(|(_, part)| is_there(part));
        let request = |(place, part): (usize, &CallPart)| {
            let share = |region: Region| region.part(place..place + self.share_bytes);
            part.cut.on_host(slice, share(slot), share(result))
        };
        parts.map(request).collect()
    }
}
