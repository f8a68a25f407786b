//! How a call is cut into slices, and where the bytes of each lie.
//!
//! A vector is cut into slices one after the other. Of blocks, a slice is the same part of every
//! block, so each slice is a call of the same collective with smaller counts. In a slot of the
//! staging memory the parts of a slice stand one after the other.
//!
//! All ranks cut alike, because the length of a part depends only on the collective, the data type,
//! the number of ranks and the size of slots. Where each pair of ranks has a count of its own, the
//! number of slices may differ ([`Cut::is_agreed`]).

use std::ops::Range;

use super::request::DeviceRequest;
use crate::communicator::{Counts, Request};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::Collective;

/// A part of one side of a slice: bytes of the call's buffer, and where they stand in the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of the buffer.
    pub of_buffer: Range<usize>,
    /// Where they begin in the slot.
    pub at: usize,
}

/// The cut of one call, on one rank.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The call, without memory.
    request: Request,
    element_bytes: usize,
    /// Elements of a block in a slice.
    part_elements: u64,
    /// The blocks of the input and of the output, in elements; none on a rank that gives or gets
    /// nothing.
    input: Vec<Range<u64>>,
    output: Vec<Range<u64>>,
    slices: u32,
}

impl Cut {
    /// The cut of `request`, as `rank` of `world_size` makes it, into slices of which neither side
    /// is longer than `slot_bytes`.
    ///
    /// # Errors
    /// What is wrong with the request; `Unsupported` for what lanes do not carry out.
    pub fn new(
        request: &DeviceRequest,
        rank: usize,
        world_size: usize,
        slot_bytes: usize,
    ) -> Result<Cut> {
        let host = request.on_host();
        match host.collective {
            Collective::Barrier => {
                let text = "a barrier has no data on a device: synchronize the stream, then call \
                            `barrier` of the communicator";
                return Err(Error::Unsupported(text.into()));
            }
            Collective::Recv if host.root == Request::ANY_SOURCE => {
                let text = "a receive from any source into device memory: name the source";
                return Err(Error::Unsupported(text.into()));
            }
            _ => {}
        }
        let cut = Cut::of_host(host, rank, world_size, slot_bytes)?;
        for (what, side, buffer) in [
            ("input", &cut.input, &request.input),
            ("output", &cut.output, &request.output),
        ] {
            let needed = side.last().map_or(0, |block| block.end) as usize * cut.element_bytes;
            if buffer.bytes() != needed {
                return Err(Error::InvalidArgument(format!(
                    "{} needs {needed} bytes of {what} on this rank's device, got {}",
                    cut.request.collective,
                    buffer.bytes()
                )));
            }
        }
        Ok(cut)
    }

    /// The same of a call on the host, without memory.
    ///
    /// # Errors
    /// Slots that do not hold an element, and calls of too many slices.
    pub fn of_host(
        host: Request,
        rank: usize,
        world_size: usize,
        slot_bytes: usize,
    ) -> Result<Cut> {
        let element_bytes = host.dtype.size_bytes();
        let sides = host.sides(rank, world_size)?;
        let blocks = if host.is_of_blocks() { world_size } else { 1 };
        let part_elements = (slot_bytes / element_bytes / blocks) as u64;
        if part_elements == 0 {
            return Err(Error::InvalidArgument(format!(
                "slots of {slot_bytes} bytes do not hold one element for each of {world_size} ranks"
            )));
        }
        let slices = host.longest_block().div_ceil(part_elements);
        let slices = u32::try_from(slices).map_err(|_| {
            let text = format!("a call of {slices} slices: use larger slots or smaller calls");
            Error::InvalidArgument(text)
        })?;
        Ok(Cut {
            request: host,
            element_bytes,
            part_elements,
            input: sides.input,
            output: sides.output,
            slices,
        })
    }

    /// The number of slices on this rank.
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// Whether all ranks have as many slices.
    pub fn is_agreed(&self) -> bool {
        !matches!(self.request.counts, Counts::Pairwise { .. })
    }

    /// The bytes of the longer side that are the shorter one in a call in place, if not all.
    pub fn own_bytes(&self, rank: usize) -> Option<Range<usize>> {
        let longer = if self.input.len() > 1 {
            &self.input
        } else {
            &self.output
        };
        let own = longer.get(rank).filter(|_| longer.len() > 1)?;
        Some(own.start as usize * self.element_bytes..own.end as usize * self.element_bytes)
    }

    /// What `slice` brings from the device.
    pub fn brought(&self, slice: u32) -> Vec<Part> {
        self.parts(&self.input, slice)
    }

    /// What `slice` takes to the device.
    pub fn taken(&self, slice: u32) -> Vec<Part> {
        self.parts(&self.output, slice)
    }

    /// The call on the host that handles `slice`, from the slot to the result. Behind the last
    /// slice it is one of nothing.
    pub fn on_host(&self, slice: u32, slot: Region, result: Region) -> Request {
        let counts = |blocks: &[Range<u64>]| -> Vec<u64> {
            let part = |block: &Range<u64>| self.part(block, slice);
            blocks
                .iter()
                .map(part)
                .map(|part| part.end - part.start)
                .collect()
        };
        let bytes = |blocks: &[Range<u64>]| {
            let elements: u64 = counts(blocks).iter().sum();
            elements as usize * self.element_bytes
        };
        let whole = |count: &u64| {
            let part = self.part(&(0..*count), slice);
            part.end - part.start
        };
        let counts = match &self.request.counts {
            Counts::Even(count) => Counts::Even(whole(count)),
            Counts::PerRank(list) => Counts::PerRank(list.iter().map(whole).collect()),
            Counts::Pairwise { .. } => Counts::Pairwise {
                input: counts(&self.input),
                output: counts(&self.output),
            },
        };
        Request {
            counts,
            input: slot.part(0..bytes(&self.input)),
            output: result.part(0..bytes(&self.output)),
            ..self.request.clone()
        }
    }

    /// The elements of `block` in `slice`.
    fn part(&self, block: &Range<u64>, slice: u32) -> Range<u64> {
        let begin = u64::from(slice).saturating_mul(self.part_elements);
        let place = |offset: u64| block.start.saturating_add(offset).min(block.end);
        place(begin)..place(begin.saturating_add(self.part_elements))
    }

    /// The parts of `blocks` in `slice`, in a slot one after the other; those that stand together
    /// in the buffer, too, are one.
    fn parts(&self, blocks: &[Range<u64>], slice: u32) -> Vec<Part> {
        let in_bytes = |elements: u64| elements as usize * self.element_bytes;
        let mut parts: Vec<Part> = Vec::with_capacity(blocks.len());
        let mut at = 0;
        for block in blocks {
            let elements = self.part(block, slice);
            let of_buffer = in_bytes(elements.start)..in_bytes(elements.end);
            let bytes = of_buffer.len();
            match parts.last_mut() {
                _ if bytes == 0 => {}
                Some(last) if last.of_buffer.end == of_buffer.start => {
                    last.of_buffer.end = of_buffer.end;
                }
                _ => parts.push(Part { of_buffer, at }),
            }
            at += bytes;
        }
        parts
    }
}
