//! Random moments and victims, from a seed that is printed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SplitMix64: all that choosing victims needs.
pub struct Random(u64);

impl Random {
    /// From the seed in `RANDOM_SEED`, else a new one; printed, because the output of a failed test is shown.
    pub fn new(what: &str) -> Random {
        let fresh = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(0, |time| time.as_nanos() as u64)
        };
        let given = std::env::var("RANDOM_SEED").ok();
        let seed = given.map_or_else(fresh, |text| text.parse().expect("a number as seed"));
        println!("{what}: RANDOM_SEED={seed}");
        Random(seed)
    }

    pub fn from_seed(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Lets a random time pass: the moment is what is random, nothing is waited for.
    pub fn pause(&mut self, longest: Duration) {
        std::thread::sleep(longest.mul_f64(self.below(1000) as f64 / 1000.0));
    }
}
