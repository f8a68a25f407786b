//! Small all-reduces by one kernel on each device.
//!
//! A call that is cut into slices costs its caller nine calls of the driver, and has the host's
//! thread between the copies down and up. For a few kilobytes that is most of its time. Here each
//! rank launches one kernel ([`text`]), which stores the rank's input where all devices find it,
//! raises a flag, waits for the flags of its peers, and combines what all have stored. Devices meet
//! in a part of the staging memory ([`area`]); no thread of the host stands between them. Host
//! memory crosses the device's link N-1 times for that, so larger calls are cut: the lane's
//! [tuner](crate::tune::devices::choice) says from which size on, below what there is memory for
//! ([`limits`]).
//!
//! # When
//!
//! A kernel that waits for another one can wait for ever if the two cannot run at the same time. So
//! all ranks are on one host and each has a device of its own, for certain: they compare the
//! devices' UUIDs when the lane is made.
//!
//! # Order
//!
//! The kernels run in the stream *in*, one after the other, so a rank's kernel begins when its last
//! one has ended. Two sets of flags and rows suffice ([`area`]), and nothing is reset. A kernel is
//! one more operation whose peers are enqueued by other ranks at the same place in their order;
//! [`program`](super::program) is closed with it.
//!
//! # Faults
//!
//! The lane's thread compares the calls when its own device has raised its flag, by a call of the
//! host with the deadline of this one. It sees dead ranks, aborts and deadlines there; then it says
//! that there is a fault, which the kernel that spins sees, too. The result is bytes of ones then.
//!
//! A kernel that has found the flags of all ranks reads their rows, fault or not. It may begin just
//! before it could see the fault, while a peer closes its lane; the peer cannot wait for what it
//! does not know of. So after a fault its rows stay, as they are, as long as any rank maps them
//! ([`Staging::say_fault`]).
//!
//! The scheme is the one-shot all-reduce of TensorRT-LLM and vLLM, in host memory instead of peers'
//! device memory.

pub mod area;
pub mod call;
mod element;
pub mod limits;
mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::CString;

use super::request::{DeviceBuffer, DeviceRequest};
use super::staging::{Bank, Staging};
use super::words::Word;
use crate::device::{Current, DeviceMemory, DeviceRegion, Kernel, PinnedRegion};
use crate::error::{Error, Result};
use crate::types::{DType, Op};
use area::Area;
use call::OneShotCall;
pub use element::is_combined;
use limits::{bytes_max, fits_one_shot};
use text::{NAME, parameters};

/// What a device needs for such calls.
#[derive(Debug)]
pub struct OneShot {
    kernels: BTreeMap<(DType, u8), Kernel>,
    /// Where lists, and elements that are not aligned, are put together.
    scratch: DeviceMemory,
    area: Area,
    rank: usize,
    world_size: usize,
    bytes_max: usize,
    /// The number of the last call, from 1 up.
    last: u32,
}

impl OneShot {
    /// What `rank` of `world_size` needs to meet the others in `area`. An error where the driver
    /// does not compile kernels.
    pub fn new(
        current: &Current<'_>,
        area: Area,
        [rank, world_size]: [usize; 2],
        slot_bytes: usize,
    ) -> Result<OneShot> {
        let bytes_max = bytes_max(world_size, slot_bytes);
        let mut one_shot = OneShot {
            kernels: BTreeMap::new(),
            scratch: current.allocate(bytes_max)?,
            area,
            rank,
            world_size,
            bytes_max,
            last: 0,
        };
        // Whether the driver compiles at all is known before the first call.
        one_shot.prepare(current, Op::Sum, DType::F32)?;
        Ok(one_shot)
    }

    /// Whether one kernel can do `request`: the same on all ranks that ask for the same.
    pub fn fits(&self, request: &DeviceRequest) -> bool {
        fits_one_shot(request, self.bytes_max)
    }

    /// The number that the call `request` has here, which fits. Its kernel may have to be compiled.
    pub fn number(&mut self, current: &Current<'_>, request: &DeviceRequest) -> Result<u32> {
        self.prepare(current, request.op, request.dtype)?;
        Ok(self.last.wrapping_add(1))
    }

    /// The call `request`, which has the number that [`number`](OneShot::number) gave.
    pub fn call(&self, staging: &Staging, request: DeviceRequest, number: u32) -> OneShotCall {
        OneShotCall {
            request,
            number,
            own: staging.one_shot(),
            area: self.area,
        }
    }

