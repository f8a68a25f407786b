//! The description of a call that all executors share, and the location of its data.

use std::time::Duration;

use super::gate::{OpenGate, OwnParts, SharedSlots};
use super::geometry::{BlockLayout, Geometry, Parts};
use super::job::Job;
use super::wide::WideKernels;
use crate::call::Call;
use crate::error::Result;
use crate::memory::{Block, BufferHandle, Hold, Region, Registry};
use crate::reduce::{self, Factor, ReductionKernel};
use crate::schedule::{self, Buffer, BufferCut, Span};
use crate::transport::{SlotUse, Term, Time, Transport};

/// The memory of one call, and its cuts.
#[derive(Debug)]
pub struct Buffers {
    /// The input buffer.
    pub input: Region,
    /// The output buffer.
    pub output: Region,
    /// The handle of `input` for peers on this host, if messages from `input` can be lent.
    pub input_place: Option<BufferHandle>,
    /// The handle of `output`, likewise.
    pub output_place: Option<BufferHandle>,
    /// Scratch memory of the engine.
    pub scratch: Region,
    /// The division of `scratch`.
    pub scratch_parts: Parts,
    /// The length of an element of `scratch`, and of places for copies of such elements, as a
    /// multiple of that of the call's elements.
    pub scratch_scale: usize,
    /// Memory of the engine for other ranks' copies of chunks.
    pub leaf_memory: Region,
    /// Number of places for copies in each slice in flight.
    pub leaves: u32,
    /// Size of a place.
    pub leaf_bytes: usize,
    /// The cut of `input`.
    pub input_cut: Geometry,
    /// The cut of `output`.
    pub output_cut: Geometry,
    /// The transport's holds on `input` and `output`.
    pub held: Vec<Hold>,
    /// Blocks that keep `scratch` and a scaled copy of the input alive.
    pub owned: Vec<Block>,
}

/// The description of a call that all executors share.
#[derive(Debug)]
pub struct PreparedOperation {
    /// The call that this rank announces to its peers.
    pub call: Call,
    /// The number of the call in the engine, for tickets; set when the engine assigns it.
    pub id: usize,
    /// The memory of the call.
    pub buffers: Buffers,
    /// The devices that move the data of the call, if they do. Boxed: small calls notice the length
    /// of an operation.
    pub gate: Option<Box<OpenGate>>,
    /// The reduction loop, if the call reduces.
    pub kernel: Option<ReductionKernel>,
    /// The kernels beside `kernel`, if partial results are wide.
    pub wide: Option<WideKernels>,
    /// The factor by which every element of the result is scaled at the end.
    pub factor: Option<Factor>,
    /// Whether peers of this host read this rank's messages from its memory.
    pub reads: bool,
    /// Whether out-of-place results use non-temporal stores.
    pub non_temporal_stores: bool,
    /// The use of slots, which decides whose slots are written.
    pub slot_use: SlotUse,
    /// Whether the call uses published memory.
    pub publishes: bool,
    /// Whether this rank waits for every other rank, and so sees which call each is in.
    pub hears_all: bool,
    /// Number of slices.
    pub slices: u32,
    /// Maximum number of slices in flight.
    pub slices_in_flight: u32,
    /// The first window generation, if memory is published; set when the call begins.
    pub first_generation: u64,
    /// Whether the call has begun.
    pub is_begun: bool,
    /// Maximum duration of the call from its beginning.
    pub timeout: Duration,
    /// The time by which the call must be done; unset until the driver first reads the clock.
    pub deadline: Option<Time>,
}

impl Buffers {
    /// Returns the longer of the lengths of input and output.
    pub fn bytes(&self) -> usize {
        self.input.bytes().max(self.output.bytes())
    }

    /// Looks up the handles of input and output, if they are registered.
    pub fn look_up(&mut self, registry: &Registry) {
        self.input_place = registry.find(self.input);
        self.output_place = match self.output.is_same(self.input) {
            true => self.input_place,
            false => registry.find(self.output),
        };
    }

    /// Prepares the caller's memory for direct use by messages, if direct use is better.
    pub fn hold(&mut self, transport: &mut dyn Transport) {
        self.held.extend(transport.hold(self.output, Term::Output));
        if !self.output.is_same(self.input) {
            self.held.extend(transport.hold(self.input, Term::Input));
        }
    }

    /// Returns the handle of `part`, which lies in `buffer`, for peers.
    pub fn place(&self, buffer: Buffer, part: Region) -> Option<BufferHandle> {
        let (whole, place) = match buffer {
            Buffer::Input => (self.input, self.input_place?),
            Buffer::Output => (self.output, self.output_place?),
            Buffer::Scratch | Buffer::Leaves => return None,
        };
        let within = part.address() as usize - whole.address() as usize;
        Some(BufferHandle {
            offset: place.offset + within as u64,
            ..place
        })
    }

    /// Returns the memory of a copy of a chunk of `bytes` bytes, from place `first` on, in one of
    /// the slices in flight.
    pub fn leaf(&self, first: u32, flight: u32, bytes: usize) -> Region {
        let place = flight as usize * self.leaves as usize + first as usize;
        let begin = place * self.leaf_bytes;
        self.leaf_memory.part(begin..begin + bytes)
    }

    /// Returns the cut of scratch memory, see [`Buffer::Scratch`].
    pub fn scratch_cut(&self) -> &Geometry {
        match self.output_cut.chunks() > self.input_cut.chunks() {
            true => &self.output_cut,
            false => &self.input_cut,
        }
    }
}

