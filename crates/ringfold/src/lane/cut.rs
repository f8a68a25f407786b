//! How a call is cut into slices, and where the bytes of each lie.
//!
//! A vector is cut into slices one after the other. Of blocks, a slice is the same part of every
//! block, so each slice is a call of the same collective with smaller counts. In a slot of the
//! staging memory the parts of a slice stand one after the other.
//!
//! Where devices read the slots of all ranks, a slot holds what its rank gives, and no more: what a
//! rank gets of a slice may be longer. Of a sum, each rank combines its *share* of a slice, from
//! the slots of all ranks, in place: into the slot of one of them, from which devices copy it. Of
//! an all_reduce that is another rank's with each slice, so that all ranks' memory is read alike.
//! What a short call gives a rank, the rank combines by itself, into a place of its own.
//!
//! All ranks cut alike, because the length of a part depends only on the collective, the data type,
//! the number of ranks and the size of slots. Where each pair of ranks has a count of its own, the
//! number of slices may differ.

use std::ops::Range;

use super::request::DeviceRequest;
use super::staging::{Bank, OWN_SUM_BYTES_MAX};
use crate::call::list_digest;
use crate::communicator::{Counts, Request, Target};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::{Collective, Op};

/// A part of one side of a slice: bytes of the call's buffer, and where they stand in the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of the buffer.
    pub of_buffer: Range<usize>,
    /// Where they begin in the slot.
    pub at: usize,
}

/// Whether devices can do a call in the slots of all ranks, with sums in place: the data of each
/// rank has the same places on all, what it gives is combined as it is, and how is left to the
/// lane.
pub fn goes_by_slots(request: &Request) -> bool {
    use Collective::{Barrier, Recv, Send, SendRecv};
    let is_known = !matches!(request.counts, Counts::Pairwise { .. });
    let is_pair = matches!(request.collective, Barrier | Recv | Send | SendRecv);
    let scales = request.collective.reduces() && matches!(request.op, Op::PremulSum(_));
    !is_pair && is_known && !scales && request.options.algorithm.is_none()
}

/// What a rank fetches from another's slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    pub rank: usize,
    pub part: Part,
}

/// The share of a slice that a rank combines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its place in the slots of all ranks.
    pub at: Range<usize>,
    /// The rank in whose slot the sum stands, in place; none: it stands in this rank's own place of
    /// sums.
    pub into: Option<usize>,
}

/// The most bytes that a rank reads to combine by itself what a call of one slice gives it: less
/// than to wait for the shares of others, and for a kernel that looks for faults.
const OWN_READ_BYTES_MAX: usize = 256 << 10;

/// Shares begin at multiples of this many bytes, so that no two ranks write to one cache line.
const SHARE_ALIGN_BYTES: usize = 64;

/// The cut of one call, on one rank.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The call, without memory.
    request: Request,
    rank: usize,
    world_size: usize,
    bank: Bank,
    /// Whether each rank combines by itself what it gets.
    sums_alone: bool,
    element_bytes: usize,
    /// The most bytes of a slice in a slot.
    slice_bytes: usize,
    /// Elements of a block in a slice.
    part_elements: u64,
    /// The blocks of the input and of the output, in elements; none on a rank that gives or gets
    /// nothing.
    input: Vec<Range<u64>>,
    output: Vec<Range<u64>>,
    slices: u32,
}

