//! A call on device memory as the caller makes it.

use std::ops::Range;

use crate::communicator::Request;
use crate::device::DeviceRegion;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::Collective;

/// Device memory that a call uses as one buffer: one run of bytes, or several, as if they stood one
/// after the other. So a call may gather its input from a list of tensors and scatter its output
/// over another, without copies that put them together.
#[derive(Clone, Debug, Default)]
pub struct DeviceBuffer {
    regions: Vec<DeviceRegion>,
    bytes: usize,
}

/// Bytes that are copied between a device and a slot or a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub device: DeviceRegion,
    /// Their place in the slot, or in the result.
    pub at: Range<usize>,
}

/// A copy to the device of what stands in another rank's slot.
#[derive(Debug)]
pub struct Fetch {
    pub rank: usize,
    pub transfer: Transfer,
}

impl DeviceBuffer {
    /// The buffer of these runs, which lie on one device.
    pub fn new(regions: Vec<DeviceRegion>) -> DeviceBuffer {
        let bytes = regions.iter().map(|region| region.bytes()).sum();
        DeviceBuffer { regions, bytes }
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The runs of bytes `range`, in order, each with its distance from the range's beginning.
    pub fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = (usize, DeviceRegion)> + '_ {
        let mut end = 0;
        self.regions.iter().filter_map(move |region| {
            let begin = end;
            end += region.bytes();
            let (from, to) = (range.start.max(begin), range.end.min(end));
            (from < to).then(|| (from - range.start, region.part(from - begin..to - begin)))
        })
    }

    /// The copies of bytes `range`, which stand in a slot or a result from `place` on.
    pub(super) fn transfers(
        &self,
        range: Range<usize>,
        place: usize,
    ) -> impl Iterator<Item = Transfer> + '_ {
        self.pieces(range).map(move |(offset, device)| {
            let begin = place + offset;
            let at = begin..begin + device.bytes();
            Transfer { device, at }
        })
    }

    /// The pieces of bytes `range`, each with that of bytes `others` of `other` which stands at the
    /// same distance from the beginning. Both ranges are as long.
    pub(super) fn paired(
        &self,
        range: Range<usize>,
        other: &DeviceBuffer,
        others: Range<usize>,
    ) -> Vec<(DeviceRegion, DeviceRegion)> {
        let mut pairs = vec![];
        for (distance, piece) in self.pieces(range) {
            let begin = others.start + distance;
            for (offset, into) in other.pieces(begin..begin + piece.bytes()) {
                pairs.push((piece.part(offset..offset + into.bytes()), into));
            }
        }
        pairs
    }

    /// The runs.
    pub(super) fn regions(&self) -> &[DeviceRegion] {
        &self.regions
    }

    /// Whether any byte belongs to both.
    pub(super) fn overlaps(&self, other: &DeviceBuffer) -> bool {
        let mut pairs = self.regions.iter();
        pairs.any(|one| other.regions.iter().any(|another| overlap(*one, *another)))
    }

    /// Whether `other` is bytes `range` of this buffer, in the same order.
    fn is_part(&self, range: Range<usize>, other: &DeviceBuffer) -> bool {
        let own = self.pieces(range).map(|(_, piece)| piece);
        runs(own) == runs(other.regions.iter().copied())
    }
}

/// Device, address and bytes of these regions, of which those that follow each other are one.
fn runs(regions: impl Iterator<Item = DeviceRegion>) -> Vec<(usize, usize, usize)> {
    let mut runs: Vec<(usize, usize, usize)> = vec![];
    for region in regions.filter(|region| region.bytes() > 0) {
        let (device, address, bytes) = (region.device(), region.address(), region.bytes());
        match runs.last_mut() {
            Some(last) if last.0 == device && last.1 + last.2 == address => last.2 += bytes,
            _ => runs.push((device, address, bytes)),
        }
    }
    runs
}

/// Whether any byte belongs to both.
fn overlap(one: DeviceRegion, other: DeviceRegion) -> bool {
    let end = |region: DeviceRegion| region.address() + region.bytes();
    one.device() == other.device() && one.address() < end(other) && other.address() < end(one)
}

/// One call on device memory. Its input and output may be the same memory (or one a part of the
/// other), which means in place.
pub type DeviceRequest = Request<DeviceBuffer>;

impl<M> Request<M> {
    /// The same call on other memory.
    pub fn with_memory<N>(&self, input: N, output: N) -> Request<N> {
        Request {
            op: self.op,
            target: self.target,
            tag: self.tag,
            options: self.options,
            group: self.group,
            ..Request::new(
                self.collective,
                self.dtype,
                self.counts.clone(),
                input,
                output,
            )
        }
    }
}

impl DeviceRequest {
    /// The same call on the host, without memory.
    pub(super) fn on_host(&self) -> Request {
        self.with_memory(Region::EMPTY, Region::EMPTY)
    }

    /// Checks that input and output are apart, or the same memory in the collective's in-place
    /// form: the other of the two, or bytes `own` of it.
    pub(super) fn check_overlap(&self, own_bytes: Option<Range<usize>>) -> Result<()> {
        let (input, output) = (&self.input, &self.output);
        if !input.overlaps(output) {
            return Ok(());
        }
        let (whole, part) = match input.bytes() <= output.bytes() {
            true => (output, input),
            false => (input, output),
        };
        let own = own_bytes.unwrap_or(0..whole.bytes());
        let is_allowed = !matches!(self.collective, Collective::AllToAll | Collective::SendRecv);
        if is_allowed && own.len() == part.bytes() && whole.is_part(own, part) {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "input and output of {} overlap on the device, but not as its in-place form has them",
            self.collective
        )))
    }
}
