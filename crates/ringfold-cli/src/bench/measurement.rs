//! The times of one size and placement, and their statistics.

use ringfold::Collective;

use super::{Case, Size};
use crate::statistics::{self, Estimate};

/// The measurement of one size and placement.
#[derive(Clone, Debug)]
pub struct Measurement {
    pub collective: Collective,
    pub world_size: usize,
    pub case: Case,
    pub size: Size,
    pub in_place: bool,
    /// Name of the chosen algorithm, or of the devices' method in its place.
    pub algorithm: String,
    pub protocol: String,
    pub transport: String,
    /// Time of the first call, aggregated over all ranks.
    pub first_us: f64,
    /// Time of each iteration, aggregated over all ranks.
    pub times_us: Vec<f64>,
    /// Wrong elements on all ranks; `None` if nothing was checked.
    pub wrong: Option<u64>,
    /// Whether a barrier preceded every timed call.
    pub has_barriers: bool,
    /// Time of the copies alone, on devices.
    pub limit_us: Option<f64>,
}

impl Measurement {
    /// Returns the median time.
    pub fn median_us(&self) -> f64 {
        statistics::median(&self.times_us)
    }

    /// Returns the median time with its confidence interval.
    pub fn estimate_us(&self) -> Estimate {
        Estimate::of(&self.times_us)
    }

    /// Returns the time that `percent` % of the iterations do not exceed (nearest rank).
    pub fn percentile_us(&self, percent: f64) -> f64 {
        statistics::percentile(&self.times_us, percent)
    }

    pub fn min_us(&self) -> f64 {
        self.times_us.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub fn max_us(&self) -> f64 {
        self.times_us.iter().copied().fold(0.0, f64::max)
    }

    pub fn mean_us(&self) -> f64 {
        self.times_us.iter().sum::<f64>() / self.times_us.len() as f64
    }

    /// Returns the population's standard deviation.
    pub fn deviation_us(&self) -> f64 {
        let mean = self.mean_us();
        let squares: f64 = self.times_us.iter().map(|t| (t - mean).powi(2)).sum();
        (squares / self.times_us.len() as f64).sqrt()
    }

    /// Returns the coefficient of variation, in per cent.
    pub fn variation_percent(&self) -> f64 {
        match self.mean_us() {
            0.0 => 0.0,
            mean => 100.0 * self.deviation_us() / mean,
        }
    }

    /// Returns the algorithm bandwidth by the median time, in 10^9 bytes per second.
    pub fn algbw_gbps(&self) -> f64 {
        match self.median_us() {
            0.0 => 0.0,
            time => self.size.bytes as f64 / time / 1e3,
        }
    }

    pub fn busbw_gbps(&self) -> f64 {
        self.algbw_gbps() * Size::bus_factor(self.collective, self.world_size)
    }

    /// Returns the collective's rate in per cent of the rate of the copies alone. `None` if nothing
    /// is copied.
    pub fn of_limit_percent(&self) -> Option<f64> {
        let limit_us = self.limit_us.filter(|_| self.size.bytes > 0)?;
        Some(100.0 * limit_us / self.median_us())
    }
}

#[cfg(test)]
pub mod tests {
    use ringfold::DType;

    use super::*;

    /// Returns a measurement with these times.
    pub fn measurement(times_us: &[f64]) -> Measurement {
        Measurement {
            collective: Collective::AllReduce,
            world_size: 4,
            case: Case {
                dtype: DType::F32,
                op: Some("sum"),
                root: None,
            },
            size: Size {
                count: 250,
                bytes: 1000,
            },
            in_place: false,
            algorithm: "ring".into(),
            protocol: "simple".into(),
            transport: "shm".into(),
            first_us: 9.0,
            times_us: times_us.to_vec(),
            wrong: Some(0),
            has_barriers: true,
            limit_us: None,
        }
    }

    #[test]
    fn statistics_are_of_all_times() {
        let odd = measurement(&[3.0, 1.0, 2.0]);
        assert_eq!(
            (odd.min_us(), odd.median_us(), odd.max_us()),
            (1.0, 2.0, 3.0)
        );
        assert_eq!(measurement(&[1.0, 3.0]).deviation_us(), 1.0);
    }

    #[test]
    fn bandwidth_counts_thousands_and_the_bus_factor() {
        let row = measurement(&[2.0]);
        assert_eq!(row.algbw_gbps(), 0.5);
        assert_eq!(row.busbw_gbps(), 0.75);
        assert_eq!(row.of_limit_percent(), None);
        let limit_us = Some(1.5);
        assert_eq!(
            Measurement { limit_us, ..row }.of_limit_percent(),
            Some(75.0)
        );
    }
}
