//! A checksum of memory that costs little more than reading it.
//!
//! A message between hosts is checked from end to end, so both ends read every byte once more. The
//! checksum takes two additions for each word of eight bytes. Blocks of eight words are summed lane
//! by lane, and so are the sums after each block, which makes the result depend on the order
//! (Fletcher, *An arithmetic checksum for serial transmissions*, 1982). A block is one vector of
//! the widest level.
//!
//! # What it detects
//!
//! Every change within one word changes the sums, and so do nearly all other changes. The sums are
//! mixed with the length and folded to 32 bits. Random damage then goes unnoticed with a
//! probability of 2⁻³². The checksum is no protection against an adversary.

use super::level::{Level, LoopBody, compiled};
use crate::memory::Region;

/// Words in a block.
const LANES: usize = 8;

const BLOCK_BYTES: usize = LANES * 8;

/// 2^64 divided by the golden ratio: an odd number without a pattern, fixed by the wire format.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Incremental checksum of a sequence of bytes.
#[derive(Clone)]
pub struct Digest {
    sums: Sums,
    /// Bytes that do not fill a block yet.
    rest: [u8; BLOCK_BYTES],
    /// Number of bytes so far.
    bytes: u64,
}

/// The sum of each lane's words, and the sum of that sum after each block.
#[derive(Clone, Copy, Default)]
struct Sums {
    plain: [u64; LANES],
    ordered: [u64; LANES],
}

impl Sums {
    #[inline(always)]
    fn add(&mut self, block: [u64; LANES]) {
        for (lane, word) in block.into_iter().enumerate() {
            self.plain[lane] = self.plain[lane].wrapping_add(u64::from_le(word));
            self.ordered[lane] = self.ordered[lane].wrapping_add(self.plain[lane]);
        }
    }
}

/// Adds all whole blocks of the source.
struct DigestLoop;

impl LoopBody<&mut Sums> for DigestLoop {
    #[inline(always)]
    unsafe fn run(_into: Region, sources: &[Region], extra: &mut Sums) {
        let mut sums = *extra;
        for source in sources {
            let blocks = source.address().cast::<[u64; LANES]>();
            for number in 0..source.bytes() / BLOCK_BYTES {
                // SAFETY: the block lies in the region, which is valid for reads; any bytes are
                // numbers, at any address.
                sums.add(unsafe { blocks.add(number).read_unaligned() });
            }
        }
        *extra = sums;
    }
}

impl Default for Digest {
    fn default() -> Digest {
        Digest::new()
    }
}

impl Digest {
    /// Returns the checksum of no bytes.
    pub fn new() -> Digest {
        Digest {
            sums: Sums::default(),
            rest: [0; BLOCK_BYTES],
            bytes: 0,
        }
    }

    /// Resets the checksum to that of no bytes.
    pub fn reset(&mut self) {
        *self = Digest::new();
    }

    /// Appends the bytes of `region`.
    pub fn extend(&mut self, region: Region) {
        let begun = self.rest_bytes();
        self.bytes += region.bytes() as u64;
        let missing = (BLOCK_BYTES - begun) % BLOCK_BYTES;
        let first = missing.min(region.bytes());
        region
            .part(0..first)
            .read(&mut self.rest[begun..begun + first]);
        if first > 0 && first == missing {
            self.sums.add(words(&self.rest));
        }
        let end = first + (region.bytes() - first) / BLOCK_BYTES * BLOCK_BYTES;
        if end > first {
            let run = compiled::<DigestLoop, &mut Sums>(Level::current());
            // SAFETY: there is one source, which is not written; this machine has the level.
            unsafe { run(Region::EMPTY, &[region.part(first..end)], &mut self.sums) };
        }
        if first == missing {
            let rest = region.part(end..region.bytes());
            rest.read(&mut self.rest[..rest.bytes()]);
        }
    }

    /// Returns the checksum of the bytes so far.
    pub fn value(&self) -> u32 {
        let mut sums = self.sums;
        let begun = self.rest_bytes();
        if begun > 0 {
            let mut last = self.rest;
            last[begun..].fill(0);
            sums.add(words(&last));
        }
        let mut mixed = self.bytes.wrapping_mul(MULTIPLIER);
        for word in sums.plain.into_iter().chain(sums.ordered) {
            mixed = (mixed ^ word).wrapping_mul(MULTIPLIER);
            mixed ^= mixed >> 32;
        }
        mixed as u32
    }

