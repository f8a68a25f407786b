//! The generator of pseudo-random numbers, for everything that must be reproducible from a seed:
//! injected faults and delays, the simulator, tests.

/// A small generator (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Clone, Debug, Default)]
pub struct SplitMix64(
    /// The state; any number begins a sequence.
    pub u64,
);

impl SplitMix64 {
    /// Makes the generator of `stream`, one of many independent streams of `seed`.
    pub fn stream(seed: u64, stream: u64) -> SplitMix64 {
        let mut mixed = SplitMix64(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        SplitMix64(mixed.next_u64())
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `limit`, almost uniformly distributed.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    /// Returns the index of one of `count` things, like [`below`](SplitMix64::below).
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// Returns a uniformly distributed number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Draws a whole number from the exponential distribution with this mean.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        (-(1.0 - self.unit()).ln() * mean as f64).round() as u64
    }
}

/// Hashes a number so that each of its bits affects every bit of the result: the generator's
/// finaliser.
pub fn mix(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_means_of_their_distributions() {
        const DRAWS: u64 = 100_000;
        let mut random = SplitMix64::stream(7, 1);
        let mean = (0..DRAWS)
            .map(|_| random.exponential(20_000_000))
            .sum::<u64>()
            / DRAWS;
        assert!((19_600_000..20_400_000).contains(&mean), "{mean}");
        let hits = (0..DRAWS).filter(|_| random.happens(0.1)).count();
        assert!((9_600..10_400).contains(&hits), "{hits}");
    }

    #[test]
    fn streams_of_one_seed_differ_and_come_again() {
        let first = |seed, stream| SplitMix64::stream(seed, stream).next_u64();
        assert_eq!(first(1, 2), first(1, 2));
        assert_ne!(first(1, 2), first(1, 3));
        assert_ne!(first(1, 2), first(2, 2));
    }
}
