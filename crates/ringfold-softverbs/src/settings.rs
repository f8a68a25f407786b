//! What the environment and the tests choose.

use std::collections::HashMap;
use std::str::FromStr;

/// The number in the variable `name`.
pub fn number<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// What is to go wrong.
#[derive(Debug, Default)]
pub struct Faults {
    /// By function: how many calls until one fails.
    calls: HashMap<String, u64>,
    /// Devices without a cable.
    pub is_cut: [bool; 2],
}

impl Faults {
    /// Has the `at`-th call of `function` from now on fail, from 1 on.
    pub fn fail(&mut self, function: &str, at: u64) {
        self.calls.insert(function.to_owned(), at);
    }

    /// Whether this call of `function` fails.
    pub fn fails(&mut self, function: &str) -> bool {
        let Some(left) = self.calls.get_mut(function) else {
            return false;
        };
        *left = left.saturating_sub(1);
        let is_due = *left == 0;
        if is_due {
            self.calls.remove(function);
        }
        is_due
    }
}

/// A generator of numbers that look random (xorshift64*).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }
}
