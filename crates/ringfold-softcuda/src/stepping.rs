//! Stepping: operations of all queues in a random order, which a seed determines.

use std::thread;
use std::time::Duration;

use crate::driver::{Driver, lock};
use crate::operation::Progress;
use crate::report::end;
use crate::settings::Mode;

/// Between two looks for work.
const NAP: Duration = Duration::from_micros(20);

/// A generator of random numbers (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

impl Driver {
    /// Runs a step of a random queue among those whose first operation is not blocked; false if
    /// there is none.
    pub fn step(&self) -> bool {
        let busy = lock(&self.queues);
        let mut busy: Vec<_> = busy
            .iter()
            .filter(|queue| !queue.is_idle())
            .cloned()
            .collect();
        while !busy.is_empty() {
            let index = lock(&self.random).below(busy.len());
            let progress = busy.swap_remove(index).turn(self);
            if matches!(progress, Some(Progress::Done | Progress::Moved)) {
                return true;
            }
        }
        false
    }
}

/// Prints the seed, and starts the thread of the seeded mode.
pub fn start(driver: &'static Driver) {
    let settings = &driver.settings;
    if settings.mode == Mode::Threads {
        return;
    }
    eprintln!("softcuda: SOFTCUDA_SEED={}", settings.seed);
    if settings.mode == Mode::Stepped {
        return;
    }
    let thread = thread::Builder::new().name("softcuda".into());
    let run = || {
        loop {
            if !driver.step() {
                thread::sleep(NAP);
            }
        }
    };
    if let Err(error) = thread.spawn(run) {
        end(format!("no thread for stepping: {error}"));
    }
}