    /// Notes that `call` has been made.
    pub fn begin(&mut self, call: &OneShotCall) {
        self.last = call.number;
    }

    fn prepare(&mut self, current: &Current<'_>, op: Op, dtype: DType) -> Result<()> {
        if let Entry::Vacant(place) = self.kernels.entry((dtype, op.wire())) {
            let text = text::text(op, dtype, self.rank, self.world_size);
            let text = text.and_then(|text| CString::new(text).ok());
            let text = text.ok_or_else(|| {
                let text = format!("`{}` of {dtype} on devices", op.name());
                Error::Unsupported(text)
            })?;
            place.insert(current.kernel(&text, NAME, parameters(self.world_size))?);
        }
        Ok(())
    }

    /// Enqueues `call`. Whether its end is then said by [`Word::Taken`], which becomes `due`.
    pub fn launch(
        &self,
        current: &Current<'_>,
        staging: &Staging,
        call: &OneShotCall,
        due: u32,
    ) -> Result<bool> {
        let parts = [self.area.row(call.number), self.area.flags(call.number)];
        let of_rank = |rank| {
            let place = staging.of_rank(rank).ok_or_else(out_of_reach)?.one_shot();
            Ok(parts.each_ref().map(|part| place.part(part.clone())))
        };
        let places: Result<Vec<_>> = (0..self.world_size).map(of_rank).collect();
        self.launch_among(current, staging, call, due, &places?)
    }

    /// The same among ranks whose rows and flags are these.
    pub fn launch_among(
        &self,
        current: &Current<'_>,
        staging: &Staging,
        call: &OneShotCall,
        due: u32,
        places: &[[PinnedRegion; 2]],
    ) -> Result<bool> {
        let DeviceRequest {
            op,
            dtype,
            input,
            output,
            ..
        } = &call.request;
        let stream = &staging.into;
        // SAFETY: what is enqueued with it is done before this goes, or the memory is kept; one
        // call follows the other in the stream.
        let scratch = unsafe { self.scratch.region() }.part(0..call.bytes());
        let element_bytes = dtype.size_bytes();
        let from = single(input, element_bytes).unwrap_or(scratch);
        if from == scratch {
            for (at, piece) in input.pieces(0..call.bytes()) {
                current.copy(stream, piece, scratch.part(at..at + piece.bytes()))?;
            }
        }
        let into = single(output, element_bytes).unwrap_or(scratch);
        current.check_own(from)?;
        current.check_own(into)?;
        let grid = call.grid();
        // Blocks end in any order, and copies come behind the kernel.
        let is_end = grid[0] == 1 && into != scratch;
        let taken = match is_end {
            true => staging.word(Bank::Direct, Word::Taken).device_address(),
            false => 0,
        };
        let mut arguments: Vec<u64> = vec![
            from.address() as u64,
            into.address() as u64,
            call.bytes() as u64,
            call.flag(),
            staging.fault().device_address() as u64,
            taken as u64,
            u64::from(due),
            self.world_size as u64,
            (1.0 / self.world_size as f64).to_bits(),
        ];
        let places = places.iter().flatten();
        arguments.extend(places.map(|place| place.device_address() as u64));
        let kernel = &self.kernels[&(*dtype, op.wire())];
        // SAFETY: the kernel accesses the input and the output, which are the caller's promise, the
        // scratch, and staging memory that is pinned for this device: its own row, flags and words,
        // and the rows and flags of peers, which it only reads.
        unsafe { current.launch(stream, kernel, grid, &arguments) }?;
        if into == scratch {
            for (at, piece) in output.pieces(0..call.bytes()) {
                current.copy(stream, scratch.part(at..at + piece.bytes()), piece)?;
            }
        }
        Ok(is_end)
    }
}

fn out_of_reach() -> Error {
    Error::Unsupported("one kernel for an all-reduce of ranks whose slots it does not reach".into())
}

/// The memory of `buffer`, if it is one run whose elements are aligned.
fn single(buffer: &DeviceBuffer, element_bytes: usize) -> Option<DeviceRegion> {
    let mut pieces = buffer.pieces(0..buffer.bytes()).map(|(_, piece)| piece);
    let first = pieces.next()?;
    let is_single = pieces.next().is_none() && first.address().is_multiple_of(element_bytes);
    is_single.then_some(first)
}
