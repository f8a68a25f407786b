//! CRC32C (the polynomial of iSCSI) over regions.

use crc_fast::{CrcAlgorithm, Digest};

use crate::memory::Region;

const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;

/// Bytes that are copied out of a region at a time: they stay in the first-level cache.
const STEP_BYTES: usize = 4096;

/// The checksum of everything given so far.
pub struct Checksum(Digest);

impl Checksum {
    /// The checksum of nothing.
    pub fn new() -> Checksum {
        Checksum(Digest::new(ALGORITHM))
    }

    /// Appends `region`.
    ///
    /// Copies step by step, because nothing may borrow a region's bytes; it runs faster than a
    /// memory's bandwidth still.
    pub fn extend(&mut self, region: Region) {
        let mut step = [0; STEP_BYTES];
        let mut offset = 0;
        while offset < region.bytes() {
            let bytes = STEP_BYTES.min(region.bytes() - offset);
            region.part(offset..offset + bytes).read(&mut step[..bytes]);
            self.0.update(&step[..bytes]);
            offset += bytes;
        }
    }

    /// The checksum's value.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }

    /// Begins again with nothing.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

/// The checksum of `bytes`.
pub fn of(bytes: &[u8]) -> u32 {
    crc_fast::checksum(ALGORITHM, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;

    #[test]
    fn checksum_is_crc32c() {
        // The check value of CRC-32/ISCSI.
        assert_eq!(of(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn checksum_of_a_region_does_not_depend_on_the_cuts() {
        let owned = Owned::zeroed(10_000);
        let content: Vec<u8> = (0..10_000_u32).map(|i| (i * i) as u8).collect();
        owned.region().write(&content);
        let mut checksum = Checksum::new();
        for cut in [0, 1, 4095, 4096, 9999, 10_000] {
            checksum.reset();
            checksum.extend(owned.region().part(0..cut));
            checksum.extend(owned.region().part(cut..10_000));
            assert_eq!(checksum.value(), of(&content), "cut at {cut}");
        }
    }
}
