//! The fit of the cost model's constants to measured times, and corrections for its residuals.
//!
//! The constants minimise the squared logarithms of the [model's](crate::tune::model) errors: a
//! price of half the time is as wrong as one of twice the time. The fit changes one constant at a
//! time, by ever smaller factors, while this helps. A small penalty holds each constant near its
//! default, so constants that no measurement depends on stay. The remaining error becomes a
//! correction of that way at that size, among those ranks.
//!
//! The fit is pure: `ringfold tune calibrate` measures.

use crate::call::Way;
use crate::topology::Machine;
use crate::tune::calibration::{Calibration, CalibrationContext};
use crate::tune::choose::finish;
use crate::tune::constants::Constants;
use crate::tune::corrections::{Corrections, Key};
use crate::tune::model::price;
use crate::tune::parameters::{Parameter, ParameterTable};
use crate::tune::{Limits, Question, Tuning};
use crate::types::{Collective, Method, Protocol};

/// One measured call.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The ranks and the transport.
    pub context: CalibrationContext,
    /// The collective.
    pub collective: Collective,
    /// Bytes of the vector, or of all blocks together.
    pub bytes: u64,
    /// The algorithm and the protocol.
    pub way: (Method, Protocol),
    /// The median time.
    pub time_us: f64,
}

/// Factors by which a constant is changed, from coarse to fine.
const STEPS: [f64; 5] = [4.0, 2.0, 1.3, 1.1, 1.03];

/// Maximum number of rounds over all constants with one step; most steps need two or three.
const ROUNDS_MAX: usize = 20;

/// Weight of a constant that is off its default by a factor of e, relative to a sample that is off
/// by as much.
const INERTIA: f64 = 0.05;

/// Times that cannot be measured on one machine. Counts and factors are not fitted either.
const UNKNOWN_TIMES: [&str; 3] = ["domain_us", "grant_us", "staging_us_per_byte"];

/// Bytes that a rank can publish in one slice by default.
const SLOT_BYTES: usize = 256 << 10;

/// Returns the calibration that is fitted to `samples`, all measured on `machine`.
pub fn fit(samples: &[Sample], machine: &Machine) -> Calibration {
    let samples: Vec<SampledCall> = samples
        .iter()
        .filter(|sample| sample.time_us.is_finite() && sample.time_us > 0.0)
        .map(|sample| sample.asked(machine))
        .collect();
    let mut constants = Constants::default();
    let mut least = error(&constants, &samples, machine);
    for step in STEPS {
        for _ in 0..ROUNDS_MAX {
            let before = least;
            for parameter in Constants::PARAMETERS.iter().filter(is_fitted) {
                for factor in [step, 1.0 / step] {
                    let mut moved = constants.clone();
                    parameter.set(&mut moved, parameter.value(&constants) * factor);
                    let error = error(&moved, &samples, machine);
                    if error < least {
                        (constants, least) = (moved, error);
                        break;
                    }
                }
            }
            if least >= before {
                break;
            }
        }
    }
    Calibration {
        corrections: corrections(&constants, &samples, machine),
        constants,
        links: None,
        rdma: None,
        devices: None,
    }
}

fn is_fitted(parameter: &&Parameter<Constants>) -> bool {
    parameter.name.contains("_us") && !UNKNOWN_TIMES.contains(&parameter.name)
}

/// Returns the squared error of the model, with the penalty of changed constants.
fn error(constants: &Constants, samples: &[SampledCall], machine: &Machine) -> f64 {
    let origin = Constants::default();
    let off = |parameter: &Parameter<Constants>| {
        (parameter.value(constants) / parameter.value(&origin))
            .ln()
            .powi(2)
    };
    let fitted = Constants::PARAMETERS.iter().filter(is_fitted);
    let inertia: f64 = fitted.map(off).sum();
    // Samples of a context are adjacent, so constants are placed only once per context.
    let mut placed: Option<(CalibrationContext, Constants)> = None;
    let mut sum = 0.0;
    for sample in samples {
        let context = sample.sample.context;
        if placed.as_ref().is_none_or(|(known, _)| *known != context) {
            placed = Some((context, constants.clone().on(machine, context.ranks)));
        }
        if let Some((_, here)) = &placed {
            sum += sample.residue(here).ln().powi(2);
        }
    }
    sum + INERTIA * inertia
}

impl Sample {
    /// Returns the measured time as a multiple of the model's, with these constants, which are
    /// those for the sample's ranks.
    pub fn residue(&self, placed: &Constants, machine: &Machine) -> f64 {
        self.asked(machine).residue(placed)
    }

