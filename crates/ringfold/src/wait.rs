//! How a thread waits for its peers: the one primitive of all blocking calls.
//!
//! After every unsuccessful attempt, a waiter decides what to do next. With a core for every rank
//! it spins, then yields, then blocks. With more ranks than cores it does not spin, because the
//! peer may need this core. A few yields before blocking are then the fastest: a block costs two
//! context switches and a wake.
//!
//! A yield runs only threads of the same scheduling group, so ranks in control groups or autogroup
//! sessions of their own soon block.

use std::thread;
use std::time::{Duration, Instant};

/// The action before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Spin, with a hint to the processor.
    Spin,
    /// Let another thread run.
    Yield,
    /// Block until woken, at most this long.
    Block(Duration),
}

/// The spins and yields of a waiter: data, chosen once for a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Number of unsuccessful attempts in a row that are followed only by a processor hint.
    pub spins: u32,
    /// Number of attempts after those that are followed by a yield.
    pub yields: u32,
}

/// The longest time to wait, a century: a longer time is as good as forever, and beyond the range
/// of clocks. Times from callers are limited to this on entry.
pub const SPAN_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The longest time that a thread blocks before it checks again, and thus the longest delay in
/// noticing deadlines, departed peers and signals.
pub const BLOCK_MAX: Duration = Duration::from_millis(20);

/// Spins with enough cores, about 20 µs (an attempt takes some 60 ns): longer than a peer's usual
/// delay within one collective, far shorter than a time slice.
const SPINS_WITH_ENOUGH_CORES: u32 = 300;

/// Yields before blocking with enough cores: the core has no other thread to run, so this is a
/// slower spin.
const YIELDS_WITH_ENOUGH_CORES: u32 = 200;

/// Yields before blocking with too few cores: measured, as good as yielding forever, and idle ranks
/// still block.
const YIELDS_OVERSUBSCRIBED: u32 = 10;

/// Spins if an attempt is a system call on sockets: about the time in which a peer on the same
/// switch answers.
const SPINS_ON_SOCKETS: u32 = 40;

/// Factor by which a rank spins less on sockets once it has learnt that others need its core: see
/// [`Waiter::learn`].
pub const CROWDED_SPIN_DIVISOR: u64 = (SPINS_ON_SOCKETS / SPINS_MIN) as u64;

/// Yields before blocking on sockets: an idle core takes tens of microseconds to wake, which delays
/// the peers. More yields gain nothing, as measured.
pub const YIELDS_ON_SOCKETS: u32 = 10;

impl Patience {
    /// Returns the patience of a rank that reaches some of its peers by sockets.
    pub fn on_sockets(ranks: usize, cores: usize) -> Patience {
        let spins = if ranks <= cores { SPINS_ON_SOCKETS } else { 0 };
        Patience {
            spins,
            yields: YIELDS_ON_SOCKETS,
        }
    }

    /// Returns the patience of `ranks` ranks that share `cores` cores.
    pub fn new(ranks: usize, cores: usize) -> Patience {
        if ranks <= cores {
            Patience {
                spins: SPINS_WITH_ENOUGH_CORES,
                yields: YIELDS_WITH_ENOUGH_CORES,
            }
        } else {
            Patience {
                spins: 0,
                yields: YIELDS_OVERSUBSCRIBED,
            }
        }
    }
}

/// A waiting thread's patience, and its estimate of whether spinning pays.
///
/// If two ranks share a core after all (another program has the other core), a spinning rank keeps
/// its peer from running. Then waits end right after the first yields, and the waiter spins less.
/// When waits end during spinning, it spins more again.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    patience: Patience,
    spins: u32,
}

/// Minimum number of spins of a waiter that may spin: two line transfers.
const SPINS_MIN: u32 = 8;

/// A wait that ends within this many yields ended because of them.
const YIELDS_THAT_HELPED: u32 = 3;

impl Waiter {
    /// Makes a waiter that has learnt nothing.
    pub fn new(patience: Patience) -> Waiter {
        Waiter {
            patience,
            spins: patience.spins,
        }
    }