    /// Returns the checksum of `bytes`.
    #[cfg(test)]
    pub fn of(bytes: &[u8]) -> u32 {
        let owned = crate::memory::Owned::zeroed(bytes.len());
        owned.region().write(bytes);
        let mut digest = Digest::new();
        digest.extend(owned.region());
        digest.value()
    }

    /// Returns the number of bytes that do not fill a block yet.
    fn rest_bytes(&self) -> usize {
        (self.bytes % BLOCK_BYTES as u64) as usize
    }
}

/// Returns the words of a block.
fn words(block: &[u8; BLOCK_BYTES]) -> [u64; LANES] {
    let mut words = [0; LANES];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Owned;
    use crate::random::SplitMix64;

    const BYTES: usize = 1000;

    fn random_bytes(seed: u64) -> Vec<u8> {
        let mut random = SplitMix64(seed);
        (0..BYTES).map(|_| random.next_u64() as u8).collect()
    }

    /// Computes the checksum word by word, from its definition.
    fn expected(bytes: &[u8]) -> u32 {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        let mut sums = Sums::default();
        for (number, word) in padded.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            let lane = number % LANES;
            sums.plain[lane] = sums.plain[lane].wrapping_add(word);
            sums.ordered[lane] = sums.ordered[lane].wrapping_add(sums.plain[lane]);
        }
        let mut mixed = (bytes.len() as u64).wrapping_mul(MULTIPLIER);
        for word in sums.plain.into_iter().chain(sums.ordered) {
            mixed = (mixed ^ word).wrapping_mul(MULTIPLIER);
            mixed ^= mixed >> 32;
        }
        mixed as u32
    }

    #[test]
    fn it_is_what_its_definition_says_at_every_length() {
        let bytes = random_bytes(1);
        for length in 0..=BYTES {
            assert_eq!(
                Digest::of(&bytes[..length]),
                expected(&bytes[..length]),
                "{length}"
            );
        }
        // The wire format: values computed independently of this code, from docs/reference/wire.md.
        assert_eq!(Digest::of(b""), 0);
        assert_eq!(Digest::of(b"123456789"), 0xd82f01c4);
        let squares: Vec<u8> = (0..1000_u32)
            .map(|number| (number * number) as u8)
            .collect();
        assert_eq!(Digest::of(&squares), 0x4dde73e6);
    }

    #[test]
    fn the_parts_in_which_bytes_come_do_not_matter() {
        let bytes = random_bytes(2);
        let owned = Owned::zeroed(BYTES);
        owned.region().write(&bytes);
        let mut random = SplitMix64(3);
        for _ in 0..200 {
            let mut digest = Digest::new();
            let mut at = 0;
            while at < BYTES {
                let end = (at + (random.next_u64() % 200) as usize).min(BYTES);
                digest.extend(owned.region().part(at..end));
                at = end;
            }
            assert_eq!(digest.value(), expected(&bytes));
            digest.reset();
            assert_eq!(digest.value(), expected(&[]));
        }
    }

    #[test]
    fn every_level_gives_the_same() {
        let owned = Owned::zeroed(BYTES);
        owned.region().write(&random_bytes(4));
        let whole = owned.region().part(0..BYTES / BLOCK_BYTES * BLOCK_BYTES);
        let by = |level| {
            let mut sums = Sums::default();
            // SAFETY: one source, not written, by a level that this machine has.
            unsafe { compiled::<DigestLoop, &mut Sums>(level)(Region::EMPTY, &[whole], &mut sums) };
            (sums.plain, sums.ordered)
        };
        let levels = Level::available();
        assert!(levels.iter().all(|level| by(*level) == by(Level::Baseline)));
    }

    #[test]
    fn what_is_damaged_swapped_cut_or_appended_shows() {
        let good = random_bytes(5);
        let due = Digest::of(&good);
        for at in 0..BYTES {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert_ne!(Digest::of(&bad), due, "bit {bit} of byte {at}");
            }
        }
        for [one, other] in [[0, 8], [0, 64], [64, 640], [8, 80]] {
            let mut bad = good.clone();
            for byte in 0..8 {
                bad.swap(one + byte, other + byte);
            }
            assert_ne!(Digest::of(&bad), due, "words at {one} and {other}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_ne!(Digest::of(&longer), due);
        assert_ne!(Digest::of(&good[..BYTES - 1]), due);
    }
}
