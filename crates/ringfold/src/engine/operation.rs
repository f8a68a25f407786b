//! What all executors share of a call: what it is, and where its data lies.

use std::time::Duration;

use super::geometry::{Geometry, Parts};
use crate::call::Call;
use crate::error::Result;
use crate::memory::{Block, Handle, Hold, Region, Registry};
use crate::reduce::{self, Factor, Kernel};
use crate::schedule::{Buffer, Span};
use crate::transport::{SlotUse, Term, Time, Transport};

/// The memory of one call and how it is cut.
#[derive(Debug)]
pub struct Buffers {
    /// What is read.
    pub input: Region,
    /// What is filled.
    pub output: Region,
    /// Where peers of this host find `input`, if messages from there can be lent.
    pub input_place: Option<Handle>,
    /// The same of `output`.
    pub output_place: Option<Handle>,
    /// The engine's memory.
    pub scratch: Region,
    /// How `scratch` is divided.
    pub scratch_parts: Parts,
    /// How `input` is cut.
    pub input_cut: Geometry,
    /// How `output` is cut.
    pub output_cut: Geometry,
    /// Whether a slot holds the output behind the input.
    pub is_apart: bool,
    /// What the transport has of `input` and `output`.
    pub held: Vec<Hold>,
    /// Keeps `scratch`, and a scaled copy of the input, alive.
    pub owned: Vec<Block>,
}

/// What all executors need to know of a call.
#[derive(Debug)]
pub struct Operation {
    /// What this rank says it is in.
    pub call: Call,
    /// The number under which the engine keeps it, for tickets; set when it gets one.
    pub id: usize,
    /// Where the data is.
    pub buffers: Buffers,
    /// The combining loop, where something is combined.
    pub kernel: Option<Kernel>,
    /// What every element of the result is scaled by at the end.
    pub factor: Option<Factor>,
    /// Whether results that replace nothing are stored past the caches.
    pub non_temporal_stores: bool,
    /// Whose slots are written to.
    pub slot_use: SlotUse,
    /// Whether the call goes through published memory.
    pub publishes: bool,
    /// Whether this rank waits for every other one, so that it has seen which call they are in.
    pub hears_all: bool,
    /// How many slices.
    pub slices: u32,
    /// How many of them may be under way at once.
    pub slices_in_flight: u32,
    /// The first window generation, when memory is published; set when the call begins.
    pub first_generation: u64,
    /// Whether it has begun.
    pub is_begun: bool,
    /// How long it may take once it has begun.
    pub timeout: Duration,
    /// When it must be done; unset until the driver first reads the clock.
    pub deadline: Option<Time>,
}

impl Buffers {
    /// What a call in these is about: the longer of input and output.
    pub fn bytes(&self) -> usize {
        self.input.bytes().max(self.output.bytes())
    }

    /// Finds out where peers find them, if they are registered.
    pub fn look_up(&mut self, registry: &Registry) {
        self.input_place = registry.find(self.input);
        self.output_place = match self.output.is_same(self.input) {
            true => self.input_place,
            false => registry.find(self.output),
        };
    }

    /// Has messages use the caller's memory directly, where that is better.
    pub fn hold(&mut self, transport: &mut dyn Transport) {
        self.held.extend(transport.hold(self.output, Term::Output));
        if !self.output.is_same(self.input) {
            self.held.extend(transport.hold(self.input, Term::Input));
        }
    }

    /// Where peers find `part`, which lies in `buffer`.
    pub fn place(&self, buffer: Buffer, part: Region) -> Option<Handle> {
        let (whole, place) = match buffer {
            Buffer::Input => (self.input, self.input_place?),
            Buffer::Output => (self.output, self.output_place?),
            Buffer::Scratch => return None,
        };
        let within = part.address() as usize - whole.address() as usize;
        Some(Handle {
            offset: place.offset + within as u64,
            ..place
        })
    }

    /// How scratch memory is cut: see [`Buffer::Scratch`].
    pub fn scratch_cut(&self) -> &Geometry {
        match self.output_cut.chunks() > self.input_cut.chunks() {
            true => &self.output_cut,
            false => &self.input_cut,
        }
    }
}

impl Operation {
    /// The window generation of a slice.
    pub fn generation(&self, slice: u32) -> u64 {
        self.first_generation + u64::from(slice)
    }

    /// The last generation of a call through published memory.
    pub fn last_generation(&self) -> u64 {
        self.generation(self.slices - 1)
    }

    /// The combining loop of a call that reduces.
    pub fn kernel(&self) -> Kernel {
        self.kernel.expect(
            "a schedule that reduces belongs to a collective that does, whose kernel was made",
        )
    }

    /// The memory of `span` in `slice`.
    pub fn region(&self, span: Span, slice: u32) -> Region {
        if span.len == 0 {
            return Region::EMPTY;
        }
        let buffers = &self.buffers;
        match span.buffer {
            Buffer::Input => buffers
                .input
                .part(buffers.input_cut.range(span.first, span.len, slice)),
            Buffer::Output => buffers
                .output
                .part(buffers.output_cut.range(span.first, span.len, slice)),
            Buffer::Scratch => {
                let (cut, parts) = (buffers.scratch_cut(), &buffers.scratch_parts);
                let range = cut.scratch_range(span.first, span.len, slice, parts);
                buffers.scratch.part(range)
            }
        }
    }

    /// Where chunk `first` of `buffer` stands in a published slot.
    pub fn slot_offset(&self, buffer: Buffer, first: u32, slice: u32) -> usize {
        let Buffers {
            input_cut,
            output_cut,
            is_apart,
            ..
        } = &self.buffers;
        match buffer {
            Buffer::Input | Buffer::Scratch => input_cut.slot_offset(first, slice),
            Buffer::Output if *is_apart => {
                input_cut.slice_bytes() + output_cut.slot_offset(first, slice)
            }
            Buffer::Output => output_cut.slot_offset(first, slice),
        }
    }

    /// Scales `len` chunks of the result of `slice` from `first` on, where the operation asks for
    /// it.
    pub fn scale_result(&self, first: u32, len: u32, slice: u32) -> Result<()> {
        let Some(factor) = self.factor else {
            return Ok(());
        };
        let range = self.buffers.output_cut.range(first, len, slice);
        let region = self.buffers.output.part(range);
        reduce::scale(self.call.dtype, region, region, factor)?;
        Ok(())
    }
}
