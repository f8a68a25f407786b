//! Decides when a rank is late, from running estimates of usual durations.
//!
//! Two durations are estimated for each power of two of a chunk's bytes. The first is the *gap*
//! between the messages of the rank before for one step and for the next, the second the duration
//! of this rank's own reductions. Both are estimates of the undisturbed duration: they fall quickly
//! and rise slowly, so that an occasionally late rank barely raises them. A rank that is always
//! late raises them after a while, and rightly, because it cannot be bypassed.
//!
//! Times are arguments; nothing here reads a clock, and only speed depends on the estimates.

use super::policy::Timers;
use crate::transport::Time;

/// The number of classes of a chunk's bytes, by powers of two.
const CLASSES: usize = 33;

/// Number of observations after which an estimate counts.
const SAMPLES_MIN: u32 = 4;

/// The divisors by which an estimate follows a shorter, a longer and an overdue observation.
const FALL: u64 = 2;
const RISE: u64 = 16;
const OVERDUE: u64 = 64;

/// An estimate of a usual duration.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    ps: u64,
    samples: u32,
}

impl Estimate {
    fn learn(&mut self, observed_ps: u64) {
        self.ps = match observed_ps.checked_sub(self.ps) {
            _ if self.samples == 0 => observed_ps,
            Some(more) => self.ps + more / RISE,
            None => self.ps - (self.ps - observed_ps) / FALL,
        };
        self.samples = self.samples.saturating_add(1);
    }

    /// Raises the estimate after an overdue observation, whatever its duration.
    fn learn_overdue(&mut self) {
        self.ps += self.ps / OVERDUE;
    }

    fn usual_ps(&self) -> Option<u64> {
        (self.samples >= SAMPLES_MIN).then_some(self.ps)
    }
}

/// The usual durations of a rank's steps and reductions.
#[derive(Debug)]
pub struct Estimates {
    timers: Timers,
    /// The gaps by class: of a slice's steps after the first, and of the first, which has no
    /// reduction in it.
    gaps: Vec<[Estimate; 2]>,
    reductions: Vec<Estimate>,
}

/// The key of an estimated gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// A chunk's bytes.
    pub bytes: usize,
    /// Whether the gap is the first of its slice.
    pub is_first: bool,
}

impl Estimates {
    /// Creates estimates without observations.
    pub fn new(timers: Timers) -> Estimates {
        Estimates {
            timers,
            gaps: vec![Default::default(); CLASSES],
            reductions: vec![Estimate::default(); CLASSES],
        }
    }

    /// Returns how long a rank waits for the one before; `None` while that is not known.
    pub fn patience_ps(&self, gap: Gap) -> Option<u64> {
        match self.timers {
            Timers::Fixed {
                alpha,
                reduce_ps,
                transfer_ps,
            } => {
                let times = if gap.is_first { alpha - 1.0 } else { alpha };
                Some(scaled(reduce_ps, times.max(0.0)) + transfer_ps)
            }
            Timers::Running { alpha, floor_ps } => {
                let usual_ps = self.gap(gap).usual_ps()?;
                Some(scaled(usual_ps, alpha).max(floor_ps))
            }
        }
    }

    /// Returns how long a reduction may take before `LATE` is sent; `None` while that is not known.
    pub fn watch_ps(&self, bytes: usize) -> Option<u64> {
        match self.timers {
            Timers::Fixed {
                alpha, reduce_ps, ..
            } => Some(scaled(reduce_ps, alpha)),
            Timers::Running { alpha, floor_ps } => {
                let usual_ps = self.reductions[class(bytes)].usual_ps()?;
                Some(scaled(usual_ps, alpha).max(floor_ps))
            }
        }
    }

    /// Records how long the rank before took.
    pub fn heard(&mut self, gap: Gap, begin: Time, end: Time) {
        self.gap_mut(gap).learn(between_ps(begin, end));
    }

    /// Records that the wait for the rank before was given up.
    pub fn gave_up(&mut self, gap: Gap) {
        self.gap_mut(gap).learn_overdue();
    }

    /// Records how long a reduction took, and whether a `LATE` was sent meanwhile.
    pub fn reduced(&mut self, bytes: usize, begin: Time, end: Time, was_late: bool) {
        let estimate = &mut self.reductions[class(bytes)];
        if was_late {
            estimate.learn_overdue();
        } else {
            estimate.learn(between_ps(begin, end));
        }
    }

    fn gap(&self, gap: Gap) -> &Estimate {
        &self.gaps[class(gap.bytes)][usize::from(gap.is_first)]
    }

    fn gap_mut(&mut self, gap: Gap) -> &mut Estimate {
        &mut self.gaps[class(gap.bytes)][usize::from(gap.is_first)]
    }
}

fn class(bytes: usize) -> usize {
    (bytes.max(1).ilog2() as usize).min(CLASSES - 1)
}

fn scaled(ps: u64, times: f64) -> u64 {
    (ps as f64 * times).round() as u64
}

fn between_ps(begin: Time, end: Time) -> u64 {
    u64::try_from(end.0.saturating_sub(begin.0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR_PS: u64 = 1000;
    const GAP: Gap = Gap {
        bytes: 1 << 20,
        is_first: false,
    };

    fn estimates() -> Estimates {
        Estimates::new(Timers::Running {
            alpha: 2.0,
            floor_ps: FLOOR_PS,
        })
    }

    fn hear(estimates: &mut Estimates, gap_ps: u128) {
        estimates.heard(GAP, Time(500), Time(500 + gap_ps));
    }

    #[test]
    fn no_rank_is_late_before_anything_is_known() {
        let mut estimates = estimates();
        assert_eq!(estimates.patience_ps(GAP), None);
        (0..SAMPLES_MIN).for_each(|_| hear(&mut estimates, 10_000));
        assert_eq!(estimates.patience_ps(GAP), Some(20_000));
        let other = Gap { bytes: 8, ..GAP };
        assert_eq!(estimates.patience_ps(other), None, "other sizes");
    }

    #[test]
    fn short_times_are_not_taken_for_late() {
        let mut estimates = estimates();
        (0..SAMPLES_MIN).for_each(|_| hear(&mut estimates, 10));
        assert_eq!(estimates.patience_ps(GAP), Some(FLOOR_PS));
    }

    #[test]
    fn a_rank_that_is_late_half_the_time_stays_late() {
        let mut estimates = estimates();
        for turn in 0..200 {
            hear(&mut estimates, if turn % 2 == 0 { 70_000 } else { 10_000 });
        }
        assert!(estimates.patience_ps(GAP).is_some_and(|ps| ps < 70_000));
    }

    #[test]
    fn a_rank_that_is_always_late_becomes_usual() {
        let mut estimates = estimates();
        (0..SAMPLES_MIN).for_each(|_| hear(&mut estimates, 10_000));
        let late_ps = 100_000;
        let mut waits = 0;
        while estimates.patience_ps(GAP).is_some_and(|ps| ps < late_ps) {
            estimates.gave_up(GAP);
            waits += 1;
        }
        assert!(waits > 50, "it took {waits} calls");
    }

    #[test]
    fn fixed_times_are_the_papers() {
        let fixed = Estimates::new(Timers::Fixed {
            alpha: 1.8,
            reduce_ps: 3_000_000,
            transfer_ps: 5_655_360,
        });
        assert_eq!(fixed.patience_ps(GAP), Some(11_055_360));
        let first = Gap {
            is_first: true,
            ..GAP
        };
        assert_eq!(fixed.patience_ps(first), Some(8_055_360));
        assert_eq!(fixed.watch_ps(1), Some(5_400_000));
    }
}
