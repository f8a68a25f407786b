//! The probe: when a communicator is made, it measures ways whose prices are uncertain, and
//! corrects the cost model.
//!
//! The time of a cache line between two cores is not documented anywhere. The probe makes calls by
//! two ways in alternation (`communicator/probe.rs`); this module has the cases and the
//! conclusions, without a clock. Neighbours, frequency and the two speeds of a line between cores
//! shift times by more than the ways differ, but hardly one call against the next. So pairs are
//! counted, and times are not averaged. If one way wins nearly all its pairs, the tried way is
//! repriced relative to the other, by the ratio of their medians. Otherwise the model's price
//! stays. Ways that a few milliseconds of calls cannot distinguish are not probed.

#![forbid(unsafe_code)]

use super::choose::finish;
use super::corrections::Key;
use super::fit::Pairs;
use super::model;
use super::{Constants, Question, Tuning};
use crate::types::{Collective, Method, Protocol};

/// Two ways whose order by price is uncertain.
#[derive(Clone, Copy, Debug)]
pub struct ProbeCase {
    /// The probed collective.
    pub collective: Collective,
    /// The way whose price is uncertain.
    pub tried: (Method, Protocol),
    /// The way to compare with, whose price stays.
    pub known: (Method, Protocol),
    /// The probed sizes, in bytes.
    pub sizes: &'static [u64],
}

const DIRECT: (Method, Protocol) = (Method::Direct, Protocol::Simple);

/// The probed cases.
pub const PROBE_CASES: &[ProbeCase] = &[
    // `one_shot` reads everything, which saves a synchronisation.
    ProbeCase {
        collective: Collective::AllReduce,
        tried: (Method::OneShot, Protocol::Simple),
        known: DIRECT,
        sizes: &[2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10],
    },
];

/// Number of doublings beyond the probed sizes after which the model's price stays: a result for
/// some kilobytes does not hold for megabytes.
const REACH_LOG2: u8 = 2;

impl ProbeCase {
    /// Returns the constants that follow from the times of the tried way and of the known one, with
    /// a question for each size.
    pub fn settle(&self, tuning: &Tuning, samples: &[(Question, Pairs)]) -> Constants {
        let mut constants = tuning.constants.clone();
        let key = Key {
            collective: self.collective,
            way: self.tried,
        };
        let is_clear = |(_, pairs): &&(Question, Pairs)| pairs.is_clear();
        let clear: Vec<_> = samples.iter().filter(is_clear).collect();
        // The time of the tried way, as a multiple of the known one's.
        let ratio = |(_, pairs): &&(Question, Pairs)| {
            let [tried, known] = pairs.medians();
            tried / known
        };
        let ratios: Vec<f64> = clear.iter().map(ratio).collect();
        for (index, (question, _)) in clear.into_iter().enumerate() {
            let price = |way| {
                let way = finish(question, tuning, way, None);
                f64::from(model::price(question, &way, &constants))
            };
            let ratio = among_neighbours(&ratios, index);
            let factor = price(self.known) * ratio / price(self.tried);
            let old = constants.corrections.factor(key, question.bytes);
            let log2_bytes = question.bytes.max(1).ilog2() as u8;
            constants.corrections.set(key, log2_bytes, factor * old);
        }
        self.bound(key, &mut constants);
        constants
    }

    /// Ends the corrections beyond the probed sizes.
    fn bound(&self, key: Key, constants: &mut Constants) {
        let tried = self.sizes.iter().map(|bytes| bytes.ilog2() as u8);
        let (Some(least), Some(most)) = (tried.clone().min(), tried.max()) else {
            return;
        };
        let mut points = constants.corrections.points().iter();
        if points.any(|point| point.0 == key) {
            for log2_bytes in [least.saturating_sub(REACH_LOG2), most + REACH_LOG2] {
                constants.corrections.set(key, log2_bytes, 1.0);
            }
        }
    }
}

