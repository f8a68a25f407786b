//! The checksum of a message's header: CRC32C (the polynomial of iSCSI). A payload's checksum is a
//! [`Digest`](crate::reduce::Digest).

use crc_fast::CrcAlgorithm;

/// Returns the checksum of `bytes`.
pub fn of(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_crc32c() {
        // The check value of CRC-32/ISCSI.
        assert_eq!(of(b"123456789"), 0xe306_9283);
    }
}
