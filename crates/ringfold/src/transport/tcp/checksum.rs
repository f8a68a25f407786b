//! CRC32C over regions.

use crate::memory::Region;

/// Bytes that are copied out of a region at a time: they stay in the first-level cache.
const STEP_BYTES: usize = 4096;

/// The CRC32C of everything that `checksum` covers, followed by `region`.
///
/// Copies piece by piece, because nothing may borrow a region's bytes; next to the socket's own copies that is little.
pub fn extend(mut checksum: u32, region: Region) -> u32 {
    let mut step = [0; STEP_BYTES];
    let mut offset = 0;
    while offset < region.bytes() {
        let bytes = STEP_BYTES.min(region.bytes() - offset);
        region.part(offset..offset + bytes).read(&mut step[..bytes]);
        checksum = crc32c::crc32c_append(checksum, &step[..bytes]);
        offset += bytes;
    }
    checksum
}

/// The CRC32C of `bytes`.
pub fn of(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
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
        for cut in [0, 1, 4095, 4096, 9999, 10_000] {
            let first = extend(0, owned.region().part(0..cut));
            assert_eq!(
                extend(first, owned.region().part(cut..10_000)),
                of(&content)
            );
        }
    }
}
