//! The minimum length of memory that is worth registering for one message over RDMA.
//!
//! A device reads and writes registered memory only. Other memory is copied through pieces that the
//! transport keeps registered, or is itself registered for the duration of a message. Each end of a
//! message decides for its own memory. A byte costs each end one copy, or its share of a
//! registration, whose fixed part pays from some length on. That length is an option of the
//! transport: a function of three [`MemoryCosts`], which are measured when ranks join.
//!
//! A piece is copied while the device moves another one, but registration precedes the message. The
//! rule compares the processor's costs of both.

#![forbid(unsafe_code)]

use super::fit::least_squares::{self, Coefficient};

/// Costs of memory that a device reads or writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryCosts {
    /// Fixed time of registering and deregistering memory.
    pub register_us: f64,
    /// Time per byte of registering and deregistering memory, if its pages are present.
    pub register_us_per_byte: f64,
    /// Time of copying a byte into a piece of registered memory, or out of it.
    pub staging_us_per_byte: f64,
}

/// Assumptions about hardware, not measured.
///
/// Users of other libraries have reported that one thread registers present pages of 4 KiB at 10 to
/// 13 GB/s, of which the kernel's pinning is a third, with a fixed time of some tens of
/// microseconds for the device. A copy that leaves the caches runs at 18 GB/s on an ordinary
/// server. So registering never pays with the defaults; with measured costs, as of huge pages, it
/// may.
impl Default for MemoryCosts {
    fn default() -> MemoryCosts {
        MemoryCosts {
            register_us: 30.0,
            register_us_per_byte: 1e-4,
            staging_us_per_byte: 5.5e-5,
        }
    }
}

impl MemoryCosts {
    /// Returns the costs that fit measured times, each with its bytes: of registrations with
    /// deregistration, and of copies. `None` unless there are two sizes of each.
    pub fn fit(registered: &[(usize, f64)], staged: &[(usize, f64)]) -> Option<MemoryCosts> {
        let (register_us, register_us_per_byte) = line(registered)?;
        // The fixed part of a copy's time is that of the clock.
        let (_, staging_us_per_byte) = line(staged)?;
        Some(MemoryCosts {
            register_us,
            register_us_per_byte,
            staging_us_per_byte,
        })
    }

    /// Returns the length from which memory is registered for a message; `usize::MAX` if that never
    /// pays.
    pub fn register_bytes_min(&self) -> usize {
        let saved_us_per_byte = self.staging_us_per_byte - self.register_us_per_byte;
        let even_bytes = self.register_us / saved_us_per_byte;
        // The cast saturates beyond its range; NaN never pays.
        match saved_us_per_byte > 0.0 && even_bytes >= 0.0 {
            true => (even_bytes as usize).saturating_add(1),
            false => usize::MAX,
        }
    }
}

/// Fits a line: returns the fixed time and the time per byte, neither below 0.
fn line(measured: &[(usize, f64)]) -> Option<(f64, f64)> {
    let is_time = |(_, time_us): &&(usize, f64)| time_us.is_finite() && *time_us > 0.0;
    let (bytes, times): (Vec<f64>, Vec<f64>) = measured
        .iter()
        .filter(is_time)
        .map(|(bytes, time_us)| (*bytes as f64, *time_us))
        .unzip();
    let fit = least_squares::fit(&[vec![1.0; times.len()], bytes], &times)?;
    match fit.values[..] {
        [
            Coefficient::Fitted { value: fixed, .. },
            Coefficient::Fitted { value: each, .. },
        ] => Some((fixed, each)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn pays(costs: &MemoryCosts, bytes: usize) -> bool {
        let bytes = bytes as f64;
        costs.register_us + bytes * costs.register_us_per_byte < bytes * costs.staging_us_per_byte
    }

    #[test]
    fn registering_pays_from_the_least_length_on() {
        let costs = |register_us, register_us_per_byte, staging_us_per_byte| MemoryCosts {
            register_us,
            register_us_per_byte,
            staging_us_per_byte,
        };
        for costs in [
            costs(30.0, 1e-5, 5.5e-5),
            costs(100.0, 1e-4, 1.5e-4),
            costs(3.0, 0.0, 1e-3),
            costs(0.25, 0.0, 0.125),
        ] {
            let least = costs.register_bytes_min();
            assert!(pays(&costs, least), "{costs:?}: {least}");
            assert!(!pays(&costs, least - 1), "{costs:?}: {least}");
        }
        assert_eq!(costs(0.25, 0.0, 0.125).register_bytes_min(), 3);
        assert_eq!(costs(0.0, 0.0, 1e-5).register_bytes_min(), 1);
    }

    #[test]
    fn registering_never_pays_where_its_bytes_cost_a_copy() {
        let never = |register_us_per_byte, staging_us_per_byte| MemoryCosts {
            register_us: 1.0,
            register_us_per_byte,
            staging_us_per_byte,
        };
        for costs in [
            MemoryCosts::default(),
            never(1e-4, 1e-4),
            never(2e-4, 1e-4),
            never(0.0, 0.0),
            never(f64::NAN, 1e-4),
            never(0.0, 1e-300),
        ] {
            assert_eq!(costs.register_bytes_min(), usize::MAX, "{costs:?}");
        }
    }

    #[test]
    fn costs_are_found_in_noisy_times() {
        let seed = 0x5eed;
        println!("seed {seed:#x}");
        let mut random = SplitMix64::stream(seed, 0);
        let mut noisy = |time_us: f64| time_us * (1.0 + 0.04 * (random.unit() - 0.5));
        let sizes: Vec<usize> = (12..=24).map(|log2| 1 << log2).collect();
        let mut times = |fixed: f64, each: f64| -> Vec<(usize, f64)> {
            let time = |bytes: &usize| (*bytes, noisy(fixed + each * *bytes as f64));
            sizes.iter().map(time).collect()
        };
        let registered = times(25.0, 2e-5);
        let staged = times(0.05, 6e-5);
        let costs = MemoryCosts::fit(&registered, &staged).expect("enough sizes");
        let is_near = |found: f64, true_value: f64| (found / true_value - 1.0).abs() < 0.05;
        assert!(is_near(costs.register_us, 25.0), "{costs:?}");
        assert!(is_near(costs.register_us_per_byte, 2e-5), "{costs:?}");
        assert!(is_near(costs.staging_us_per_byte, 6e-5), "{costs:?}");
    }

    #[test]
    fn one_size_tells_no_costs() {
        let two = [(4096, 30.0), (8192, 31.0)];
        assert!(MemoryCosts::fit(&two, &two).is_some());
        for short in [&two[..1], &[], &[(4096, 30.0), (4096, 31.0)]] {
            assert_eq!(MemoryCosts::fit(short, &two), None);
            assert_eq!(MemoryCosts::fit(&two, short), None);
        }
        // An invalid time is ignored.
        assert_eq!(MemoryCosts::fit(&[two[0], (8192, f64::NAN)], &two), None);
    }
}