/// Returns the ratio at `index`, or the nearer one of its neighbours if both are above it or both
/// below. Ways cross once, so a size that differs from both neighbours was disturbed.
fn among_neighbours(ratios: &[f64], index: usize) -> f64 {
    let here = ratios[index];
    let before = index.checked_sub(1).map(|before| &ratios[before]);
    match (before, ratios.get(index + 1)) {
        (Some(before), Some(after)) => here.clamp(before.min(*after), before.max(*after)),
        _ => here,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::Limits;
    use crate::tune::fit::PAIRS_MIN;
    use crate::tune::model::tests::{on_one_host, two_cores};

    /// Returns seven pairs at each size: the tried way takes `tried(bytes)`, the known way 10.
    fn samples(case: &ProbeCase, tried: impl Fn(u64) -> f64) -> Vec<(Question, Pairs)> {
        let sample = |bytes: &u64| {
            let pairs = Pairs(vec![[tried(*bytes), 10.0]; 7]);
            (on_one_host(case.collective, *bytes, 2), pairs)
        };
        case.sizes.iter().map(sample).collect()
    }

    fn tuning(constants: Constants) -> Tuning {
        Tuning::new(constants, Limits::derive(&two_cores(), 2))
    }

    /// Returns the price of the tried way as a multiple of the known one's.
    fn ratio(case: &ProbeCase, bytes: u64, constants: &Constants) -> f64 {
        let question = on_one_host(case.collective, bytes, 2);
        let price = |way| {
            let way = finish(&question, &tuning(constants.clone()), way, None);
            f64::from(model::price(&question, &way, constants))
        };
        price(case.tried) / price(case.known)
    }

    #[test]
    fn prices_follow_what_was_measured() {
        for case in PROBE_CASES {
            for takes in [5.0, 20.0] {
                let settled = case.settle(&tuning(Constants::default()), &samples(case, |_| takes));
                for bytes in case.sizes {
                    let ratio = ratio(case, *bytes, &settled);
                    assert!((ratio - takes / 10.0).abs() < 1e-3, "{case:?}: {ratio}");
                }
            }
        }
    }

    /// The choice changes between the sizes at which either way won, not at the derived size.
    #[test]
    fn the_crossing_moves_to_where_the_ways_cross() {
        let case = &PROBE_CASES[0];
        for crossing in [1 << 10, 4 << 10, 16 << 10] {
            let tried = |bytes| if bytes <= crossing { 9.0 } else { 11.0 };
            let settled = case.settle(&tuning(Constants::default()), &samples(case, tried));
            for bytes in case.sizes {
                let is_taken = ratio(case, *bytes, &settled) < 1.0;
                assert_eq!(is_taken, *bytes <= crossing, "{bytes} of {crossing}");
            }
        }
    }

    #[test]
    fn one_disturbed_size_changes_nothing() {
        let case = &PROBE_CASES[0];
        let disturbed = |bytes| if bytes == 16 << 10 { 30.0 } else { 9.0 };
        let settled = case.settle(&tuning(Constants::default()), &samples(case, disturbed));
        for bytes in case.sizes {
            assert!(ratio(case, *bytes, &settled) < 1.0, "{bytes} bytes");
        }
    }

    /// A result for some kilobytes does not hold for megabytes.
    #[test]
    fn far_from_what_was_tried_the_model_stands() {
        let case = &PROBE_CASES[0];
        let settled = case.settle(&tuning(Constants::default()), &samples(case, |_| 5.0));
        for bytes in [8, 1 << 20, 1 << 30] {
            let before = ratio(case, bytes, &Constants::default());
            assert_eq!(ratio(case, bytes, &settled), before, "{bytes} bytes");
        }
    }

    #[test]
    fn noise_and_silence_leave_the_model() {
        for case in PROBE_CASES {
            let mut noisy = samples(case, |_| 5.0);
            for (_, pairs) in &mut noisy {
                for pair in pairs.0.iter_mut().step_by(2) {
                    pair.swap(0, 1);
                }
            }
            let mut few = samples(case, |_| 20.0);
            for (_, pairs) in &mut few {
                pairs.0.truncate(PAIRS_MIN - 1);
            }
            for samples in [noisy, few, Vec::new()] {
                let settled = case.settle(&tuning(Constants::default()), &samples);
                assert_eq!(settled, Constants::default());
            }
        }
    }
}