impl Cut {
    /// The cut of `request`, as `rank` of `world_size` makes it, into slices of `slice_bytes` at
    /// most in slots of `bank`.
    ///
    /// # Errors
    /// What is wrong with the request; `Unsupported` for what lanes do not carry out.
    pub fn new(
        request: &DeviceRequest,
        rank: usize,
        world_size: usize,
        slice_bytes: usize,
        bank: Bank,
    ) -> Result<Cut> {
        let host = request.on_host();
        match host.collective {
            Collective::Barrier => {
                let text = "a barrier has no data on a device: synchronize the stream, then call \
                            `barrier` of the communicator";
                return Err(Error::Unsupported(text.into()));
            }
            Collective::Recv if host.target == Target::AnySource => {
                let text = "a receive from any source into device memory: name the source";
                return Err(Error::Unsupported(text.into()));
            }
            _ => {}
        }
        let cut = Cut::of_host(host, rank, world_size, slice_bytes, bank)?;
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
        slice_bytes: usize,
        bank: Bank,
    ) -> Result<Cut> {
        let element_bytes = host.dtype.size_bytes();
        let sides = host.sides(rank, world_size)?;
        let gives_blocks = matches!(
            host.collective,
            Collective::AllToAll | Collective::ReduceScatter | Collective::Scatter
        );
        let has_blocks = match bank {
            Bank::Host => host.is_of_blocks(),
            Bank::Direct => gives_blocks,
        };
        let blocks = if has_blocks { world_size } else { 1 };
        let part_elements = (slice_bytes / element_bytes / blocks) as u64;
        if part_elements == 0 {
            return Err(Error::InvalidArgument(format!(
                "slices of {slice_bytes} bytes hold no element of each of {world_size} ranks"
            )));
        }
        let slices = host.longest_block().div_ceil(part_elements);
        let slices = u32::try_from(slices).map_err(|_| {
            let text = format!("a call of {slices} slices: use larger slots or smaller calls");
            Error::InvalidArgument(text)
        })?;
        let gets = match host.collective {
            // All ranks decide alike.
            Collective::ReduceScatter => host.longest_block() as usize * element_bytes,
            _ => host.bytes(world_size) as usize,
        };
        let most = OWN_SUM_BYTES_MAX.min(OWN_READ_BYTES_MAX / world_size);
        let is_short = slices <= 1 && gets <= most;
        let sums_alone = bank == Bank::Direct && host.collective.reduces() && is_short;
        Ok(Cut {
            request: host,
            rank,
            world_size,
            bank,
            sums_alone,
            element_bytes,
            slice_bytes,
            part_elements,
            input: sides.input,
            output: sides.output,
            slices,
        })
    }

    /// Whose slots it is for.
    pub fn bank(&self) -> Bank {
        self.bank
    }

    /// The number of slices on this rank.
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// Elements of a slice of the vector, or of each block.
    pub fn part_elements(&self) -> u64 {
        self.part_elements
    }

    /// The most bytes of a slice in a slot.
    pub fn slice_bytes(&self) -> usize {
        self.slice_bytes
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
        // Of blocks that devices read, a rank's own is read by no other, unless it is summed.
        let moves_blocks =
            self.bank == Bank::Direct && self.input.len() > 1 && !self.request.collective.reduces();
        let is_kept = |block| moves_blocks && block == self.rank;
        self.parts(&self.input, slice, is_kept)
    }

    /// What `slice` takes to the device.
    pub fn taken(&self, slice: u32) -> Vec<Part> {
        self.parts(&self.output, slice, |_| false)
    }

    /// What `slice` takes to the device from the slots of other ranks, that of the next rank first;
    /// a sum also from this rank's own.
    pub fn fetched(&self, slice: u32) -> Vec<Fetched> {
        let blocks = self.output.len();
        let next = (self.rank + 1..blocks).chain(0..blocks.min(self.rank + 1));
        let fetched = |block: usize| {
            let elements = self.part(&self.output[block], slice);
            let rank = self.giver(block, slice);
            let is_kept = rank == self.rank && !self.request.collective.reduces();
            let is_there = !is_kept && !self.sums_alone && !elements.is_empty();
            is_there.then(|| {
                let of_buffer = self.bytes(elements);
                let at = self.place(slice);
                let part = Part { of_buffer, at };
                Fetched { rank, part }
            })
        };
        next.filter_map(fetched).collect()
    }

    /// The bytes of the input and of the output that are the same in `slice`, because this rank
    /// gives them to itself.
    pub fn kept(&self, slice: u32) -> Option<[Range<usize>; 2]> {
        let own = |blocks: &[Range<u64>]| {
            let block = blocks.get(if blocks.len() > 1 { self.rank } else { 0 })?;
            Some(self.bytes(self.part(block, slice)))
        };
        let block = if self.output.len() > 1 { self.rank } else { 0 };
        let sums = self.request.collective.reduces();
        let is_own = self.giver(block, slice) == self.rank && !sums;
        let kept = [own(&self.input)?, own(&self.output)?];
        (is_own && !kept[0].is_empty()).then_some(kept)
    }

    /// Whether each rank combines by itself what it gets, in its own place of sums.
    pub fn sums_alone(&self) -> bool {
        self.sums_alone
    }

    /// Whether devices take sums that other ranks have combined.
    pub fn shares_sums(&self) -> bool {
        use Collective::{AllReduce, Reduce};
        matches!(self.request.collective, AllReduce | Reduce) && !self.sums_alone
    }