impl PreparedOperation {
    /// Returns the operation of a call through published memory that is one slice, and whose
    /// executor alone knows the location of the blocks.
    pub fn of_one_slice(job: &Job, call: Call) -> PreparedOperation {
        let (vector, size) = (BufferCut::Vector(1), job.dtype.size_bytes());
        let cut = Geometry::new(vector, BlockLayout::Even(job.count), size, job.count, 1);
        PreparedOperation {
            call,
            id: 0,
            buffers: Buffers {
                input: job.input,
                output: job.output,
                input_place: None,
                output_place: None,
                scratch: Region::EMPTY,
                scratch_parts: Parts::default(),
                scratch_scale: 1,
                leaf_memory: Region::EMPTY,
                leaves: 0,
                leaf_bytes: 0,
                input_cut: cut.clone(),
                output_cut: cut,
                held: Vec::new(),
                owned: Vec::new(),
            },
            gate: None,
            kernel: None,
            wide: None,
            factor: None,
            reads: false,
            non_temporal_stores: false,
            slot_use: SlotUse::Own,
            publishes: true,
            hears_all: false,
            slices: 1,
            slices_in_flight: 1,
            first_generation: 0,
            is_begun: false,
            timeout: job.timeout,
            deadline: None,
        }
    }

    /// Returns the slots of a call whose data devices move through the slots of all ranks.
    pub fn shared_slots(&self) -> &dyn SharedSlots {
        match self.gate.as_deref() {
            Some(OpenGate::Shared(slots)) => slots.as_ref(),
            _ => unreachable!("a call that was prepared with its slots"),
        }
    }

    /// Returns the slots through which this rank's device moves the data, if it does.
    #[inline]
    pub fn own_parts(&self) -> Option<&OwnParts> {
        match self.gate.as_deref() {
            Some(OpenGate::Own(own)) => Some(own),
            _ => None,
        }
    }

    /// Returns the bytes of the input or of the output, whichever is longer.
    pub fn bytes(&self) -> usize {
        match self.gate.as_deref() {
            Some(OpenGate::Own(own)) => own.slots.bytes(),
            Some(OpenGate::Shared(slots)) => slots.bytes(),
            None => self.buffers.bytes(),
        }
    }

    /// Returns the window generation of a slice.
    pub fn generation(&self, slice: u32) -> u64 {
        self.first_generation + u64::from(slice)
    }

    /// Returns the last generation of a call through published memory.
    pub fn last_generation(&self) -> u64 {
        self.generation(self.slices - 1)
    }

    /// Returns the reduction loop of a call that reduces.
    pub fn kernel(&self) -> ReductionKernel {
        self.kernel.expect(
            "a schedule that reduces belongs to a collective that does, whose kernel was made",
        )
    }

    /// Returns the reduction loop from copies of `from` to `into`.
    pub fn kernel_between(&self, from: Span, into: Span) -> ReductionKernel {
        let wide = self.wide.and_then(|wide| wide.of(from, into));
        wide.unwrap_or_else(|| self.kernel())
    }

    /// Returns the loop that converts from `from` to `into`, if their types differ.
    pub fn conversion(&self, from: Span, into: Span) -> Option<ReductionKernel> {
        let wide = self.wide.filter(|_| from.buffer != into.buffer)?;
        wide.of(from, into)
    }

    /// Returns the memory of `span` in `slice`.
    pub fn region(&self, span: Span, slice: u32) -> Region {
        if span.len == 0 {
            return Region::EMPTY;
        }
        let buffers = &self.buffers;
        match span.buffer {
            Buffer::Input => self
                .input(slice)
                .part(buffers.input_cut.range(span.first, span.len, slice)),
            Buffer::Output => self
                .output(slice)
                .part(buffers.output_cut.range(span.first, span.len, slice)),
            Buffer::Scratch => {
                let (cut, parts) = (buffers.scratch_cut(), &buffers.scratch_parts);
                let range = cut.scratch_range(span.first, span.len, slice, parts);
                let scale = buffers.scratch_scale;
                buffers.scratch.part(range.start * scale..range.end * scale)
            }
            Buffer::Leaves => unreachable!("places of copies have no length of their own"),
        }
    }

    /// Returns the input buffer, or the slot of the part of `slice`.
    fn input(&self, slice: u32) -> Region {
        match self.own_parts() {
            None => self.buffers.input,
            Some(own) => own.slots.memory(own.part_of(slice))[0],
        }
    }

    /// Returns the output buffer, or the place of the result of the part of `slice`.
    fn output(&self, slice: u32) -> Region {
        match self.own_parts() {
            None => self.buffers.output,
            Some(own) => own.slots.memory(own.part_of(slice))[1],
        }
    }

    /// Scales the input of `slice`, which a device has brought, if the operation demands that.
    pub fn scale_brought(&self, slice: u32) -> Result<()> {
        let Some(factor) = self.own_parts().and_then(|own| own.factor) else {
            return Ok(());
        };
        for chunk in 0..self.buffers.input_cut.chunks() {
            let region = self.region(schedule::input(chunk, 1), slice);
            reduce::scale(self.call.dtype, region, region, factor)?;
        }
        Ok(())
    }

    /// Returns the offset of chunk `first` of `buffer` in a published slot.
    pub fn slot_offset(&self, buffer: Buffer, first: u32, slice: u32) -> usize {
        let cut = match buffer {
            Buffer::Output => &self.buffers.output_cut,
            _ => &self.buffers.input_cut,
        };
        cut.slot_offset(first, slice)
    }

    /// Scales `len` chunks of the result of `slice` from `first` on, if the operation has a factor.
    pub fn scale_result(&self, first: u32, len: u32, slice: u32) -> Result<()> {
        let Some(factor) = self.factor else {
            return Ok(());
        };
        let range = self.buffers.output_cut.range(first, len, slice);
        let region = self.output(slice).part(range);
        reduce::scale(self.call.dtype, region, region, factor)?;
        Ok(())
    }
}
