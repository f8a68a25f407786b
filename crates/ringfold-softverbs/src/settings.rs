//! Settings of the environment and the tests.

use std::collections::HashMap;
use std::ffi::c_int;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the number in the environment variable `name`.
pub fn number<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns the seed in `SOFTVERBS_SEED`, or a new one.
pub fn seed() -> u64 {
    number("SOFTVERBS_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(1, |time| {
            u64::from(time.subsec_nanos() ^ std::process::id())
        })
    })
}

/// Properties of the ports.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Whether the ports are on Ethernet, and have no address.
    pub is_ethernet: bool,
    pub is_down: bool,
    /// The `IBV_MTU_*` number (1 for 256 bytes).
    pub mtu: u32,
}

impl Ports {
    /// Reads `SOFTVERBS_LINK`, `SOFTVERBS_PORT` and `SOFTVERBS_MTU`.
    pub fn read() -> Ports {
        let says = |name: &str, word: &str| std::env::var(name).is_ok_and(|text| text == word);
        let mtu_bytes: u32 = number("SOFTVERBS_MTU").unwrap_or(4096);
        Ports {
            is_ethernet: says("SOFTVERBS_LINK", "ethernet"),
            is_down: says("SOFTVERBS_PORT", "down"),
            mtu: mtu_bytes.clamp(256, 4096).ilog2() - 7,
        }
    }
}

/// Error numbers that `SOFTVERBS_FAULTS` may name.
const ERRORS: [(&str, c_int); 5] = [
    ("EACCES", libc::EACCES),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("ENOMEM", libc::ENOMEM),
    ("EPERM", libc::EPERM),
];

/// Faults to inject.
#[derive(Debug, Default)]
pub struct Faults {
    /// Calls until one fails, and its error number, by function.
    calls: HashMap<String, (u64, c_int)>,
    /// Whether the cable of each device is cut.
    pub is_cut: [bool; 2],
}

impl Faults {
    /// Reads `SOFTVERBS_FAULTS`: `NAME@K` or `NAME@K=ERROR`, separated by commas.
    pub fn read() -> Faults {
        let mut faults = Faults::default();
        let text = std::env::var("SOFTVERBS_FAULTS").unwrap_or_default();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let (call, error) = entry.split_once('=').unwrap_or((entry, "ENOMEM"));
            let at = call.split_once('@');
            let at = at.and_then(|(name, at)| Some((name, at.parse().ok()?)));
            let code = ERRORS.iter().find(|(name, _)| *name == error);
            let (Some((name, at)), Some((_, code))) = (at, code) else {
                panic!("SOFTVERBS_FAULTS: `{entry}` is not NAME@K or NAME@K=ERROR");
            };
            faults.calls.insert(name.to_owned(), (at, *code));
        }
        faults
    }

    /// Counts a call of `function`, and returns its error if the call must fail.
    pub fn failure(&mut self, function: &str) -> Option<c_int> {
        let (left, code) = self.calls.get_mut(function)?;
        *left = left.saturating_sub(1);
        let due = (*left == 0).then_some(*code);
        if due.is_some() {
            self.calls.remove(function);
        }
        due
    }

    /// Returns the number of pending faults.
    pub fn due(&self) -> usize {
        self.calls.len()
    }
}

/// Random delays and choices.
#[derive(Debug)]
pub struct Lateness {
    random: Random,
}

impl Lateness {
    pub fn new(seed: u64) -> Lateness {
        Lateness {
            random: Random::new(seed),
        }
    }

    /// Returns the delay of the next action: mostly none or little, sometimes long enough for other
    /// queue pairs to finish all of their work.
    pub fn delay(&mut self) -> Duration {
        let most_us = match self.random.below(64) {
            0..40 => 0,
            40..56 => 20,
            56..63 => 200,
            _ => 2000,
        };
        Duration::from_micros(self.random.below(most_us + 1) as u64)
    }

    /// Returns how many of `count` completions may be seen at once.
    pub fn share(&mut self, count: usize) -> usize {
        match self.random.below(2) == 0 {
            true => count,
            false => 1 + self.random.below(count.min(4)),
        }
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.random.below(end)
    }
}

/// A generator of pseudo-random numbers (xorshift64*).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(2).wrapping_add(1))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }
}