    /// The share of `slice` that this rank combines, if there are sums.
    pub fn share(&self, slice: u32) -> Option<Share> {
        let bytes = || self.bytes(self.part(&self.input[0], slice)).len();
        let at = match self.request.collective {
            Collective::ReduceScatter => {
                let (begin, own) = (self.place(slice), self.part(&self.input[self.rank], slice));
                begin..begin + self.bytes(own).len()
            }
            Collective::AllReduce | Collective::Reduce if self.sums_alone => {
                match self.output.is_empty() {
                    true => 0..0,
                    false => 0..bytes(),
                }
            }
            Collective::AllReduce | Collective::Reduce => {
                let bytes = bytes();
                let each = bytes
                    .div_ceil(self.world_size)
                    .next_multiple_of(SHARE_ALIGN_BYTES);
                let place = |rank: usize| bytes.min(rank.saturating_mul(each));
                place(self.rank)..place(self.rank + 1)
            }
            _ => return None,
        };
        let into = (!self.sums_alone).then(|| self.giver(self.rank, slice));
        (!at.is_empty()).then_some(Share { at, into })
    }

    /// What `slice` takes to the device from this rank's own place of sums.
    pub fn taken_sum(&self, slice: u32) -> Option<Part> {
        let of_buffer = self.bytes(self.part(self.output.first()?, slice));
        let is_there = self.sums_alone && !of_buffer.is_empty();
        is_there.then_some(Part { of_buffer, at: 0 })
    }

    /// Whose input a block of the output is, or in whose slot the sum stands.
    fn giver(&self, block: usize, slice: u32) -> usize {
        match self.request.collective {
            Collective::AllReduce => slice as usize % self.world_size,
            Collective::ReduceScatter => self.rank,
            Collective::Broadcast | Collective::Reduce | Collective::Scatter => self.request.root(),
            _ => block,
        }
    }

    /// Where in the slot of another rank stands what this rank fetches of `slice`.
    fn place(&self, slice: u32) -> usize {
        let part = |count: u64| self.bytes(self.part(&(0..count), slice)).len();
        match (self.request.collective, &self.request.counts) {
            (
                Collective::AllToAll | Collective::ReduceScatter | Collective::Scatter,
                Counts::Even(count),
            ) => self.rank * part(*count),
            (Collective::ReduceScatter | Collective::Scatter, Counts::PerRank(counts)) => {
                counts[..self.rank].iter().map(|count| part(*count)).sum()
            }
            _ => 0,
        }
    }

    fn bytes(&self, elements: Range<u64>) -> Range<usize> {
        let in_bytes = |elements: u64| elements as usize * self.element_bytes;
        in_bytes(elements.start)..in_bytes(elements.end)
    }

    /// The whole call, without memory.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The host's message for `slice`, from the slot to the result.
    pub fn on_host(&self, slice: u32, slot: Region, result: Region) -> Request {
        let elements = |blocks: &[Range<u64>]| {
            let part = blocks.first().map_or(0..0, |block| self.part(block, slice));
            part.end - part.start
        };
        let [given, taken] = [&self.input, &self.output].map(|side| elements(side));
        let bytes = |elements: u64| self.bytes(0..elements);
        Request {
            counts: Counts::Even(given.max(taken)),
            whole: self.whole(),
            input: slot.part(bytes(given)),
            output: result.part(bytes(taken)),
            ..self.request.clone()
        }
    }

    /// What a slice of a message says of all of them, if there are several: a message of another
    /// length may begin with the same slices.
    fn whole(&self) -> Option<u32> {
        (self.slices > 1).then(|| list_digest([self.request.longest_block()]))
    }

    /// The elements of `block` in `slice`.
    fn part(&self, block: &Range<u64>, slice: u32) -> Range<u64> {
        let begin = u64::from(slice).saturating_mul(self.part_elements);
        let place = |offset: u64| block.start.saturating_add(offset).min(block.end);
        place(begin)..place(begin.saturating_add(self.part_elements))
    }

    /// The parts of `blocks` in `slice`, in a slot one after the other; those that stand together
    /// in the buffer, too, are one. The places of those that are not moved stay empty.
    fn parts(
        &self,
        blocks: &[Range<u64>],
        slice: u32,
        is_kept: impl Fn(usize) -> bool,
    ) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::with_capacity(blocks.len());
        let mut at = 0;
        for (index, block) in blocks.iter().enumerate() {
            let of_buffer = self.bytes(self.part(block, slice));
            let bytes = of_buffer.len();
            match parts.last_mut() {
                _ if bytes == 0 || is_kept(index) => {}
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
