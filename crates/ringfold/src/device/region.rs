//! What the program hands over: device memory and streams, as the driver names them.

use std::ops::Range;

/// Bytes in the memory of a device: numbers only, so host code cannot access them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRegion {
    device: usize,
    address: usize,
    bytes: usize,
}

impl DeviceRegion {
    /// The `bytes` bytes at `address` in the memory of `device`, an ordinal.
    ///
    /// # Safety
    /// * The memory is allocated until all work that was enqueued with this region is done.
    /// * No other work accesses it meanwhile, except in an order that streams and events determine.
    pub unsafe fn new(device: usize, address: usize, bytes: usize) -> DeviceRegion {
        DeviceRegion {
            device,
            address,
            bytes,
        }
    }

    /// The ordinal of the device.
    pub fn device(self) -> usize {
        self.device
    }

    /// The device's address of the first byte.
    pub fn address(self) -> usize {
        self.address
    }

    /// The length in bytes.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Bytes `range` of this region; panics when they are not inside it.
    pub fn part(self, range: Range<usize>) -> DeviceRegion {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "part {range:?} of a device region of {} bytes",
            self.bytes
        );
        DeviceRegion {
            address: self.address + range.start,
            bytes: range.end - range.start,
            ..self
        }
    }
}

/// A stream of the program: the driver's handle. 0 is the default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramStream(usize);

impl ProgramStream {
    /// The default stream of the device's primary context.
    pub const DEFAULT: ProgramStream = ProgramStream(0);

    /// The stream with this handle, as torch and others give it.
    ///
    /// # Safety
    /// The handle is 0 or that of a stream which is not destroyed before the last use of this
    /// value.
    pub unsafe fn from_handle(handle: usize) -> ProgramStream {
        ProgramStream(handle)
    }

    /// The driver's handle.
    pub(super) fn handle(self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> DeviceRegion {
        // SAFETY: no work is enqueued with it.
        unsafe { DeviceRegion::new(2, 0x1000, 64) }
    }

    #[test]
    fn a_part_lies_inside() {
        let part = region().part(16..48);
        assert_eq!(
            (part.device(), part.address(), part.bytes()),
            (2, 0x1010, 32)
        );
        assert_eq!(part.part(32..32).bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "part 60..65 of a device region of 64 bytes")]
    fn a_part_beyond_the_end_panics() {
        region().part(60..65);
    }
}