    /// Returns the measured call with its question and its way.
    fn asked(&self, machine: &Machine) -> SampledCall {
        let CalibrationContext { is_shared, ranks } = self.context;
        let question = Question {
            slot_bytes: is_shared.then_some(SLOT_BYTES),
            // If the ranks could not read each other's memory, no job here can.
            read_bytes_min: is_shared.then_some(Limits::default().read_bytes_min),
            algorithm: Some(self.way.0),
            protocol: Some(self.way.1),
            ..Question::new(self.collective, self.bytes, ranks)
        };
        let limits = Limits::derive(machine, ranks);
        let tuning = Tuning::new(Constants::default(), limits);
        SampledCall {
            way: finish(&question, &tuning, self.way, None),
            question,
            sample: *self,
        }
    }
}

/// A sample with the question and the way that determine its price.
struct SampledCall {
    sample: Sample,
    question: Question,
    way: Way,
}

impl SampledCall {
    fn residue(&self, placed: &Constants) -> f64 {
        self.sample.time_us / f64::from(price(&self.question, &self.way, placed))
    }
}

/// Returns the residuals as corrections, by context.
fn corrections(
    constants: &Constants,
    samples: &[SampledCall],
    machine: &Machine,
) -> Vec<(CalibrationContext, Corrections)> {
    let mut contexts: Vec<CalibrationContext> =
        samples.iter().map(|asked| asked.sample.context).collect();
    contexts.sort();
    contexts.dedup();
    let of = |context: CalibrationContext| {
        let placed = constants.clone().on(machine, context.ranks);
        let mut corrections = Corrections::default();
        for asked in samples {
            let sample = &asked.sample;
            if sample.context != context {
                continue;
            }
            let key = Key {
                collective: sample.collective,
                way: sample.way,
            };
            let log2_bytes = sample.bytes.max(1).ilog2() as u8;
            corrections.set(key, log2_bytes, asked.residue(&placed));
        }
        (context, corrections)
    };
    contexts.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::model::tests::two_cores;

    /// Returns times of another machine: its own constants, and one way whose formula is wrong.
    fn samples(truth: &Constants) -> Vec<Sample> {
        use Method::{Claim, Direct, OneShot, Rabenseifner, RecursiveDoubling, Ring, Tree};
        let mut samples = Vec::new();
        for (is_shared, ranks) in [(true, 2), (true, 4), (false, 4)] {
            let context = CalibrationContext { is_shared, ranks };
            let placed = truth.clone().on(&two_cores(), ranks);
            for bytes in (3..=22).step_by(3).map(|shift| 1 << shift) {
                for algorithm in [
                    OneShot,
                    Direct,
                    Claim,
                    Ring,
                    Rabenseifner,
                    RecursiveDoubling,
                    Tree,
                ] {
                    if algorithm == Claim && !is_shared {
                        continue;
                    }
                    let mut sample = Sample {
                        context,
                        collective: Collective::AllReduce,
                        bytes,
                        way: (algorithm, Protocol::Simple),
                        time_us: 1.0,
                    };
                    let missed = if algorithm == Tree { 1.7 } else { 1.0 };
                    sample.time_us = missed / sample.residue(&placed, &two_cores());
                    samples.push(sample);
                }
            }
        }
        samples
    }

    #[test]
    fn the_fit_prices_as_the_machine_does() {
        let truth = Constants {
            hop_us: 0.9,
            turn_us: 6.0,
            copy_us_per_byte: 1.5e-4,
            socket_hop_us: 9.0,
            socket_work_us_per_byte: 2e-4,
            ..Constants::default()
        };
        let samples = samples(&truth);
        let calibration = fit(&samples, &two_cores());
        let asked = samples.iter().map(|sample| sample.asked(&two_cores()));
        let asked: Vec<SampledCall> = asked.collect();
        let error = |constants: &Constants| error(constants, &asked, &two_cores());
        let before = error(&Constants::default());
        let after = error(&calibration.constants);
        assert!(after < before / 4.0, "{before} {after}");
        for sample in &samples {
            let placed = calibration.constants(sample.context, &two_cores(), sample.context.ranks);
            let residue = sample.residue(&placed, &two_cores());
            assert!((0.99..1.01).contains(&residue), "{sample:?}: {residue}");
        }
    }

    #[test]
    fn nothing_measured_leaves_the_defaults() {
        let mut absurd = samples(&Constants::default())[0];
        for time_us in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            absurd.time_us = time_us;
            let calibration = fit(&[absurd], &two_cores());
            assert_eq!(calibration, Calibration::default(), "{time_us}");
        }
    }
}
