//! Statistics of repeated measurements: the median, and its confidence interval.
//!
//! No distribution is assumed. The interval of a median lies between two of the values: each of the
//! `n` values is below the true median with probability 1/2. So the probability that the k-th
//! smallest and the k-th largest value enclose the true median follows from the binomial
//! distribution (W. R. Thompson, 1936).

use serde::{Serialize, Serializer};

/// Probability that an interval holds the true median.
pub const CONFIDENCE: f64 = 0.95;

/// A median and its confidence interval. Other programs get the three numbers in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub low: f64,
    pub middle: f64,
    pub high: f64,
}

impl Serialize for Estimate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [self.low, self.middle, self.high].serialize(serializer)
    }
}

impl Estimate {
    /// Summarizes the values, of which there is at least one. The interval has [`CONFIDENCE`] if
    /// there are enough values, otherwise it is from the minimum to the maximum.
    pub fn of(values: &[f64]) -> Estimate {
        let sorted = sorted(values);
        let (low, high) = match reach(sorted.len()) {
            Some(k) => (sorted[k], sorted[sorted.len() - 1 - k]),
            None => (sorted[0], sorted[sorted.len() - 1]),
        };
        Estimate {
            low,
            middle: median_of_sorted(&sorted),
            high,
        }
    }

    /// Returns the ratio of two separately measured estimates, with the widest possible interval.
    pub fn over(self, other: Estimate) -> Estimate {
        Estimate {
            low: self.low / other.high,
            middle: self.middle / other.middle,
            high: self.high / other.low,
        }
    }
}

/// Returns the median of the values; there is at least one.
pub fn median(values: &[f64]) -> f64 {
    median_of_sorted(&sorted(values))
}

/// Returns the value that `percent` % of the values do not exceed (nearest rank); there is at least
/// one value.
pub fn percentile(values: &[f64], percent: f64) -> f64 {
    let sorted = sorted(values);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Whether this many values are enough for an interval with [`CONFIDENCE`].
pub fn are_enough(count: usize) -> bool {
    reach(count).is_some()
}

/// Returns the number of values to omit at either end of `count`, so that the interval of the rest
/// has [`CONFIDENCE`]; `None` if `count` is too small.
fn reach(count: usize) -> Option<usize> {
    // The probabilities that exactly `k`, and that at most `k`, of the values lie below the true
    // median.
    let mut exactly = 0.5f64.powi(i32::try_from(count).ok()?);
    let mut at_most = exactly;
    if exactly == 0.0 {
        // With too many values for an exact sum, the normal distribution approximates it.
        let n = count as f64;
        return Some((n / 2.0 - 1.96 * n.sqrt() / 2.0) as usize);
    }
    let mut reach = None;
    for k in 0..count / 2 {
        if 2.0 * at_most > 1.0 - CONFIDENCE {
            break;
        }
        reach = Some(k);
        exactly *= (count - k) as f64 / (k + 1) as f64;
        at_most += exactly;
    }
    reach
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

#[cfg(test)]
mod tests {
    use ringfold::internals::random::SplitMix64;

    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99.0), 99.0);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
    }

    #[test]
    fn intervals_are_those_of_the_tables() {
        // The numbers of values left out at either end are from tables of the sign test at 5 %.
        for (count, left_out) in [(6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (30, 9), (100, 39)] {
            assert_eq!(reach(count), Some(left_out), "{count}");
        }
        assert_eq!(reach(5), None);
        // Around the largest count with an exact sum, the two methods agree.
        assert_eq!(reach(1000), Some(468));
        assert_eq!(reach(1100), Some(517));
    }

    #[test]
    fn an_estimate_encloses_its_middle() {
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        let estimate = Estimate::of(&twenty);
        assert_eq!(
            (estimate.low, estimate.middle, estimate.high),
            (6.0, 10.5, 15.0)
        );
        let few = Estimate::of(&[2.0, 1.0, 4.0]);
        assert_eq!((few.low, few.middle, few.high), (1.0, 2.0, 4.0));
        let ratio = estimate.over(few);
        assert_eq!((ratio.low, ratio.middle, ratio.high), (1.5, 5.25, 15.0));
    }

    #[test]
    fn intervals_hold_as_often_as_they_say() {
        // Uniform values; the true median is one half.
        let mut random = SplitMix64(1);
        let held = (0..2000)
            .filter(|_| {
                let values: Vec<f64> = (0..12).map(|_| random.unit()).collect();
                let estimate = Estimate::of(&values);
                (estimate.low..=estimate.high).contains(&0.5)
            })
            .count();
        // With 12 values the chance is 96.1 %.
        assert!((1880..=1960).contains(&held), "{held}");
    }
}
