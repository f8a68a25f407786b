//! What the environment and the tests choose.

use std::collections::HashMap;
use std::ffi::c_int;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The number in the variable `name`.
pub fn number<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seed of `SOFTVERBS_SEED`, or a new one.
pub fn seed() -> u64 {
    number("SOFTVERBS_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(1, |time| {
            u64::from(time.subsec_nanos() ^ std::process::id())
        })
    })
}

/// What ports are.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Whether they are on Ethernet, where they have no address.
    pub is_ethernet: bool,
    pub is_down: bool,
    /// `IBV_MTU_256` is 1, and so on.
    pub mtu: u32,
}

impl Ports {
    /// Those that `SOFTVERBS_LINK`, `SOFTVERBS_PORT` and `SOFTVERBS_MTU` describe.
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

/// Numbers of errors that `SOFTVERBS_FAULTS` may name.
const ERRORS: [(&str, c_int); 5] = [
    ("EACCES", libc::EACCES),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("ENOMEM", libc::ENOMEM),
    ("EPERM", libc::EPERM),
];

/// What is to go wrong.
#[derive(Debug, Default)]
pub struct Faults {
    /// By function: how many calls until one fails, and how.
    calls: HashMap<String, (u64, c_int)>,
    /// Devices without a cable.
    pub is_cut: [bool; 2],
}

impl Faults {
    /// Those of `SOFTVERBS_FAULTS`: `NAME@K` or `NAME@K=ERROR`, separated by commas.
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
            faults.fail(name, at, *code);
        }
        faults
    }

    /// Has the `at`-th call of `function` from now on fail, from 1 on.
    pub fn fail(&mut self, function: &str, at: u64, code: c_int) {
        self.calls.insert(function.to_owned(), (at, code));
    }

    /// How this call of `function` fails.
    pub fn failure(&mut self, function: &str) -> Option<c_int> {
        let (left, code) = self.calls.get_mut(function)?;
        *left = left.saturating_sub(1);
        let due = (*left == 0).then_some(*code);
        if due.is_some() {
            self.calls.remove(function);
        }
        due
    }

    /// How many have not come yet.
    pub fn due(&self) -> usize {
        self.calls.len()
    }
}

/// How late things happen.
#[derive(Debug)]
pub struct Lateness {
    random: Random,
    is_off: bool,
}

impl Lateness {
    /// By `seed`; `SOFTVERBS_LATE=0` has everything happen at once.
    pub fn read(seed: u64) -> Lateness {
        Lateness {
            random: Random::new(seed),
            is_off: number::<u32>("SOFTVERBS_LATE") == Some(0),
        }
    }

    /// After what time the next thing happens: mostly none or little, sometimes so much that other
    /// queue pairs do all of their work.
    pub fn delay(&mut self) -> Duration {
        let most_us = match self.random.below(64) {
            _ if self.is_off => 0,
            0..40 => 0,
            40..56 => 20,
            56..63 => 200,
            _ => 2000,
        };
        Duration::from_micros(self.random.below(most_us + 1) as u64)
    }

    /// How many of `count` things may be seen at once.
    pub fn share(&mut self, count: usize) -> usize {
        match self.is_off || self.random.below(2) == 0 {
            true => count,
            false => 1 + self.random.below(count.min(4)),
        }
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.random.below(end)
    }
}

/// A generator of numbers that look random (xorshift64*).
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
