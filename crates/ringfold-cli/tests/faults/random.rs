//! Random moments and victims, from a seed that is printed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfold::internals::random::SplitMix64;

/// Chooses victims and moments.
pub struct Random(SplitMix64);

impl Random {
    /// Starts from the seed in `RANDOM_SEED`, otherwise from a new one. Prints the seed, because
    /// the output of a failed test is shown.
    pub fn new(what: &str) -> Random {
        let fresh = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(0, |time| time.as_nanos() as u64)
        };
        let given = std::env::var("RANDOM_SEED").ok();
        let seed = given.map_or_else(fresh, |text| text.parse().expect("a number as seed"));
        println!("{what}: RANDOM_SEED={seed}");
        Random(SplitMix64(seed))
    }

    pub fn from_seed(seed: u64) -> Random {
        Random(SplitMix64(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0.index(limit)
    }

    /// Sleeps for a random time: the moment is random, and nothing is waited for.
    pub fn pause(&mut self, longest: Duration) {
        std::thread::sleep(longest.mul_f64(self.below(1000) as f64 / 1000.0));
    }
}
