//! A small all-reduce that one kernel does, on this rank.

#![forbid(unsafe_code)]

use super::area::Area;
use super::limits::grid;
use crate::device::PinnedRegion;
use crate::lane::request::DeviceRequest;
use crate::lane::words::{is_reached, load_flag};
use crate::random::mix;
use crate::types::{DType, Op};

/// The call.
#[derive(Debug)]
pub struct OneShotCall {
    pub request: DeviceRequest,
    /// Its number among the calls of this kind, which is the same on all ranks.
    pub number: u32,
    /// Where this rank's flags and rows are.
    pub own: PinnedRegion,
    pub area: Area,
}

impl OneShotCall {
    /// Bytes of the vector.
    pub fn bytes(&self) -> usize {
        self.request.input.bytes()
    }

    /// The blocks and threads of its launch.
    pub fn grid(&self) -> [u32; 2] {
        grid(self.bytes())
    }

    /// What the flags of this call hold: its number, and a digest of what it is.
    pub fn flag(&self) -> u64 {
        let DeviceRequest { op, dtype, .. } = self.request;
        flag(op, dtype, self.elements(), self.number)
    }

    /// Whether the device has begun: this rank's part stands where the peers' devices find it. It
    /// may be in later calls by now, since it does not wait for its host.
    pub fn is_published(&self) -> bool {
        let [blocks, _] = self.grid();
        let place = |block| self.own.region().part(self.area.flag(self.number, block));
        let number = |block| load_flag(place(block)) as u32;
        (0..blocks as usize).all(|block| is_reached(number(block), self.number))
    }

    fn elements(&self) -> u64 {
        (self.bytes() / self.request.dtype.size_bytes()) as u64
    }
}

/// What the flags of call `number` hold: the number, and above it a digest of the rest.
pub fn flag(op: Op, dtype: DType, elements: u64, number: u32) -> u64 {
    let kind = u64::from(op.wire()) | (dtype as u64) << 8;
    let digest = mix(mix(kind) ^ elements);
    u64::from(number) | digest >> 32 << 32
}