    /// Returns the action after `attempts` unsuccessful attempts in a row (1 and up).
    pub fn pause(&self, attempts: u32) -> Pause {
        if attempts <= self.spins {
            Pause::Spin
        } else if attempts <= self.spins + self.patience.yields {
            Pause::Yield
        } else {
            Pause::Block(BLOCK_MAX)
        }
    }

    /// Learns from a wait that ended after `attempts` unsuccessful attempts.
    pub fn learn(&mut self, attempts: u32) {
        if attempts <= self.spins {
            self.spins = (self.spins * 2).min(self.patience.spins);
        } else if attempts <= self.spins + YIELDS_THAT_HELPED {
            self.spins = (self.spins / 2).max(SPINS_MIN.min(self.patience.spins));
        }
    }

    /// Whether the driver should read the clock, which costs more than an attempt, after this many
    /// attempts.
    pub fn is_clock_due(&self, attempts: u32) -> bool {
        attempts.is_multiple_of(256) || attempts > self.spins
    }
}

/// What a thread waits for that wakes no thread: words that a device writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordWait {
    /// The words before the first data of a call has arrived.
    Lull,
    /// The words of data that is under way.
    Flight,
}

/// How long a thread looks at words without a pause in between, at first: device and thread may
/// share a core where the device is software.
const WITHOUT_PAUSE: Duration = Duration::from_micros(4);

/// The longest look without a nap, for words of data that is under way.
const FLIGHT: Duration = Duration::from_millis(2);

/// The longest look without a nap, for other words, such as those of a call's first slice: calls
/// often follow each other.
const LULL: Duration = Duration::from_micros(100);

/// The part of the time waited so far that a nap takes, so no wait ends later than by that.
const NAP_DIVISOR: u32 = 50;

/// The shortest nap that pays.
const NAP_MIN: Duration = Duration::from_micros(20);

/// The longest nap, in which a fault goes unseen. A thread that waits long has some 2 % of a core:
/// a nap costs about 10 µs.
const NAP_MAX: Duration = Duration::from_micros(400);

/// A thread that looks at words until they say what it waits for.
#[derive(Debug)]
pub struct Looks {
    begin: Instant,
    without_nap: Duration,
}

impl Looks {
    /// The first look.
    pub fn begin(words: WordWait) -> Looks {
        Looks {
            begin: Instant::now(),
            without_nap: match words {
                WordWait::Lull => LULL,
                WordWait::Flight => FLIGHT,
            },
        }
    }

    /// Pauses; whether that was a nap, so that there is time to look at something else.
    pub fn pause(&self) -> bool {
        let waited = self.begin.elapsed();
        if waited < WITHOUT_PAUSE {
            std::hint::spin_loop();
            return false;
        }
        if waited < self.without_nap {
            thread::yield_now();
            return false;
        }
        thread::sleep((waited / NAP_DIVISOR).clamp(NAP_MIN, NAP_MAX));
        true
    }
}

/// Looks at `condition` until it holds or `timeout` has passed; whether it holds.
pub fn wait_until(mut condition: impl FnMut() -> bool, timeout: Duration) -> bool {
    let looks = Looks::begin(WordWait::Lull);
    while !condition() {
        if looks.begin.elapsed() >= timeout {
            return false;
        }
        looks.pause();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_cores_never_spin() {
        let waiter = Waiter::new(Patience::new(8, 2));
        assert_eq!(waiter.pause(1), Pause::Yield);
        assert!(matches!(waiter.pause(1000), Pause::Block(_)));
    }

    #[test]
    fn enough_cores_spin_then_yield_then_block() {
        let waiter = Waiter::new(Patience::new(2, 2));
        assert_eq!(waiter.pause(1), Pause::Spin);
        assert_eq!(waiter.pause(SPINS_WITH_ENOUGH_CORES + 1), Pause::Yield);
        assert!(matches!(waiter.pause(u32::MAX), Pause::Block(_)));
    }

    #[test]
    fn a_waiter_whose_spins_are_in_vain_spins_less_and_recovers() {
        let patience = Patience::new(2, 2);
        let mut waiter = Waiter::new(patience);
        for _ in 0..20 {
            waiter.learn(waiter.spins + 1);
        }
        assert_eq!(waiter.spins, SPINS_MIN);
        for _ in 0..20 {
            waiter.learn(1);
        }
        assert_eq!(waiter.spins, patience.spins);
    }
}
